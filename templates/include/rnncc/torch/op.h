// What the ops of a loop have in common: they take over a call's arguments and check them.
#pragma once

#include "aten.h"
#include "ops.h"
#include "tensor.h"

namespace rnncc {

// The arguments that forward and backward have in common, taken over from the stack in the schema's order: streams,
// weights, states from `tensors` on, and offsets, steps, lengths, reset, constants, sizes, num_heads, reverse
// from `rest` on. `reverse` has an element for each direction. The lists of tensors hold those of the first direction
// first.
struct Arguments {
  Arguments(StableValue* tensors, StableValue* rest)
      : streams(take_tensors(tensors[0])),
        weights(take_tensors(tensors[1])),
        states(take_tensors(tensors[2])),
        offsets(take_optional(rest[0])),
        steps(int64_t(rest[1])),
        lengths(take_optional(rest[2])),
        reset(take_optional(rest[3])),
        constants(take_doubles(rest[4])),
        sizes(take_integers(rest[5])),
        heads(int64_t(rest[6])),
        reverse(take_integers(rest[7])) {}

  // Whether the masked loop runs. On a GPU it also runs packed tensors.
  bool are_masked() const { return lengths || reset || (offsets && !offsets.on_cpu()); }

  std::vector<Tensor> streams, weights, states;
  Tensor offsets;
  int64_t steps;
  Tensor lengths, reset;
  std::vector<double> constants;
  std::vector<int64_t> sizes;
  int64_t heads;
  std::vector<int64_t> reverse;
};

// Takes a direction's share out of a list. The shares are unequal where the list does not divide evenly.
inline std::vector<Tensor> take_share(std::vector<Tensor>& all, size_t direction, size_t directions) {
  const auto at = [&](size_t d) { return all.begin() + int64_t(d * all.size() / directions); };
  return {std::make_move_iterator(at(direction)), std::make_move_iterator(at(direction + 1))};
}

inline Tensor alias_optional(const Tensor& tensor) { return tensor ? alias(tensor) : Tensor(); }

// What forward and backward have in common for one direction: its arguments, checked, and their descriptions for the
// kernel.
class Run {
 public:
  // Takes the direction's tensors out of `given`.
  Run(const rnncc_segment& segment, Arguments& given, size_t direction)
      : segment(segment),
        loop(given.are_masked() ? segment.masked : segment.plain),
        streams(take_share(given.streams, direction, given.reverse.size())),
        weights(take_share(given.weights, direction, given.reverse.size())),
        states(take_share(given.states, direction, given.reverse.size())),
        constants(given.constants),
        sizes(given.sizes),
        heads(given.heads),
        reverse(given.reverse[direction] != 0) {
    expect("sizes", this->sizes.size(), segment.sizes);
    // No infinity stands in a call: AOTInductor could not hand it over.
    if (segment.clips && int64_t(this->constants.size()) == segment.constants)
      this->constants.push_back(__builtin_inf());
    expect("constants", this->constants.size(), segment.constants + segment.clips);
    // A loop that reads no stream is still given one, which tells T, B and the dtype.
    expect("streams", this->streams.size(), segment.streams > 0 ? segment.streams : 1);
    // A loop that reads no weight may be given one without elements: AOTInductor hands an empty list over as None.
    const bool stands_for_none = loop.weights == 0 && this->weights.size() == 1 && this->weights[0].elements() == 0;
    expect("weights", this->weights.size() - stands_for_none, loop.weights);
    expect("states", this->states.size(), segment.states);
    const Tensor& first = this->streams[0];
    if (first.dim() != 3) error("streams must be [T, B, width], got " + shape_text(first));
    rows = {first.sizes()[0], first.sizes()[1]};
    type = first.dtype();
    device = first.device();
    steps = rows[0];
    batch = rows[1];
    if (given.offsets) take_offsets(given);
    if (!given.offsets && given.steps != 0) error("steps goes with offsets");
    if (!device.is_cpu() && (!loop.device_forward || type == RNNCC_FLOAT64))
      error("this package has no kernels for that device and dtype");
    compute = type == RNNCC_FLOAT64 ? RNNCC_FLOAT64 : RNNCC_FLOAT32;
    stream_widths = evaluate(segment.stream_widths, segment.streams);
    state_widths = evaluate(segment.state_widths, segment.states);
    sequence_widths = evaluate(segment.sequence_widths, segment.sequences);
    saved_widths = evaluate(loop.saved_widths, loop.saved);
    const std::vector<int64_t> weight_elements = evaluate(loop.weight_elements, loop.weights);
    for (int32_t i = 0; i < segment.streams; ++i)
      described_streams.push_back(view(this->streams[i], of_rows(stream_widths[i]), "stream"));
    for (int32_t i = 0; i < loop.weights; ++i) {
      Tensor& weight = this->weights[i];
      check_kind(weight, "weight");
      if (weight.elements() != weight_elements[i])
        error("a weight of shape " + shape_text(weight) + " must have " + std::to_string(weight_elements[i]) +
              " elements");
      // This stands before the call, because arguments may be evaluated in any order, and a moved-from tensor has no
      // dimensions.
      const int64_t rank = weight.dim();
      weight = contiguous(std::move(weight), rank);
      described_weights.push_back({weight.data(), 0, 0, weight.dtype()});
    }
    for (int32_t i = 0; i < segment.states; ++i)
      described_states.push_back(view(this->states[i], {batch, state_widths[i]}, "state"));
    if (&loop == &segment.masked) make_masks(alias_optional(given.lengths), alias_optional(given.reset));
    // What calls the kernel finds the dtype in the first entry, which a masked loop always has.
    if (described_streams.empty()) described_streams.push_back(described(first));
  }

