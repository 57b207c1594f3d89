// The ops of a whole layer, or of a single step, on a GPU: as on the CPU (whole_op.h), but torch's own operations make
// the input's product and its gradients, and the loop's choice of kernels is that of the loop's op (cuda/run.h). In a single
// step these products are made with the loop's own (cuda/step_products.h), and so is the input's of a few steps, where it is
// small. Nothing here waits for the GPU.
#pragma once

#include "../cuda/step_products.h"
#include "whole_call.h"

namespace rnncc {

// A parameter's elements, or those of its gradient, from `first` on.
inline Tensor elements(const Whole& given, const Tensor& vector, int64_t first, int64_t count) {
  return over(static_cast<char*>(vector.data()) + first * given.item(), {count}, {1}, given.dtype, given.device);
}

// A matrix whose rows lie so far apart.
inline Tensor rows_over(const Whole& given, const Tensor& memory, int64_t rows, int64_t columns, int64_t row) {
  return over(memory.data(), {rows, columns}, {row, 1}, given.dtype, given.device);
}

// The columns of the streams where one of the biases begins or ends, in order, with the first and the end of all.
inline std::vector<int64_t> edges_of_biases(const Layout& layout) {
  std::vector<int64_t> edges = {0, layout.columns()};
  for (const Bias& part : layout.biases) edges.insert(edges.end(), {part.column, part.column + part.rows});
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

inline bool is_within(int64_t column, const Bias& part) {
  return part.column <= column && column < part.column + part.rows;
}

// The biases of all streams side by side; none where there are none. Those that meet in a column are added in the
// parameters' dtype first, as torch adds them.
inline Tensor all_biases(const Whole& given) {
  const Layout& layout = given.layout;
  if (layout.biases.empty()) return Tensor();
  if (layout.has_one_bias) {
    const Tensor& bias = given.parameter(layout.biases[0].parameter);
    bias.check_memory();
    return alias(bias);
  }
  const std::vector<int64_t> edges = edges_of_biases(layout);
  std::vector<Tensor> pieces;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    const int64_t begin = edges[i], count = edges[i + 1] - begin;
    Tensor sum;
    for (const Bias& part : layout.biases) {
      if (!is_within(begin, part)) continue;
      Tensor own = elements(given, given.parameter(part.parameter), part.row + begin - part.column, count);
      sum = sum ? add(sum, own) : std::move(own);
    }
    if (!sum) {
      sum = given.make({count});
      RNNCC_TORCH(aoti_torch_zero_(sum.get()));
    }
    pieces.push_back(std::move(sum));
  }
  if (pieces.size() == 1) return std::move(pieces[0]);
  return call_aten("aten::cat", "", {give(std::move(pieces)), 0});
}

// What the loop of a single step does besides. To join biases first, and to multiply the input apart, takes longer.
struct SingleStep {
  explicit SingleStep(const Whole& given) {
    if (given.steps != 1) return;
    const Layout& layout = given.layout;
    for (const Bias& part : layout.biases) {
      const Tensor& own = given.parameter(part.parameter);
      own.check_memory();
      biases.push_back({static_cast<const char*>(own.data()) + part.row * given.item(), part.column, part.rows});
    }
    const rnncc_single_question question = {given.batch,         layout.heads,
                                            layout.sizes.data(), layout.stream_widths.data(),
                                            biases.data(),       int64_t(biases.size())};
    is_taken = layout.segment.plain.device_single(&question);
  }

  StepProducts* together() { return is_taken ? &products : nullptr; }

