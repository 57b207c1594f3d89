// The ops of a whole layer, or of a single step: the product of its input and its loop, in one direction, on the CPU. A
// call of few steps is as fast as what surrounds its arithmetic. So these make one call of the dispatcher, check each
// tensor once, and allocate what they return and little more.
//
// The schemas (schema.h) say what is given. A call that does not fit returns no tensors, and the caller then goes the
// long way, whose messages say what is wrong.
#pragma once

#include "linear_op.h"
#include "whole_layout.h"

namespace rnncc {

inline const Device the_cpu = {aoti_torch_device_type_cpu(), 0};

// The tensors of a call, from `first` on: x, the parameters, and the states or none.
struct Whole {
  Whole(const Layout& layout, std::vector<Tensor>& tensors, size_t first, bool with_states)
      : layout(layout), tensors(tensors), first(first), parameters(layout.parameters()), with_states(with_states) {}

  // Whether the tensors are those of the layout: float32 or float64, all the same, on the CPU, in the right shapes, as
  // kernels read them, and not empty.
  bool fits() {
    const int64_t rank = layout.rank(), states = layout.segment.states;
    if (int64_t(tensors.size() - first) < 1 + parameters + (with_states ? states : 0)) return false;
    const Tensor& x = tensors[first];
    dtype = x.torch_type();
    if (dtype != aoti_torch_dtype_float32() && dtype != aoti_torch_dtype_float64()) return false;
    type = dtype == aoti_torch_dtype_float64() ? RNNCC_FLOAT64 : RNNCC_FLOAT32;
    if (x.dim() != rank || !x.on_cpu() || x.elements() == 0) return false;
    const int64_t *sizes = x.sizes(), *strides = x.strides();
    steps = rank == 3 ? sizes[0] : 1;
    batch = sizes[rank - 2];
    if (sizes[rank - 1] != layout.inputs() || (strides[rank - 1] != 1 && sizes[rank - 1] != 1)) return false;
    const bool even = rank == 2 || steps == 1 || batch == 1 || strides[0] == batch * strides[1];
    if (!even) return false;
    x_row = batch > 1 || rank == 2 ? strides[rank - 2] : strides[0];
    for (int64_t i = 0; i < parameters; ++i) {
      const Tensor& tensor = parameter(i);
      const int64_t rows = layout.shapes[2 * i], columns = layout.shapes[2 * i + 1], dims = columns < 0 ? 1 : 2;
      if (tensor.torch_type() != dtype || tensor.dim() != dims || !tensor.on_cpu()) return false;
      const int64_t *own = tensor.sizes(), *step = tensor.strides();
      if (own[0] != rows || (dims == 2 && own[1] != columns)) return false;
      if (!(step[dims - 1] == 1 || own[dims - 1] == 1) || (dims == 2 && rows > 1 && step[0] != columns)) return false;
    }
    for (int64_t i = 0; with_states && i < states; ++i) {
      const Tensor& tensor = state(i);
      if (tensor.torch_type() != dtype || tensor.dim() != rank || !tensor.on_cpu()) return false;
      const int64_t *own = tensor.sizes(), width = layout.state_widths[i];
      if ((rank == 3 && own[0] != 1) || own[rank - 2] != batch || own[rank - 1] != width) return false;
      if (tensor.strides()[rank - 1] != 1 && width != 1) return false;
    }
    return true;
  }

  const Tensor& x() const { return tensors[first]; }
  const Tensor& parameter(int64_t i) const { return tensors[first + 1 + i]; }
  const Tensor& state(int64_t i) const { return tensors[first + 1 + parameters + i]; }
  int64_t rows() const { return steps * batch; }
  int64_t item() const { return type == RNNCC_FLOAT64 ? 8 : 4; }

  rnncc_matrix x_rows() const { return {x().data(), x_row, type}; }
  rnncc_matrix weight() const { return {parameter(0).data(), layout.inputs(), type}; }

  // A tensor [T, B, width] that begins at these columns of rows which lie side by side.
  rnncc_tensor rows_at(void* data, int64_t column, int64_t row_width) const {
    return {static_cast<char*>(data) + column * item(), batch * row_width, row_width, type};
  }

  // A tensor of saved values, which lie one after the other in memory.
  rnncc_tensor saved_at(void* data, int64_t column, int64_t width) const {
    return {static_cast<char*>(data) + column * rows() * item(), batch * width, width, type};
  }

