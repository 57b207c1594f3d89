// The op `linear`: y = x Wᵀ + b over the last dimension of x, and its gradients, as boxed kernels.
#pragma once

#include "../core/linear_call.h"
#include "tensor.h"

namespace rnncc {

// A tensor [..., n] as rows of n contiguous elements. It is copied where its rows are not evenly spaced.
inline rnncc_matrix rows_of(Tensor& tensor, const char* what) {
  if (!tensor.on_cpu()) fail(std::string("linear: ") + what + " is not on the CPU");
  const int64_t rank = tensor.dim();
  tensor = contiguous(std::move(tensor), rank == 2 ? 1 : rank);
  return {tensor.data(), rank == 2 ? tensor.strides()[0] : tensor.sizes()[rank - 1], tensor.dtype()};
}

inline rnncc_matrix vector_of(Tensor& tensor) {
  tensor = contiguous(std::move(tensor), 1);
  return {tensor.data(), 0, tensor.dtype()};
}

constexpr rnncc_matrix no_matrix = {nullptr, 0, RNNCC_FLOAT32};

struct LinearShape {
  int64_t rows, inputs, outputs;
};

inline LinearShape linear_shape(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const int64_t rank = x.dim();
  if (rank < 1 || weight.dim() != 2 || weight.sizes()[1] != x.sizes()[rank - 1])
    fail("linear: x " + shape_text(x) + " and weight " + shape_text(weight) + " do not fit");
  if (bias && sizes_of(bias) != std::vector<int64_t>{weight.sizes()[0]})
    fail("linear: bias " + shape_text(bias) + " does not fit weight " + shape_text(weight));
  // As in torch, mixed dtypes are a mistake of the caller's.
  if (weight.dtype() != x.dtype() || (bias && bias.dtype() != x.dtype()))
    fail("linear: x, weight and bias must have the same dtype");
  // Rows are counted by a product, not by a division: x may have no columns.
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < rank; ++i) rows *= x.sizes()[i];
  return {rows, weight.sizes()[1], weight.sizes()[0]};
}

inline void run_linear_forward(StableValue* stack) {
  Tensor x(reinterpret_cast<TensorHandle>(stack[0]));
  Tensor weight(reinterpret_cast<TensorHandle>(stack[1]));
  Tensor bias = take_optional(stack[2]);
  const LinearShape shape = linear_shape(x, weight, bias);
  std::vector<int64_t> sizes = sizes_of(x);
  sizes.back() = shape.outputs;
  Tensor y = empty(sizes, x.torch_type(), x.device());
  if (y.elements() > 0) {
    const rnncc_linear_call call = {
        .rows = shape.rows,
        .inputs = shape.inputs,
        .outputs = shape.outputs,
        .x = rows_of(x, "x"),
        .weight = rows_of(weight, "weight"),
        .bias = bias ? vector_of(bias) : no_matrix,
        .y = rows_of(y, "y"),
    };
    finish("linear", rnncc_linear_forward(&call));
  }
  stack[0] = give(std::move(y));
}

// (Tensor d_y, Tensor x, Tensor weight, bool[] needs) -> Tensor[]. Returns those of d_x, d_weight and d_bias that are
// needed.
inline void run_linear_backward(StableValue* stack) {
  Tensor d_y(reinterpret_cast<TensorHandle>(stack[0]));
  Tensor x(reinterpret_cast<TensorHandle>(stack[1]));
  Tensor weight(reinterpret_cast<TensorHandle>(stack[2]));
  const std::vector<bool> needs = take_bools(stack[3]);
  const LinearShape shape = linear_shape(x, weight, Tensor());
  std::vector<int64_t> expected = sizes_of(x);
  expected.back() = shape.outputs;
  if (d_y.dtype() != x.dtype()) fail("linear: x and the gradient must have the same dtype");
  if (sizes_of(d_y) != expected || needs.size() != 3) fail("linear: the gradient " + shape_text(d_y) + " does not fit");
  std::vector<Tensor> made;
  if (needs[0]) made.push_back(empty(sizes_of(x), x.torch_type(), x.device()));
  if (needs[1]) made.push_back(empty(sizes_of(weight), weight.torch_type(), x.device()));
  if (needs[2]) made.push_back(empty({shape.outputs}, weight.torch_type(), x.device()));
  if (d_y.elements() == 0) {
    for (Tensor& tensor : made) RNNCC_TORCH(aoti_torch_zero_(tensor.get()));
  } else if (!made.empty()) {
    size_t next = 0;
    rnncc_linear_backward_call call = {
        .rows = shape.rows,
        .inputs = shape.inputs,
        .outputs = shape.outputs,
        .x = rows_of(x, "x"),
        .weight = rows_of(weight, "weight"),
        .d_y = rows_of(d_y, "the gradient"),
        .d_x = no_matrix,
        .d_weight = no_matrix,
        .d_bias = no_matrix,
    };
    if (needs[0]) call.d_x = rows_of(made[next++], "d_x");
    if (needs[1]) call.d_weight = rows_of(made[next++], "d_weight");
    if (needs[2]) call.d_bias = vector_of(made[next]);
    finish("linear", rnncc_linear_backward(&call));
  }
  stack[0] = give(std::move(made));
}

}  // namespace rnncc
