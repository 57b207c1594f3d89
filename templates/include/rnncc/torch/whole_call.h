// A call of the ops of a whole layer, or of a single step: what is given, checked once, and described for kernels. The ops
// on the CPU (whole_op.h) and on a GPU (whole_gpu.h) share this.
#pragma once

#include <iterator>

#include "aten.h"
#include "whole_tensors.h"

namespace rnncc {

// The constants of a call: the loop's own, and the bound of the recurrent gradient, which is none.
inline std::vector<double> constants_of(const Layout& layout, StableValue given) {
  std::vector<double> constants = take_doubles(given);
  const rnncc_segment& segment = layout.segment;
  if (int64_t(constants.size()) != segment.constants) fail(std::string(segment.name) + ": other constants are needed");
  if (segment.clips) constants.push_back(__builtin_inf());
  return constants;
}

// The arguments of a forward, taken over from the stack.
struct WholeForward {
  WholeForward(const rnncc_segment& segment, StableValue* stack, bool on_gpu)
      : tensors(take_tensors(stack[0])),
        packed(take_tensors(stack[1])),
        layout(layouts.at(segment, int64_t(stack[2]))),
        constants(constants_of(layout, stack[3])),
        training(as_bool(stack[4])),
        in_place(as_bool(stack[5])),
        given(layout, tensors, 0, int64_t(tensors.size()) > 1 + layout.parameters() + layout.further(), on_gpu) {}

  bool fits() { return tensors.size() == given.end() && given.fits() && (!in_place || given.may_change()); }

  std::vector<Tensor> tensors;
  const std::vector<Tensor> packed;
  const Layout& layout;
  const std::vector<double> constants;
  const bool training, in_place;
  Whole given;
};

constexpr uintptr_t ROW_ALIGNMENT = 16;  // bytes: kernels move rows that begin at multiples of it in such pieces

// The arguments of a backward: the gradients that came (bits of `came`: of the output, where there is one, and the final
// states), x, the parameters, the states, what the forward kept, and the output of a layer. The bits of `needs` ask for
// gradients of x, the parameters and the states.
struct WholeBackward {
  WholeBackward(const rnncc_segment& segment, StableValue* stack, bool on_gpu)
      : tensors(take_tensors(stack[0])),
        came(stack[1]),
        needs(stack[2]),
        layout(layouts.at(segment, int64_t(stack[4]))),
        constants(constants_of(layout, stack[5])),
        given(layout, tensors, size_t(__builtin_popcountll(came)), as_bool(stack[3]), on_gpu) {}

  bool needs_input(int64_t i) const { return needs >> i & 1; }
  bool needs_parameter(int64_t i) const { return needs_input(1 + i); }
  bool needs_state(int64_t i) const { return given.with_states && needs_input(1 + given.parameters + i); }
  // Whether the gradient of the streams is needed, for that of x, its weight or its biases.
  bool needs_streams() const {
    bool needed = needs_input(0) || needs_parameter(0);
    for (const Bias& bias : layout.biases) needed = needed || needs_parameter(bias.parameter);
    return needed;
  }

  [[noreturn]] void refuse() const {
    fail(std::string(layout.segment.name) + ": a layer's backward does not fit its forward");
  }

  // Whether x, the parameters and the states are those of the layout. Hooks on saved tensors may have given them back with
  // other strides.
  bool fits() {
    if (given.fits()) return true;
    for (size_t i = given.first; i < std::min(given.end(), tensors.size()); ++i)
      tensors[i] = contiguous(std::move(tensors[i]), tensors[i].dim());
    return given.fits();
  }
  // A tensor that the forward kept, as the kernels read it. Hooks may have given it back with other strides, or within
  // other memory.
  const Tensor& take_kept(size_t index, int32_t dtype, const std::vector<int64_t>& sizes) {
    Tensor& kept = tensors[index];
    if (kept.torch_type() != dtype || !(kept.device() == given.device) || sizes_of(kept) != sizes) refuse();
    kept = contiguous(std::move(kept), int64_t(sizes.size()));
    if (reinterpret_cast<uintptr_t>(kept.data()) % ROW_ALIGNMENT != 0) {
      Tensor aligned = empty(sizes, dtype, given.device);
      RNNCC_TORCH(aoti_torch_copy_(aligned.get(), kept.get(), 0));
      kept = std::move(aligned);
    }
    return kept;
  }
  // The output of a layer, which is the last of the tensors.
  const Tensor& take_output() {
    return take_kept(tensors.size() - 1, given.dtype, {given.steps, given.batch, layout.output_width});
  }

