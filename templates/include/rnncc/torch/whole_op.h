// The ops of a whole layer, or of a single step: the product of its input and its loop, in one direction, on the CPU. A
// call of few steps is as fast as what surrounds its arithmetic. So these make one call of the dispatcher, check each
// tensor once, and allocate what they return and little more.
//
// The schemas (schema.h) say what is given. A call that does not fit returns no tensors, and the caller then goes the
// long way, whose messages say what is wrong.
#pragma once

#include "linear_op.h"
#include "whole_call.h"

namespace rnncc {

inline const Device the_cpu = {aoti_torch_device_type_cpu(), 0};

// A number as torch keeps it in bfloat16.
struct BFloat16 {
  uint16_t bits;

  operator float() const {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    __builtin_memcpy(&value, &wide, sizeof value);
    return value;
  }
};

// Numbers of a vector, from `first` on.
struct Numbers {
  const Tensor& tensor;
  int64_t first;
};

// Adds n numbers. They have one dtype, or bfloat16 is added to float32.
inline void add_numbers(const Numbers& to, const Numbers& from, int64_t n) {
  const auto add = [&](auto* target, const auto* source) {
    for (int64_t i = 0; i < n; ++i) target[to.first + i] += source[from.first + i];
  };
  void* target = to.tensor.data();
  const void* source = from.tensor.data();
  if (to.tensor.dtype() == RNNCC_FLOAT64)
    add(static_cast<double*>(target), static_cast<const double*>(source));
  else if (from.tensor.dtype() == RNNCC_BFLOAT16)
    add(static_cast<float*>(target), static_cast<const BFloat16*>(source));
  else
    add(static_cast<float*>(target), static_cast<const float*>(source));
}

inline Tensor zeros(Tensor made) {
  __builtin_memset(made.data(), 0, size_t(made.elements() * dtype_bytes(made.dtype())));
  return made;
}

inline rnncc_matrix x_rows(const Whole& given) { return {given.x().data(), given.x_row, given.type}; }
inline rnncc_matrix weight_of(const Whole& given) {
  return {given.parameter(0).data(), given.layout.inputs(), given.type};
}

// A tensor of saved values, which lie one after the other in memory.
inline rnncc_tensor saved_at(const Whole& given, void* data, int64_t column, int64_t width) {
  return {static_cast<char*>(data) + column * given.rows() * given.item(), given.batch * width, width, given.type};
}

// Makes the sum of the biases, where there are several.
inline Tensor sum_of_biases(const Whole& given) {
  const Layout& layout = given.layout;
  if (layout.has_one_bias || layout.biases.empty()) return Tensor();
  const int64_t columns = layout.columns();
  Tensor sum = zeros(given.item() == 2 ? empty({columns}, aoti_torch_dtype_float32(), the_cpu) : given.make({columns}));
  for (const Bias& part : layout.biases)
    add_numbers({sum, part.column}, {given.parameter(part.parameter), part.row}, part.rows);
  return sum;
}

// The product that makes the streams side by side: x weightᵀ and the biases.
inline rnncc_linear_call input_product(const Whole& given, const Tensor& sum, const void* packed, void* stream) {
  const Layout& layout = given.layout;
  rnncc_matrix bias = no_matrix;
  if (sum)
    bias = {sum.data(), 0, sum.dtype()};
  else if (layout.has_one_bias)
    bias = {given.parameter(layout.biases[0].parameter).data(), 0, given.type};
  return {
      .rows = given.rows(),
      .inputs = layout.inputs(),
      .outputs = layout.columns(),
      .x = x_rows(given),
      .weight = weight_of(given),
      .bias = bias,
      .y = {stream, layout.columns(), given.type},
      .packed = packed,
  };
}

// Returns: the output of a layer (none of a single step), the final states, and in training what the backward reads.
inline void run_whole_forward(const rnncc_segment& segment, StableValue* stack) {
  WholeForward call(segment, stack, false);
  const Layout& layout = call.layout;
  const Whole& given = call.given;
  const std::vector<Tensor>& packed = call.packed;
  // What a backward reads has more bits than bfloat16.
  if (!call.fits() || (call.training && given.item() == 2)) {
    stack[0] = give(std::vector<Tensor>());
    return;
  }
  const bool is_frozen = packed.size() == 1 + layout.loop_weights.size();
  for (size_t i = 0; i < packed.size(); ++i)
    if (!is_frozen || packed[i].torch_type() != given.dtype || !packed[i].on_cpu()) fail("other packed weights");
  Tensor kept = call.training ? given.make({given.rows() * layout.saved_width}) : Tensor();
  void* const stream = call.training && layout.keeps_streams ? kept.data() : nullptr;
  const Tensor bias = sum_of_biases(given);
  const rnncc_stream_product product = {
      input_product(given, bias, is_frozen ? packed[0].data() : nullptr, stream),
      layout.product_streams(),
      layout.stream_columns.data(),
  };

  ForwardTables tables(
      call, stream,
      [&](int64_t w) {
        // `entry` says that a weight is packed (cpu/run.h). A weight that cannot be is represented by no elements.
        const bool is_packed = is_frozen && packed[1 + w].elements() > 0;
        const Tensor& weight = is_packed ? packed[1 + w] : given.parameter(layout.loop_weights[w]);
        return rnncc_tensor{weight.data(), 0, is_packed, given.type};
      },
      [&](int32_t i, const rnncc_tensor& output) {
        if (!call.training) return given.nothing();
        const int64_t place = layout.saved_at[i];
        return place >= 0 ? saved_at(given, kept.data(), place, layout.saved_widths[i]) : output;
      });
  rnncc_forward_call run = tables.loop();
  run.products = &product;
  finish(segment.name, segment.plain.forward(&run));
  if (call.training) tables.made.push_back(std::move(kept));
  stack[0] = give(std::move(tables.made));
}

// Gives the gradients of the input's product, from those of its streams. `gradients`: of the parameters, where they are
// needed, with the share that the loop has in them.
inline void product_gradients(const Whole& given, void* d_stream, const Tensor& d_x, std::vector<Tensor>& gradients) {
  const Layout& layout = given.layout;
  bool needs_bias = false;
  for (const Bias& bias : layout.biases) needs_bias = needs_bias || gradients[bias.parameter];
  const bool in_place = needs_bias && layout.has_one_bias && !layout.is_read_by_loop(layout.biases[0].parameter);
  Tensor sum = needs_bias && !in_place ? given.make({layout.columns()}) : Tensor();
  const Tensor& d_bias = in_place ? gradients[layout.biases[0].parameter] : sum;
  const auto matrix = [&](const Tensor& tensor, int64_t row) {
    return tensor ? rnncc_matrix{tensor.data(), row, given.type} : no_matrix;
  };
  const rnncc_linear_backward_call call = {
      .rows = given.rows(),
      .inputs = layout.inputs(),
      .outputs = layout.columns(),
      .x = x_rows(given),
      .weight = weight_of(given),
      .d_y = {d_stream, layout.columns(), given.type},
      .d_x = matrix(d_x, layout.inputs()),
      .d_weight = matrix(gradients[0], layout.inputs()),
      .d_bias = matrix(d_bias, 0),
  };
  if (call.d_x.data || call.d_weight.data || call.d_bias.data) finish("linear", rnncc_linear_backward(&call));
  for (const Bias& bias : layout.biases) {
    if (!sum || !gradients[bias.parameter]) continue;
    add_numbers({gradients[bias.parameter], bias.row}, {sum, bias.column}, bias.rows);
  }
}

// Returns the gradients of x, the parameters and the states that are needed.
inline void run_whole_backward(const rnncc_segment& segment, StableValue* stack) {
  WholeBackward call(segment, stack, false);
  const Layout& layout = call.layout;
  Whole& given = call.given;
  const size_t first_kept = given.end();
  if (call.tensors.size() != first_kept + 1 + layout.has_time || !call.fits() || given.item() == 2) call.refuse();
  const Tensor& kept = call.take_kept(first_kept, given.dtype, {given.rows() * layout.saved_width});
  const rnncc_tensor output =
      layout.has_time ? given.rows_at(call.take_output().data(), 0, layout.output_width) : given.nothing();
  BackwardTables tables(
      call, layout.keeps_streams ? kept.data() : nullptr,
      [&](int32_t i) {
        const int64_t place = layout.saved_at[i];
        return place >= 0 ? saved_at(given, kept.data(), place, layout.saved_widths[i]) : output;
      },
      [&](int64_t i) {
        const int64_t rows = layout.shapes[2 * i], columns = layout.shapes[2 * i + 1];
        const bool is_summed = i > 0 && !layout.is_read_by_loop(i) && !layout.has_one_bias;
        return columns >= 0 ? given.make({rows, columns}) : is_summed ? zeros(given.make({rows})) : given.make({rows});
      });
  const rnncc_backward_call run = tables.loop();
  finish(segment.name, segment.plain.backward(&run));
  if (tables.d_stream) product_gradients(given, tables.d_stream.data(), tables.d_x, tables.d_parameters);
  stack[0] = give(tables.take_gradients());
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
