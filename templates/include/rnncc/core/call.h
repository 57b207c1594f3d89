// The structures that the binding fills and every CPU kernel reads. Plain data; no torch, no C++ library.
#pragma once

#include <cstdint>

enum rnncc_dtype : int32_t { RNNCC_FLOAT32 = 0, RNNCC_FLOAT64 = 1, RNNCC_BFLOAT16 = 2, RNNCC_FLOAT16 = 3 };

// A tensor [T, B, width] (streams, sequences, saved), [B, width] (states; `step` unused) or a contiguous weight.
// Strides are in elements; units are contiguous. `data` is null where the tensor was not given or is not wanted.
struct rnncc_tensor {
  void* data;
  int64_t step;
  int64_t column;
  rnncc_dtype dtype;
};

// `starts` is of packed tensors, [rows, width] in place of [T, B, width]; null where all columns have all steps.
// On the CPU, [T + 1]: rows lie step by step. Those of step t begin at starts[t], n of them, of the first n columns; n never
// grows from a step to the next.
// On a GPU, [B + 1], in its memory: rows lie column by column. Those of column b begin at starts[b], one a step, T at most.
//
// `lengths` [B], on a GPU, in its memory: steps of each column of tensors that are not packed; null: T. The second mask stream
// has no data there, nor the first one where there are no resets.

// One run of a segment's loop. Arrays are in the order of the segment's streams, weights, states, sequences and of the
// adjoint's saved values followed by its saved states.
struct rnncc_forward_call {
  int64_t steps;    // T
  int64_t columns;  // B
  int64_t heads;
  const int64_t* sizes;     // I, H, then the cell's declared dims in order
  const double* constants;  // in the segment's order
  bool reverse;             // run t from T-1 down to 0
  const rnncc_tensor* streams;
  const rnncc_tensor* weights;
  const rnncc_tensor* states;  // initial states
  rnncc_tensor* sequences;     // data null where not returned
  rnncc_tensor* final_states;
  rnncc_tensor* saved;  // data null in inference
  const int64_t* starts;
  int64_t rows;  // T * B, or those of packed tensors
  const int64_t* lengths;
};

struct rnncc_backward_call {
  int64_t steps;
  int64_t columns;
  int64_t heads;
  const int64_t* sizes;
  const double* constants;
  bool reverse;
  const rnncc_tensor* streams;
  const rnncc_tensor* weights;
  const rnncc_tensor* states;
  const rnncc_tensor* saved;
  const rnncc_tensor* d_sequences;  // data null where no gradient came
  const rnncc_tensor* d_final;      // the same
  rnncc_tensor* d_streams;          // data null where no gradient is needed
  rnncc_tensor* d_weights;          // the same
  rnncc_tensor* d_states;           // the same
  const int64_t* starts;
  int64_t rows;  // T * B, or those of packed tensors
  const int64_t* lengths;
};