  [[noreturn]] void error(const std::string& message) const { fail(std::string(segment.name) + ": " + message); }

  void expect(const char* what, size_t got, int64_t wanted) const {
    if (int64_t(got) != wanted)
      error("expected " + std::to_string(wanted) + " " + what + ", got " + std::to_string(got));
  }

  // Checks shape, dtype and device, copies the tensor where units are not contiguous, and describes it.
  rnncc_tensor view(Tensor& tensor, const std::vector<int64_t>& shape, const char* what) const {
    check_kind(tensor, what);
    if (sizes_of(tensor) != shape) {
      std::string wanted;
      for (int64_t size : shape) wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
      error(std::string("a ") + what + " must have the shape [" + wanted + "], got " + shape_text(tensor));
    }
    tensor = contiguous(std::move(tensor), 1);
    return described(tensor);
  }

  // The shape of a tensor of all rows: [T, B, width], or [total, 1, width] where they are packed.
  std::vector<int64_t> of_rows(int64_t width) const { return {rows[0], rows[1], width}; }

  // How the kernel reads a tensor. A packed one is [rows, 1, width]: the stride between rows takes the place of that
  // between entries.
  rnncc_tensor described(const Tensor& tensor) const {
    rnncc_tensor result = describe(tensor);
    if (starts && tensor.dim() == 3) result.entry = result.step;
    return result;
  }

  void check_kind(const Tensor& tensor, const char* what) const {
    if (!(tensor.device() == device))
      error(std::string("Input, hidden and parameter tensors are not at the same device: a ") + what +
            " is elsewhere than the first stream");
    const rnncc_dtype dtype = tensor.dtype();
    if ((dtype == RNNCC_FLOAT64) != (compute == RNNCC_FLOAT64))
      error(std::string("a ") + what + " mixes float64 with another dtype");
  }

  int64_t row_count() const { return rows[0] * rows[1]; }
  bool is_empty() const { return row_count() == 0; }
  // Whether there are batch entries without a step, whose final states are their initial ones. A GPU's kernels do this
  // themselves where there are rows.
  bool has_empty_entries() const { return is_empty() || (starts && device.is_cpu() && starts[1] < batch); }

  rnncc_dtype saved_type(int32_t i) const { return loop.saved_rounded[i] && !device.is_cpu() ? type : compute; }

  // `calls` are this direction's, or those of all directions.
  void forward(const std::vector<rnncc_forward_call>& calls) const {
    if (!device.is_cpu()) return loop.device_forward(calls.data(), int32_t(calls.size()), device.index);
    for (const rnncc_forward_call& call : calls) finish(segment.name, loop.forward(&call));
  }
  void backward(const std::vector<rnncc_backward_call>& calls) const {
    if (!device.is_cpu()) return loop.device_backward(calls.data(), int32_t(calls.size()), device.index);
    for (const rnncc_backward_call& call : calls) finish(segment.name, loop.backward(&call));
  }

  std::vector<int64_t> evaluate(rnncc_size_function function, int32_t count) const {
    std::vector<int64_t> result(count);
    function(sizes.data(), heads, result.data());
    return result;
  }