  std::vector<Tensor> tensors;
  const uint64_t came, needs;
  const Layout& layout;
  const std::vector<double> constants;
  Whole given;
};

// What a forward tells its loop, and the tensors that it returns: the output of a layer, and the final states.
class ForwardTables {
 public:
  // `stream`: the streams side by side. `weight(w)` describes the loop's weight number w, and `saved(i, output)` a saved
  // value; `output` describes the layer's output.
  template <class OfWeight, class OfSaved>
  ForwardTables(const WholeForward& call, void* stream, const OfWeight& weight, const OfSaved& saved) : call_(call) {
    const Layout& layout = call.layout;
    const Whole& given = call.given;
    const rnncc_segment& segment = layout.segment;
    const int64_t weight_count = int64_t(layout.loop_weights.size());
    table_.reserve(
        size_t(segment.streams + weight_count + 2 * segment.states + segment.sequences + segment.plain.saved));
    given.describe_streams(table_, stream);
    weights_ = table_.data() + table_.size();
    for (int64_t w = 0; w < weight_count; ++w) table_.push_back(weight(w));
    states_ = table_.data() + table_.size();
    given.describe_states(table_, initial_);
    sequences_ = table_.data() + table_.size();
    table_.resize(table_.size() + segment.sequences, given.nothing());
    if (layout.returns_output()) {
      made.push_back(given.make(given.shape_of(layout.output_width, given.steps)));
      sequences_[layout.output] = given.rows_at(made[0].data(), 0, layout.output_width);
    }
    finals_ = table_.data() + table_.size();
    for (int32_t i = 0; i < segment.states; ++i) {
      const int64_t width = layout.state_widths[i];
      // The driver writes final states after the last step alone, when nothing reads the first ones any more.
      made.push_back(call.in_place ? alias(given.state(i)) : given.make_state(i));
      table_.push_back({made.back().data(), 0, width, made.back().dtype()});
    }
    saved_ = table_.data() + table_.size();
    for (int32_t i = 0; i < segment.plain.saved; ++i)
      table_.push_back(saved(i, layout.returns_output() ? sequences_[layout.output] : given.nothing()));
  }

  rnncc_forward_call loop() const {
    const Whole& given = call_.given;
    return {given.steps,
            given.batch,
            call_.layout.heads,
            call_.layout.sizes.data(),
            call_.constants.data(),
            false,
            table_.data(),
            weights_,
            states_,
            sequences_,
            finals_,
            saved_,
            nullptr,
            given.rows(),
            nullptr};
  }

  std::vector<Tensor> made;

 private:
  const WholeForward& call_;
  std::vector<rnncc_tensor> table_;
  std::vector<Tensor> initial_;
  const rnncc_tensor *weights_, *states_;
  rnncc_tensor *sequences_, *finals_, *saved_;
};

// What a backward tells its loop, and the gradients that it makes.
class BackwardTables {
 public:
  // `stream`: the streams side by side, null where the loop does not read them. `saved(i)` describes a saved value, and
  // `make(i)` makes the gradient of parameter i.
  template <class OfSaved, class Make>
  BackwardTables(WholeBackward& call, void* stream, const OfSaved& saved, const Make& make) : call_(call) {
    const Layout& layout = call.layout;
    Whole& given = call.given;
    const rnncc_segment& segment = layout.segment;
    table_.reserve(2 * (segment.streams + layout.loop_weights.size() + segment.states) + segment.plain.saved +
                   segment.sequences + segment.states);
    given.describe_streams(table_, stream);
    weights_ = table_.data() + table_.size();
    for (int64_t i : layout.loop_weights) table_.push_back({given.parameter(i).data(), 0, 0, given.type});
    states_ = table_.data() + table_.size();
    given.describe_states(table_, initial_);
    saved_ = table_.data() + table_.size();
    for (int32_t i = 0; i < segment.plain.saved; ++i) table_.push_back(saved(i));
    d_sequences_ = table_.data() + table_.size();
    table_.resize(table_.size() + segment.sequences, given.nothing());
    d_final_ = table_.data() + table_.size();
    table_.resize(table_.size() + segment.states, given.nothing());
    if (!given.describe_gradients(call.came, d_sequences_, d_final_)) call.refuse();

    if (call.needs_input(0)) d_x = given.make(sizes_of(given.x()));
    if (call.needs_streams()) d_stream = given.make({given.rows(), layout.columns()});
    d_streams_ = table_.data() + table_.size();
    given.describe_streams(table_, d_stream ? d_stream.data() : nullptr);
    d_parameters.resize(size_t(given.parameters));
    for (int64_t i = 0; i < given.parameters; ++i)
      if (call.needs_parameter(i)) d_parameters[i] = make(i);
    d_weights_ = table_.data() + table_.size();
    for (int64_t i : layout.loop_weights)
      table_.push_back({d_parameters[i] ? d_parameters[i].data() : nullptr, 0, 0, given.type});
    d_states_ = table_.data() + table_.size();
    for (int32_t i = 0; i < segment.states; ++i) {
      const int64_t width = layout.state_widths[i];
      const bool needed = call.needs_state(i);
      if (needed) d_initial_.push_back(given.make(given.shape_of(width)));
      table_.push_back({needed ? d_initial_.back().data() : nullptr, 0, width, given.type});
    }
  }

  rnncc_backward_call loop() const {
    const Whole& given = call_.given;
    return {given.steps,
            given.batch,
            call_.layout.heads,
            call_.layout.sizes.data(),
            call_.constants.data(),
            false,
            table_.data(),
            weights_,
            states_,
            saved_,
            d_sequences_,
            d_final_,
            d_streams_,
            d_weights_,
            d_states_,
            nullptr,
            given.rows(),
            nullptr};
  }

  // What the backward returns: the gradients that there are, of x, the parameters and the states.
  std::vector<Tensor> take_gradients() {
    std::vector<Tensor> made;
    if (d_x) made.push_back(std::move(d_x));
    for (Tensor& gradient : d_parameters)
      if (gradient) made.push_back(std::move(gradient));
    std::move(d_initial_.begin(), d_initial_.end(), std::back_inserter(made));
    return made;
  }

  Tensor d_x, d_stream;
  std::vector<Tensor> d_parameters;

 private:
  const WholeBackward& call_;
  std::vector<rnncc_tensor> table_;
  std::vector<Tensor> initial_, d_initial_;
  const rnncc_tensor *weights_, *states_, *saved_;
  rnncc_tensor *d_sequences_, *d_final_, *d_streams_, *d_weights_, *d_states_;
};

}  // namespace rnncc