  bool is_taken = false;  // whether the loop adds the biases, and takes the products
  std::vector<rnncc_bias> biases;
  StepProducts products;
};

// The product of the input of a few steps is small where it has no more work and rows than this: in 16 bits, torch's
// tensor cores would save little time on it.
constexpr int64_t MOST_SHORT_WORK = int64_t(1) << 25;
constexpr int64_t MOST_SHORT_ROWS = 2048;

// Adds the input's product and the biases to `products`. False where more biases meet in a column than it takes. A product
// with biases must be small.
inline bool add_input(const Whole& given, const rnncc_tensor& stream, StepProducts& products, bool with_biases) {
  const Layout& layout = given.layout;
  const int64_t inputs = layout.inputs();
  const rnncc_tensor x = {given.x().data(), 0, given.x_row, given.type};
  const auto at = [&](const rnncc_tensor& matrix, int64_t elements) {
    return rnncc_tensor{static_cast<char*>(matrix.data) + elements * given.item(), 0, matrix.entry, given.type};
  };
  const auto edges = with_biases ? edges_of_biases(layout) : std::vector<int64_t>{0, layout.columns()};
  StepProducts made;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    const int64_t begin = edges[i], count = edges[i + 1] - begin;
    Added added;
    int biases = 0;
    for (const Bias& part : layout.biases) {
      if (!with_biases || !is_within(begin, part)) continue;
      if (biases == MOST_ADDED) return false;
      const Tensor& own = given.parameter(part.parameter);
      own.check_memory();
      added.biases[biases++] = static_cast<char*>(own.data()) + (part.row + begin - part.column) * given.item();
    }
    made.add(SmallForm::rows, {given.rows(), count, inputs}, at(stream, begin), x,
             at({given.parameter(0).data(), 0, inputs, given.type}, begin * inputs), added);
  }
  products.append(made);
  return true;
}

// Makes the streams side by side: x weightᵀ, and the biases but for a single step, which adds them itself. A small product
// of a few steps comes into `products` instead, for the loop to make it, and so does any of a single step. There a large one
// is made at once.
inline Tensor product_of_input(const Whole& given, bool is_single, StepProducts& products) {
  const Tensor &x = given.x(), &weight = given.parameter(0);
  x.check_memory();
  weight.check_memory();
  const int64_t rows = given.rows(), columns = given.layout.columns(), inputs = given.layout.inputs();
  const bool is_short = rows <= MOST_SHORT_ROWS && rows * columns * inputs <= MOST_SHORT_WORK;
  if (is_single || (is_short && ProductSize{rows, columns, inputs}.is_small())) {
    std::vector<int64_t> sizes = sizes_of(x);
    sizes.back() = columns;
    Tensor stream = given.make(sizes);
    if (add_input(given, {stream.data(), 0, columns, given.type}, products, !is_single)) {
      products.start(given.device);
      return stream;
    }
  }
  const Tensor bias = all_biases(given);
  // An optional argument points to its value, which torch deletes.
  StableValue* const optional = bias ? new StableValue(share(bias)) : nullptr;
  Tensor made = call_aten("aten::linear", "", {share(x), share(weight), reinterpret_cast<StableValue>(optional)});
  return contiguous(std::move(made), given.layout.rank());
}

// Where the saved values of a training forward lie in the one tensor that it keeps beside the streams. Each begins where
// an allocation of its own could begin, since the choice of a kernel asks how rows are aligned.
struct Kept {
  explicit Kept(const Whole& given) {
    const rnncc_loop& loop = given.layout.segment.plain;
    for (int32_t i = 0; i < loop.saved; ++i) {
      types.push_back(loop.saved_rounded[i] ? given.type : RNNCC_FLOAT32);
      const bool is_output = given.layout.saved_at[i] < 0 && types[i] == given.type;
      places.push_back(is_output ? -1 : bytes);
      const int64_t own = given.rows() * given.layout.saved_widths[i] * dtype_bytes(types[i]);
      if (!is_output) bytes += (own + 255) / 256 * 256;
    }
  }

  // Describes a saved value. `output` describes the layer's output.
  rnncc_tensor at(const Whole& given, int32_t i, const Tensor& kept, const rnncc_tensor& output) const {
    if (places[i] < 0) return output;
    const int64_t width = given.layout.saved_widths[i];
    return {static_cast<char*>(kept.data()) + places[i], given.batch * width, width, types[i]};
  }

  std::vector<rnncc_dtype> types;
  std::vector<int64_t> places;  // in bytes; -1: it is the output
  int64_t bytes = 0;
};