  const rnncc_segment& segment;
  const rnncc_loop& loop;
  std::vector<Tensor> streams, weights, states;
  std::vector<double> constants;
  std::vector<int64_t> sizes;
  int64_t heads;
  bool reverse;
  int64_t steps = 0, batch = 0;
  std::vector<int64_t> rows;  // T, B; where they are packed, their number and 1
  const int64_t* starts = nullptr;
  const int64_t* lengths = nullptr;  // on a GPU
  rnncc_dtype type = RNNCC_FLOAT32, compute = RNNCC_FLOAT32;
  Device device = {};
  std::vector<int64_t> stream_widths, state_widths, sequence_widths, saved_widths;
  std::vector<rnncc_tensor> described_streams, described_weights, described_states;

 private:
  // Takes over where the rows of each step (on a GPU, of each batch entry) begin. The loop reads this while it runs.
  void take_offsets(const Arguments& given) {
    const Tensor& offsets = given.offsets;
    if (given.lengths) error("offsets and lengths exclude each other");
    if (offsets.dim() != 1 || offsets.sizes()[0] < 1 || offsets.torch_type() != aoti_torch_dtype_int64() ||
        !(offsets.device() == device))
      error("offsets must be an int64 tensor [T + 1], of a GPU [B + 1], on the streams' device, got the shape " +
            shape_text(offsets));
    offsets_ = contiguous(alias(offsets), 1);
    starts = static_cast<const int64_t*>(offsets_.data());
    steps = given.steps;
    if (device.is_cpu()) return check_offsets(offsets.sizes()[0] - 1);
    batch = offsets.sizes()[0] - 1;
    if (rows[1] != 1) error("packed streams must be [rows, 1, width], got " + shape_text(streams[0]));
    // The offsets lie on the device and cannot be checked here; kernels never leave the rows that there are.
    if (rows[0] > INT32_MAX) error("a GPU takes at most 2147483647 packed rows");
    if (rows[0] > 0 && (steps < 1 || batch < 1)) error("rows without steps or batch entries");
    steps = std::min(steps, rows[0]);
  }

  void check_offsets(int64_t count) {
    batch = states[0].dim() > 0 ? states[0].sizes()[0] : 0;
    steps = count;
    bool falls = starts[0] == 0;
    for (int64_t t = 0, before = batch; falls && t < steps; ++t) {
      const int64_t here = starts[t + 1] - starts[t];
      falls = here >= 0 && here <= before;
      before = here;
    }
    if (!falls)
      error("offsets must begin at 0, and no step may have more rows than the one before, nor than the states");
    if (rows[0] != starts[steps] || rows[1] != 1)
      error("packed streams must be [" + std::to_string(starts[steps]) + ", 1, width], got " + shape_text(streams[0]));
  }

  // Makes the mask streams. On the CPU reset__ and active__ are [T, B, 1] in the compute dtype, or one number with
  // strides 0 where it is the same everywhere. A reset at step t cuts what passes between t - 1 and t, so a loop that
  // runs backwards starts anew before step t - 1.
  void make_masks(Tensor lengths, Tensor reset) {
    check_masks(lengths, reset);
    if (!device.is_cpu()) return make_masks_on_device(std::move(lengths), std::move(reset));
    reset_ = empty(reset ? rows : std::vector<int64_t>{1}, torch_dtype(compute), device);
    active_ = empty(lengths ? rows : std::vector<int64_t>{1}, torch_dtype(compute), device);
    if (compute == RNNCC_FLOAT64)
      fill_masks<double>(std::move(lengths), std::move(reset));
    else
      fill_masks<float>(std::move(lengths), std::move(reset));
  }

  void check_masks(const Tensor& lengths, const Tensor& reset) const {
    if (reset &&
        (sizes_of(reset) != rows || reset.torch_type() != aoti_torch_dtype_bool() || !(reset.device() == device)))
      error("reset must be a bool tensor [T, B] on the streams' device, got the shape " + shape_text(reset));
    if (lengths && (sizes_of(lengths) != std::vector<int64_t>{batch} ||
                    lengths.torch_type() != aoti_torch_dtype_int64() || !(lengths.device() == device)))
      error("lengths must be an int64 tensor [B] on the streams' device, got the shape " + shape_text(lengths));
  }

