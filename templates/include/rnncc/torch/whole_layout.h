// What the ops of a whole layer know of it beforehand (whole_op.h), under a number. The same for all of its calls.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <tuple>

#include "ops.h"
#include "tensor.h"

namespace rnncc {

// Rows [row, row + rows) of a parameter, which are added to columns [column, column + rows) of the streams.
struct Bias {
  int64_t parameter, row, column, rows;
};

// What a layer says of itself: the arguments of the op that gives a layout its number (schema.h).
struct LayerFacts {
  int64_t heads;
  bool has_time;       // a layer; else a single step
  int64_t output;      // which of the sequences a call returns before the final states; -1: none
  bool keeps_streams;  // whether the backward reads the streams
  std::vector<int64_t> sizes;
  std::vector<int64_t> shapes;        // rows and columns of each parameter, -1 for a vector; the first takes the input
  std::vector<int64_t> bias_places;   // four numbers for each Bias
  std::vector<int64_t> loop_weights;  // the parameters that the loop reads
  std::vector<double> initial;        // a value for each state

  auto all() const {
    return std::tie(heads, has_time, output, keeps_streams, sizes, shapes, bias_places, loop_weights, initial);
  }
};

// What a layer is: its sizes, and what each parameter is for. The same for all calls.
class Layout : public LayerFacts {
 public:
  Layout(const rnncc_segment& segment, const LayerFacts& facts) : LayerFacts(facts), segment(segment) {
    const std::vector<int64_t>& places = bias_places;
    for (size_t i = 0; i < places.size(); i += 4)
      biases.push_back({places[i], places[i + 1], places[i + 2], places[i + 3]});
    has_one_bias = biases.size() == 1 && biases[0].row == 0 && biases[0].column == 0 && biases[0].rows == columns() &&
                   biases[0].rows == shapes[2 * biases[0].parameter];
    stream_widths = widths(segment.stream_widths, segment.streams);
    for (int64_t i = 0, column = 0; i < product_streams(); column += stream_widths[i++])
      stream_columns.push_back(column);
    state_widths = widths(segment.state_widths, segment.states);
    weight_elements = widths(segment.plain.weight_elements, segment.plain.weights);
    if (output < -1 || output >= segment.sequences) fail(std::string(segment.name) + ": there is no such output");
    for (int64_t i = 0; i < parameters(); ++i) added_once.push_back(is_added_once(i));
    output_width = output < 0 ? 0 : widths(segment.sequence_widths, segment.sequences)[output];
    const std::vector<int64_t> saved = widths(segment.plain.saved_widths, segment.plain.saved);
    saved_width = keeps_streams ? columns() : 0;
    for (int32_t i = 0; i < segment.plain.saved; ++i) {
      const bool returned = has_time && segment.plain.saved_sequence[i] == output;
      saved_at.push_back(returned ? -1 : saved_width);
      saved_widths.push_back(saved[i]);
      if (!returned) saved_width += saved[i];
    }
  }

  bool is(const rnncc_segment& other, const LayerFacts& facts) const {
    return &other == &segment && all() == facts.all();
  }

  int64_t parameters() const { return int64_t(shapes.size()) / 2; }
  // The rows of a parameter; the elements of a vector, or of a function of parameters, whose rows are given as -1.
  int64_t rows(int64_t parameter) const {
    if (shapes[2 * parameter] >= 0) return shapes[2 * parameter];
    const auto weight = std::find(loop_weights.begin(), loop_weights.end(), parameter) - loop_weights.begin();
    return weight < segment.plain.weights ? weight_elements[weight] : -1;
  }
  int64_t inputs() const { return shapes[1]; }
  int64_t columns() const { return shapes[0]; }
  int64_t rank() const { return has_time ? 3 : 2; }
  bool returns_output() const { return output >= 0; }
  // The streams that are a product of x; those of a single step may be followed by inputs themselves.
  int64_t product_streams() const { return segment.streams - segment.further - segment.reads_x; }
  int64_t further() const { return segment.further; }
  int64_t further_width(int64_t i) const { return stream_widths[segment.streams - segment.further + i]; }
  bool is_read_by_loop(int64_t parameter) const {
    return std::find(loop_weights.begin(), loop_weights.end(), parameter) != loop_weights.end();
  }

  const rnncc_segment& segment;
  int64_t output_width, saved_width;
  bool has_one_bias;  // the biases are one parameter, all of it
  std::vector<int64_t> stream_widths, stream_columns, state_widths, weight_elements;
  // For each saved tensor its first column in what a training forward keeps, which begins with the streams where they
  // are kept; -1: it is the output.
  std::vector<int64_t> saved_at, saved_widths;
  std::vector<Bias> biases;
  // For each parameter: whether each of its elements is added once to the streams, and the loop reads none of them.
  std::vector<bool> added_once;

 private:
  bool is_added_once(int64_t parameter) const {
    std::vector<int> times(std::max<int64_t>(rows(parameter), 0), 0);
    for (const Bias& bias : biases)
      for (int64_t i = 0; bias.parameter == parameter && i < bias.rows; ++i) ++times[bias.row + i];
    return !is_read_by_loop(parameter) && std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
  }

  std::vector<int64_t> widths(rnncc_size_function function, int32_t count) const {
    std::vector<int64_t> result(count);
    function(sizes.data(), heads, result.data());
    return result;
  }
};

// The layouts that this package's layers have, by number. They are never deleted: a program has few.
class Layouts {
 public:
  // The number of a layout, -1 where there are too many.
  int64_t number(const rnncc_segment& segment, const LayerFacts& facts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t known = count_.load();
    for (int64_t i = 0; i < known; ++i)
      if (layouts_[i]->is(segment, facts)) return i;
    if (known == most) return -1;
    layouts_[known] = std::make_unique<Layout>(segment, facts);
    count_.store(known + 1);
    return known;
  }

  const Layout& at(const rnncc_segment& segment, int64_t number) const {
    if (number < 0 || number >= count_.load() || &layouts_[number]->segment != &segment)
      fail(std::string(segment.name) + ": there is no layout " + std::to_string(number));
    return *layouts_[number];
  }

 private:
  static constexpr int64_t most = 1 << 14;
  std::unique_ptr<Layout> layouts_[most];
  std::atomic<int64_t> count_ = 0;
  std::mutex mutex_;
};

inline Layouts layouts;

// The op that gives the number of a layout. `like` only brings the call to this device's kernel: where several copies of
// the library are open, that is the one that has the other ops too.
inline void run_whole_layout(const rnncc_segment& segment, StableValue* stack) {
  const Tensor like(reinterpret_cast<TensorHandle>(stack[0]));
  const LayerFacts facts = {int64_t(stack[1]),       as_bool(stack[2]),       int64_t(stack[3]),
                            as_bool(stack[4]),       take_integers(stack[5]), take_integers(stack[6]),
                            take_integers(stack[7]), take_integers(stack[8]), take_doubles(stack[9])};
  if (int32_t(facts.initial.size()) != segment.states) fail(std::string(segment.name) + ": a layout has other states");
  stack[0] = StableValue(layouts.number(segment, facts));
}

}  // namespace rnncc