// Whether streams should lie apart: all their rows would begin at multiples of 16 bytes then, and side by side they do
// not. Kernels that take such rows alone are several times quicker. Any row of a number per head will do.
inline bool lie_better_apart(const Whole& given) {
  const Layout& layout = given.layout;
  const auto is_aligned = [&](int64_t elements) { return elements * given.item() % ROW_ALIGNMENT == 0; };
  bool apart = true, together = true;
  for (size_t i = 0; i < layout.stream_columns.size(); ++i) {
    if (layout.stream_widths[i] == layout.heads) continue;
    apart = apart && is_aligned(layout.stream_widths[i]);
    together = together && is_aligned(layout.stream_columns[i]) && is_aligned(layout.columns());
  }
  return apart && !together;
}

// Returns: the output of a layer (none of a single step), the final states, and in training what the backward reads: the
// streams, where it reads them, and the tensor of Kept.
inline void run_whole_forward_on_gpu(const rnncc_segment& segment, StableValue* stack) {
  WholeForward call(segment, stack, true);
  const Layout& layout = call.layout;
  const Whole& given = call.given;
  if (!call.packed.empty() || call.in_place || !call.fits() || (given.steps > 1 && lie_better_apart(given))) {
    stack[0] = give(std::vector<Tensor>());
    return;
  }
  SingleStep single(given);
  Tensor stream = product_of_input(given, single.is_taken, single.products);
  const Kept places(given);
  Tensor kept = call.training ? empty({places.bytes}, aoti_torch_dtype_uint8(), given.device) : Tensor();
  ForwardTables tables(
      call, stream.data(),
      [&](int64_t w) { return rnncc_tensor{given.parameter(layout.loop_weights[w]).data(), 0, 0, given.type}; },
      [&](int32_t i, const rnncc_tensor& output) {
        return call.training ? places.at(given, i, kept, output) : rnncc_tensor{nullptr, 0, 0, RNNCC_FLOAT32};
      });
  rnncc_forward_call run = tables.loop();
  run.biases = single.biases.data();
  run.bias_count = single.is_taken ? int64_t(single.biases.size()) : 0;
  run.products = single.products.is_empty() ? nullptr : &single.products;
  segment.plain.device_forward(&run, 1, given.device.index);
  if (call.training && layout.keeps_streams) tables.made.push_back(std::move(stream));
  if (call.training) tables.made.push_back(std::move(kept));
  stack[0] = give(std::move(tables.made));
}

// Gives the gradients of biases, from those of the streams [rows, columns]. `gradients`: of the parameters, where they
// are needed. A vector that the loop reads has the loop's share already. Any other is not initialised where each element
// is written once, and has zeros where several parts are added to it.
inline void bias_gradients(const Whole& given, const Tensor& d_stream, const std::vector<Tensor>& gradients,
                           StepProducts* together) {
  const Layout& layout = given.layout;
  for (const Bias& part : layout.biases) {
    const Tensor& gradient = gradients[part.parameter];
    if (!gradient) continue;
    if (together) {
      const auto at = [&](const Tensor& t, int64_t element) {
        return static_cast<char*>(t.data()) + element * given.item();
      };
      together->add_sum({at(gradient, part.row), 0, 0, given.type},
                        {at(d_stream, part.column), 0, layout.columns(), given.type}, part.rows, given.rows(),
                        !layout.added_once[part.parameter]);
      continue;
    }
    if (layout.has_one_bias && layout.added_once[part.parameter]) {
      sum_into(gradient, d_stream, {0});
      continue;
    }
    const Tensor columns = over(static_cast<char*>(d_stream.data()) + part.column * given.item(),
                                {given.rows(), part.rows}, {layout.columns(), 1}, given.dtype, given.device);
    const Tensor target = elements(given, gradient, part.row, part.rows);
    if (layout.added_once[part.parameter]) {
      sum_into(target, columns, {0});
      continue;
    }
    const Tensor sum = given.make({part.rows});
    sum_into(sum, columns, {0});
    RNNCC_TORCH(aoti_torch_copy_(target.get(), add(target, sum).get(), 0));
  }
}

