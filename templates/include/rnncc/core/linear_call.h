// What the binding fills for the product of inputs with a weight, y = x Wᵀ + b, and for its gradients. Plain data.
#pragma once

#include "call.h"

// Rows of contiguous elements, `row` elements apart; a vector (bias) does not use `row`. `data` is null where the
// matrix was not given or is not wanted.
struct rnncc_matrix {
  void* data;
  int64_t row;
  rnncc_dtype dtype;
};

// y[rows, outputs] = x[rows, inputs] weight[outputs, inputs]ᵀ + bias[outputs]. `packed`: what rnncc_pack made of the
// weight, as one member, or null. Only a loop that makes its streams reads it.
struct rnncc_linear_call {
  int64_t rows, inputs, outputs;
  rnncc_matrix x, weight, bias, y;
  const void* packed;
};

// What a call's `products` are on the CPU: the product that makes the first `streams` streams of the loop, which lie side by
// side in y. `columns` has the first column of each. Where y has no data, nobody but the loop reads them, and these streams
// of the call have no data either; else y has the type that the loop computes in. The loop runs from the first step to the
// last.
struct rnncc_stream_product {
  rnncc_linear_call product;
  int64_t streams;
  const int64_t* columns;
};

// Packs a weight [rows, columns] as factors of products with its transpose: `members` of them lie below each other, with
// as many rows each. `packed` has `elements`; where it is null, `elements` is set.
struct rnncc_pack_call {
  int64_t rows, columns, members;
  rnncc_matrix weight;
  void* packed;
  int64_t* elements;
};

// d_x = d_y weight, d_weight = d_yᵀ x, d_bias = sum of d_y's rows; each is overwritten.
struct rnncc_linear_backward_call {
  int64_t rows, inputs, outputs;
  rnncc_matrix x, weight, d_y, d_x, d_weight, d_bias;
};

// These compute in double where x (d_y) is float64, else in float. They return 0, or what went wrong: 1 out of memory; 2
// a dtype that is not taken; 3 torch could not run the threads; 4 there is no code for this processor.
extern "C" {
__attribute__((visibility("default"))) int32_t rnncc_linear_forward(const rnncc_linear_call* call);
__attribute__((visibility("default"))) int32_t rnncc_linear_backward(const rnncc_linear_backward_call* call);
__attribute__((visibility("default"))) int32_t rnncc_pack(const rnncc_pack_call* call);
}