  // On a GPU the host does not wait for the device, and kernels know themselves which steps an entry has. Resets have
  // the streams' dtype.
  void make_masks_on_device(Tensor given_lengths, Tensor reset) {
    if (given_lengths) {
      lengths_ = contiguous(std::move(given_lengths), 1);
      lengths = static_cast<const int64_t*>(lengths_.data());
    }
    rnncc_tensor restart = {nullptr, 0, 0, type};
    if (reset) {
      reset_ = empty(rows, torch_dtype(type), device);
      RNNCC_TORCH(aoti_torch_copy_(reset_.get(), reset.get(), 1));
      restart = {reset_.data(), rows[1], 1, type};
      if (reverse) cut_backwards(restart);
    }
    described_streams.push_back(restart);
    described_streams.push_back({nullptr, 0, 0, type});
  }

  // Moves resets to the steps at which a loop that runs backwards starts anew. Past an entry's length none counts.
  void cut_backwards(rnncc_tensor& restart) {
    if (starts) {
      ShiftedRows cut(restart, {}, starts, batch, rows[0], 1, false, type, device);
      restart = cut.described;
      reset_ = std::move(cut.memory);
      return;
    }
    Tensor cut = empty({steps, batch}, torch_dtype(type), device);
    RNNCC_TORCH(aoti_torch_zero_(cut.get()));
    const auto following = [&](const Tensor& tensor, bool one_on) {
      const char* const from = static_cast<const char*>(tensor.data()) + one_on * batch * dtype_bytes(type);
      return over(from, {steps - 1, batch}, {batch, 1}, type, device);
    };
    if (steps > 1 && lengths) {
      const Tensor active = active_steps(lengths_, steps, batch, torch_dtype(type), device);
      call_aten("aten::mul", "out",
                {share(following(reset_, true)), share(following(active, true)), share(following(cut, false))});
    } else if (steps > 1) {
      RNNCC_TORCH(aoti_torch_copy_(following(cut, false).get(), following(reset_, true).get(), 0));
    }
    reset_ = std::move(cut);
    restart.data = reset_.data();
  }

  template <class T>
  void fill_masks(Tensor lengths, Tensor reset) {
    T* restart = static_cast<T*>(reset_.data());
    T* active = static_cast<T*>(active_.data());
    if (lengths) lengths = contiguous(std::move(lengths), 1);
    const int64_t* const length = lengths ? static_cast<const int64_t*>(lengths.data()) : nullptr;
    if (reset) {
      reset = contiguous(std::move(reset), 2);
      const uint8_t* given = static_cast<const uint8_t*>(reset.data());
      const auto entries_at = [&](int64_t t) { return t >= steps ? 0 : starts ? starts[t + 1] - starts[t] : batch; };
      const auto row = [&](int64_t t, int64_t b) { return (starts ? starts[t] : t * batch) + b; };
      for (int64_t t = 0; t < steps; ++t)
        for (int64_t b = 0; b < entries_at(t); ++b) {
          const int64_t later = reverse ? t + 1 : t;  // the later one of the two steps between which the states pass
          const bool exists = b < entries_at(later) && (!length || later < length[b]);
          restart[row(t, b)] = exists && given[row(later, b)] ? T(1) : T(0);
        }
    } else {
      restart[0] = T(0);
    }
    if (lengths) {  // those of an empty batch have no memory
      for (int64_t t = 0; t < steps; ++t)
        for (int64_t b = 0; b < batch; ++b) active[t * batch + b] = t < length[b] ? T(1) : T(0);
    } else {
      active[0] = T(1);
    }
    described_streams.push_back({restart, reset ? rows[1] : 0, reset ? 1 : 0, compute});
    described_streams.push_back({active, lengths ? rows[1] : 0, lengths ? 1 : 0, compute});
  }

  Tensor reset_, active_, offsets_, lengths_;
};

// Makes one Run per direction. Fails where the directions do not have the same T, B, dtype and device.
inline std::vector<Run> make_runs(const rnncc_segment& segment, Arguments given) {
  const size_t directions = given.reverse.size();
  if (directions == 0) fail(std::string(segment.name) + ": no direction to run in");
  std::vector<Run> runs;
  for (size_t d = 0; d < directions; ++d) {
    runs.emplace_back(segment, given, d);
    const Run &first = runs[0], &run = runs[d];
    if (run.rows != first.rows || run.type != first.type || !(run.device == first.device))
      run.error("the streams of all directions must have the same T, B, dtype and device");
  }
  return runs;
}

}  // namespace rnncc