// Gives the gradients of the input's product. `together`: gets the products and sums, where the loop makes them.
inline void gradients_of_product(const Whole& given, const Tensor& d_stream, const Tensor& d_x,
                                 const std::vector<Tensor>& gradients, StepProducts* together) {
  const Layout& layout = given.layout;
  const int64_t rows = given.rows(), columns = layout.columns(), inputs = layout.inputs();
  if (together) {
    const auto matrix = [&](const Tensor& t, int64_t row) { return rnncc_tensor{t.data(), 0, row, given.type}; };
    if (d_x)
      together->add(SmallForm::across, {rows, inputs, columns}, matrix(d_x, inputs), matrix(d_stream, columns),
                    matrix(given.parameter(0), inputs));
    if (gradients[0])
      together->add(SmallForm::outer, {columns, inputs, rows}, matrix(gradients[0], inputs), matrix(d_stream, columns),
                    matrix(given.x(), given.x_row));
    return bias_gradients(given, d_stream, gradients, together);
  }
  if (d_x)
    multiply_into(rows_over(given, d_x, rows, inputs, inputs), d_stream,
                  rows_over(given, given.parameter(0), columns, inputs, inputs));
  if (gradients[0])
    multiply_into(gradients[0], over(d_stream.data(), {columns, rows}, {1, columns}, given.dtype, given.device),
                  rows_over(given, given.x(), rows, inputs, given.x_row));
  bias_gradients(given, d_stream, gradients, nullptr);
}

// Makes the gradient of a parameter: zeros where what is computed is added to it, and nothing else writes it first.
inline Tensor make_parameter_gradient(const Whole& given, int64_t i) {
  const Layout& layout = given.layout;
  const int64_t rows = layout.shapes[2 * i], columns = layout.shapes[2 * i + 1];
  if (columns >= 0) return given.make({rows, columns});
  Tensor made = given.make({rows});
  if (!layout.is_read_by_loop(i) && !layout.added_once[i]) RNNCC_TORCH(aoti_torch_zero_(made.get()));
  return made;
}

// Returns the gradients of x, the parameters and the states that are needed.
inline void run_whole_backward_on_gpu(const rnncc_segment& segment, StableValue* stack) {
  WholeBackward call(segment, stack, true);
  const Layout& layout = call.layout;
  Whole& given = call.given;
  const size_t first_kept = given.end(), all = first_kept + layout.keeps_streams + 1 + layout.has_time;
  if (call.tensors.size() != all || !call.fits()) call.refuse();
  const Kept places(given);
  void* stream = nullptr;
  if (layout.keeps_streams) {
    std::vector<int64_t> sizes = sizes_of(given.x());
    sizes.back() = layout.columns();
    stream = call.take_kept(first_kept, given.dtype, sizes).data();
  }
  const Tensor& kept = call.take_kept(first_kept + layout.keeps_streams, aoti_torch_dtype_uint8(), {places.bytes});
  const rnncc_tensor output =
      layout.has_time ? given.rows_at(call.take_output().data(), 0, layout.output_width) : given.nothing();
  BackwardTables tables(
      call, stream, [&](int32_t i) { return places.at(given, i, kept, output); },
      [&](int64_t i) { return make_parameter_gradient(given, i); });
  SingleStep single(given);
  StepProducts* const together = single.together();
  rnncc_backward_call run = tables.loop();
  run.biases = single.biases.data();
  run.bias_count = single.is_taken && stream ? int64_t(single.biases.size()) : 0;
  run.products = together;
  const auto multiply = [&] {
    if (tables.d_stream) gradients_of_product(given, tables.d_stream, tables.d_x, tables.d_parameters, together);
  };
  if (together) multiply();
  segment.plain.device_backward(&run, 1, given.device.index);
  if (!together) multiply();
  stack[0] = give(tables.take_gradients());
}

}  // namespace rnncc