  rnncc_tensor of_state(const Tensor& tensor) const {
    return {tensor.data(), 0, tensor.strides()[layout.rank() - 2], type};
  }

  std::vector<int64_t> state_shape(int64_t width) const {
    if (layout.has_time) return {1, batch, width};
    return {batch, width};
  }

  // The states' descriptions. Where none were given they are made in `made`; kernels take zeros for what has no data.
  void describe_states(std::vector<rnncc_tensor>& described, std::vector<Tensor>& made) const {
    for (int32_t i = 0; i < layout.segment.states; ++i) {
      const double initial = layout.initial[i];
      if (with_states) {
        described.push_back(of_state(state(i)));
      } else if (initial == 0) {
        described.push_back({nullptr, 0, 0, type});
      } else {
        const int64_t width = layout.state_widths[i], count = batch * width;
        made.push_back(empty({batch, width}, dtype, the_cpu));
        void* data = made.back().data();
        if (type == RNNCC_FLOAT64)
          std::fill_n(static_cast<double*>(data), count, initial);
        else
          std::fill_n(static_cast<float*>(data), count, float(initial));
        described.push_back({data, 0, width, type});
      }
    }
  }

  const Layout& layout;
  std::vector<Tensor>& tensors;
  size_t first;
  int64_t parameters;
  bool with_states;
  int32_t dtype = 0;
  rnncc_dtype type = RNNCC_FLOAT32;
  int64_t steps = 0, batch = 0, x_row = 0;
};

// Adds n numbers of the type.
inline void add_numbers(rnncc_dtype type, void* to, int64_t to_first, const void* from, int64_t from_first, int64_t n) {
  const auto add = [&](auto* target, const auto* source) {
    for (int64_t i = 0; i < n; ++i) target[to_first + i] += source[from_first + i];
  };
  if (type == RNNCC_FLOAT64)
    add(static_cast<double*>(to), static_cast<const double*>(from));
  else
    add(static_cast<float*>(to), static_cast<const float*>(from));
}

// Whether the biases are one parameter, all of it.
inline bool is_one_bias(const Layout& layout) {
  if (layout.biases.size() != 1) return false;
  const Bias& bias = layout.biases[0];
  return bias.row == 0 && bias.column == 0 && bias.rows == layout.columns() &&
         bias.rows == layout.shapes[2 * bias.parameter];
}

inline Tensor zeros(int64_t count, int32_t dtype, int64_t item) {
  Tensor made = empty({count}, dtype, the_cpu);
  __builtin_memset(made.data(), 0, size_t(count * item));
  return made;
}

// Makes the streams side by side: x weightᵀ and the biases.
inline void multiply_input(const Whole& given, const void* packed, void* stream) {
  const Layout& layout = given.layout;
  Tensor sum;
  rnncc_matrix bias = no_matrix;
  if (is_one_bias(layout)) {
    bias = {given.parameter(layout.biases[0].parameter).data(), 0, given.type};
  } else if (!layout.biases.empty()) {
    sum = zeros(layout.columns(), given.dtype, given.item());
    bias = {sum.data(), 0, given.type};
    for (const Bias& part : layout.biases)
      add_numbers(given.type, bias.data, part.column, given.parameter(part.parameter).data(), part.row, part.rows);
  }
  const rnncc_linear_call call = {
      .rows = given.rows(),
      .inputs = layout.inputs(),
      .outputs = layout.columns(),
      .x = given.x_rows(),
      .weight = given.weight(),
      .bias = bias,
      .y = {stream, layout.columns(), given.type},
      .packed = packed,
  };
  finish("linear", rnncc_linear_forward(&call));
}

// The constants of a call: the loop's own, and the bound of the recurrent gradient, which is none.
inline std::vector<double> constants_of(const Layout& layout, StableValue given) {
  std::vector<double> constants = take_doubles(given);
  const rnncc_segment& segment = layout.segment;
  if (int64_t(constants.size()) != segment.constants) fail(std::string(segment.name) + ": other constants are needed");
  if (segment.clips) constants.push_back(__builtin_inf());
  return constants;
}

// Returns: the output of a layer (none of a single step), the final states, and in training what the backward reads.
inline void run_whole_forward(const rnncc_segment& segment, StableValue* stack) {
  std::vector<Tensor> tensors = take_tensors(stack[0]);
  const std::vector<Tensor> packed = take_tensors(stack[1]);
  const Layout& layout = layouts.at(segment, int64_t(stack[2]));
  const std::vector<double> constants = constants_of(layout, stack[3]);
  const bool training = as_bool(stack[4]);
  const int64_t parameters = layout.parameters();
  Whole given(layout, tensors, 0, int64_t(tensors.size()) > 1 + parameters);
  const bool as_many = int64_t(tensors.size()) == 1 + parameters + (given.with_states ? segment.states : 0);
  if (!as_many || !given.fits()) {
    stack[0] = give(std::vector<Tensor>());
    return;
  }
  const bool is_frozen = packed.size() == 1 + layout.loop_weights.size();
  for (size_t i = 0; i < packed.size(); ++i)
    if (!is_frozen || packed[i].torch_type() != given.dtype || !packed[i].on_cpu()) fail("other packed weights");
  Tensor kept = training ? empty({given.rows() * layout.saved_width}, given.dtype, the_cpu) : Tensor();
  Tensor own;
  if (!kept || !layout.keeps_streams) own = empty({given.rows() * layout.columns()}, given.dtype, the_cpu);
  void* const stream = own ? own.data() : kept.data();
  multiply_input(given, is_frozen ? packed[0].data() : nullptr, stream);

  std::vector<Tensor> made, started;
  std::vector<rnncc_tensor> table;
  table.reserve(segment.streams + layout.loop_weights.size() + 2 * segment.states + segment.sequences +
                segment.plain.saved);
  int64_t column = 0;
  for (int64_t width : layout.stream_widths) {
    table.push_back(given.rows_at(stream, column, layout.columns()));
    column += width;
  }
  const rnncc_tensor* weights = table.data() + table.size();
  for (size_t w = 0; w < layout.loop_weights.size(); ++w) {
    // `entry` says that a weight is packed (cpu/run.h). A weight that cannot be is represented by no elements.
    const bool is_packed = is_frozen && packed[1 + w].elements() > 0;
    const Tensor& weight = is_packed ? packed[1 + w] : given.parameter(layout.loop_weights[w]);
    table.push_back({weight.data(), 0, is_packed, given.type});
  }
  const rnncc_tensor* states = table.data() + table.size();
  given.describe_states(table, started);
  rnncc_tensor* sequences = table.data() + table.size();
  table.resize(table.size() + segment.sequences, {nullptr, 0, 0, given.type});
  if (layout.has_time) {
    const int64_t width = layout.output_width;
    made.push_back(empty({given.steps, given.batch, width}, given.dtype, the_cpu));
    sequences[layout.output] = given.rows_at(made[0].data(), 0, width);
  }
  rnncc_tensor* finals = table.data() + table.size();
  for (int64_t width : layout.state_widths) {
    made.push_back(empty(given.state_shape(width), given.dtype, the_cpu));
    table.push_back({made.back().data(), 0, width, given.type});
  }
  rnncc_tensor* saved = table.data() + table.size();
  for (int32_t i = 0; i < segment.plain.saved; ++i) {
    const int64_t place = layout.saved_at[i];
    table.push_back(!training    ? rnncc_tensor{nullptr, 0, 0, given.type}
                    : place >= 0 ? given.saved_at(kept.data(), place, layout.saved_widths[i])
                                 : sequences[layout.output]);
  }
  const rnncc_forward_call call = {given.steps,      given.batch,  layout.heads, layout.sizes.data(),
                                   constants.data(), false,        table.data(), weights,
                                   states,           sequences,    finals,       saved,
                                   nullptr,          given.rows(), nullptr};
  finish(segment.name, segment.plain.forward(&call));
  if (training) made.push_back(std::move(kept));
  stack[0] = give(std::move(made));
}

// Gives the gradients of the input's product, from those of its streams. `gradients`: of the parameters, where they are
// needed, with the share that the loop has in them.
inline void product_gradients(const Whole& given, void* d_stream, const Tensor& d_x, std::vector<Tensor>& gradients) {
  const Layout& layout = given.layout;
  bool needs_bias = false;
  for (const Bias& bias : layout.biases) needs_bias = needs_bias || gradients[bias.parameter];
  const bool in_place = needs_bias && is_one_bias(layout) && !layout.is_read_by_loop(layout.biases[0].parameter);
  Tensor sum = needs_bias && !in_place ? empty({layout.columns()}, given.dtype, the_cpu) : Tensor();
  const Tensor& d_bias = in_place ? gradients[layout.biases[0].parameter] : sum;
  const auto matrix = [&](const Tensor& tensor, int64_t row) {
    return tensor ? rnncc_matrix{tensor.data(), row, given.type} : no_matrix;
  };
  const rnncc_linear_backward_call call = {
      .rows = given.rows(),
      .inputs = layout.inputs(),
      .outputs = layout.columns(),
      .x = given.x_rows(),
      .weight = given.weight(),
      .d_y = {d_stream, layout.columns(), given.type},
      .d_x = matrix(d_x, layout.inputs()),
      .d_weight = matrix(gradients[0], layout.inputs()),
      .d_bias = matrix(d_bias, 0),
  };
  if (call.d_x.data || call.d_weight.data || call.d_bias.data) finish("linear", rnncc_linear_backward(&call));
  for (const Bias& bias : layout.biases) {
    if (!sum || !gradients[bias.parameter]) continue;
    add_numbers(given.type, gradients[bias.parameter].data(), bias.row, sum.data(), bias.column, bias.rows);
  }
}

// Returns the gradients of x, the parameters and the states, as far as the bits of `needs` ask for them. Given are the
// gradients that came (bits of `came`: of the output, where there is one, and the final states), x, the parameters, the
// states, what the forward kept, and the output of a layer.
inline void run_whole_backward(const rnncc_segment& segment, StableValue* stack) {
  std::vector<Tensor> tensors = take_tensors(stack[0]);
  const uint64_t came = stack[1], needs = stack[2];
  const bool with_states = as_bool(stack[3]);
  const Layout& layout = layouts.at(segment, int64_t(stack[4]));
  const std::vector<double> constants = constants_of(layout, stack[5]);
  const int64_t parameters = layout.parameters(), rank = layout.rank();
  const size_t gradients_that_came = size_t(__builtin_popcountll(came));
  const auto refuse = [&] { fail(std::string(segment.name) + ": a layer's backward does not fit its forward"); };
  Whole given(layout, tensors, gradients_that_came, with_states);
  const size_t first_kept = given.first + 1 + size_t(parameters) + (with_states ? size_t(segment.states) : 0);
  if (tensors.size() != first_kept + 1 + layout.has_time || !given.fits()) refuse();
  const Tensor& kept = tensors[first_kept];
  if (kept.torch_type() != given.dtype || kept.elements() != given.rows() * layout.saved_width) refuse();

  std::vector<rnncc_tensor> table;
  table.reserve(2 * (segment.streams + layout.loop_weights.size() + segment.states) + segment.plain.saved +
                segment.sequences + segment.states);
  int64_t column = 0;
  for (int64_t width : layout.stream_widths) {
    table.push_back(layout.keeps_streams ? given.rows_at(kept.data(), column, layout.columns())
                                         : rnncc_tensor{nullptr, 0, 0, given.type});
    column += width;
  }
  const rnncc_tensor* weights = table.data() + table.size();
  for (int64_t i : layout.loop_weights) table.push_back({given.parameter(i).data(), 0, 0, given.type});
  std::vector<Tensor> started;
  const rnncc_tensor* states = table.data() + table.size();
  given.describe_states(table, started);
  const rnncc_tensor* saved = table.data() + table.size();
  for (int32_t i = 0; i < segment.plain.saved; ++i) {
    const int64_t place = layout.saved_at[i];
    table.push_back(place >= 0 ? given.saved_at(kept.data(), place, layout.saved_widths[i])
                               : given.rows_at(tensors.back().data(), 0, layout.output_width));
  }
  rnncc_tensor* d_sequences = table.data() + table.size();
  table.resize(table.size() + segment.sequences, {nullptr, 0, 0, given.type});
  rnncc_tensor* d_final = table.data() + table.size();
  table.resize(table.size() + segment.states, {nullptr, 0, 0, given.type});
  for (size_t bit = 0, i = 0; i < gradients_that_came; ++bit) {
    if (!(came >> bit & 1)) continue;
    const bool of_output = layout.has_time && bit == 0;
    const size_t place = bit - layout.has_time;
    if (!of_output && place >= layout.state_widths.size()) refuse();
    const int64_t width = of_output ? layout.output_width : layout.state_widths[place];
    Tensor& gradient = tensors[i++];
    gradient = contiguous(std::move(gradient), 1);
    const bool fits = gradient.torch_type() == given.dtype && gradient.on_cpu() && gradient.dim() == rank;
    if (!fits) refuse();
    const int64_t *sizes = gradient.sizes(), *strides = gradient.strides();
    if (sizes[rank - 1] != width || sizes[rank - 2] != given.batch) refuse();
    if (rank == 3 && sizes[0] != (of_output ? given.steps : 1)) refuse();
    const rnncc_tensor described = {gradient.data(), of_output ? strides[0] : 0, strides[rank - 2], given.type};
    (of_output ? d_sequences[layout.output] : d_final[place]) = described;
  }

  Tensor d_x = needs & 1 ? empty(sizes_of(given.x()), given.dtype, the_cpu) : Tensor();
  std::vector<Tensor> gradients(parameters), d_given;
  bool needs_stream = bool(d_x);
  for (int64_t i = 0; i < parameters; ++i) {
    if (!(needs >> (1 + i) & 1)) continue;
    const int64_t rows = layout.shapes[2 * i], columns = layout.shapes[2 * i + 1];
    const bool is_summed = i > 0 && !layout.is_read_by_loop(i) && !is_one_bias(layout);
    gradients[i] = columns >= 0 ? empty({rows, columns}, given.dtype, the_cpu)
                   : is_summed  ? zeros(rows, given.dtype, given.item())
                                : empty({rows}, given.dtype, the_cpu);
    bool of_stream = i == 0;
    for (const Bias& bias : layout.biases) of_stream = of_stream || bias.parameter == i;
    needs_stream = needs_stream || of_stream;
  }
  Tensor d_stream = needs_stream ? empty({given.rows() * layout.columns()}, given.dtype, the_cpu) : Tensor();
  void* const d_stream_data = needs_stream ? d_stream.data() : nullptr;
  rnncc_tensor* d_streams = table.data() + table.size();
  column = 0;
  for (int64_t width : layout.stream_widths) {
    table.push_back(needs_stream ? given.rows_at(d_stream_data, column, layout.columns())
                                 : rnncc_tensor{nullptr, 0, 0, given.type});
    column += width;
  }
  rnncc_tensor* d_weights = table.data() + table.size();
  for (int64_t i : layout.loop_weights)
    table.push_back({gradients[i] ? gradients[i].data() : nullptr, 0, 0, given.type});
  rnncc_tensor* d_states = table.data() + table.size();
  for (int32_t i = 0; i < segment.states; ++i) {
    const int64_t width = layout.state_widths[i];
    const bool needed = with_states && (needs >> (1 + parameters + i) & 1);
    if (needed) d_given.push_back(empty(given.state_shape(width), given.dtype, the_cpu));
    table.push_back({needed ? d_given.back().data() : nullptr, 0, width, given.type});
  }
  const rnncc_backward_call call = {given.steps,      given.batch, layout.heads, layout.sizes.data(),
                                    constants.data(), false,       table.data(), weights,
                                    states,           saved,       d_sequences,  d_final,
                                    d_streams,        d_weights,   d_states,     nullptr,
                                    given.rows(),     nullptr};
  finish(segment.name, segment.plain.backward(&call));
  if (needs_stream) product_gradients(given, d_stream_data, d_x, gradients);
  std::vector<Tensor> made;
  if (d_x) made.push_back(std::move(d_x));
  for (Tensor& gradient : gradients)
    if (gradient) made.push_back(std::move(gradient));
  std::move(d_given.begin(), d_given.end(), std::back_inserter(made));
  stack[0] = give(std::move(made));
}

// The op `pack`: returns a weight [rows, columns] as products read it (core/linear_call.h). Given are the weight, and of
// how many members it consists, with as many rows each. The caller keeps the result.
inline void run_pack(StableValue* stack) {
  const Tensor weight(reinterpret_cast<TensorHandle>(stack[0]));
  const int64_t members = int64_t(stack[1]);
  if (weight.dim() != 2 || members < 1 || weight.sizes()[0] % members != 0 || weight.elements() == 0)
    fail("pack: a weight " + shape_text(weight) + " has not " + std::to_string(members) + " members");
  const Tensor rows = contiguous(alias(weight), 2);
  const int64_t columns = weight.sizes()[1];
  int64_t elements = 0;
  rnncc_pack_call call = {weight.sizes()[0], columns,  members, {rows.data(), columns, rows.dtype()},
                          nullptr,           &elements};
  finish("pack", rnncc_pack(&call));
  Tensor packed = empty({elements}, weight.torch_type(), the_cpu);
  call.packed = packed.data();
  finish("pack", rnncc_pack(&call));
  stack[0] = give(std::move(packed));
}

}  // namespace rnncc
