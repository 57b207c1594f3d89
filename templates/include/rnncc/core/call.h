// The structures that the binding fills and every CPU kernel reads. Plain data; no torch, no C++ library.
#pragma once

#include "integers.h"

enum rnncc_dtype : int32_t { RNNCC_FLOAT32 = 0, RNNCC_FLOAT64 = 1, RNNCC_BFLOAT16 = 2, RNNCC_FLOAT16 = 3 };

// A tensor [T, B, width] (streams, sequences, saved), [B, width] (states; `step` unused) or a contiguous weight. `step`
// and `entry` are strides in elements, from one step and from one batch entry to the next; units are contiguous. `data`
// is null where the tensor was not given or is not wanted.
struct rnncc_tensor {
  void* data;
  int64_t step;
  int64_t entry;
  rnncc_dtype dtype;
};

// A row is what a tensor holds of one batch entry at one step.
//
// `starts` belongs to packed tensors, which are [rows, width] in place of [T, B, width]. It is null where all entries
// have all steps. On the CPU it is [T + 1], and rows lie step by step. The rows of step t begin at starts[t]. There are
// n of them, and they belong to the first n entries; n never grows from a step to the next. On a GPU it is [B + 1], in
// the GPU's memory, and rows lie entry by entry. The rows of entry b begin at starts[b]. There is one per step, and T
// at most.
//
// `lengths` [B] is used on a GPU alone, and lies in its memory. It holds the steps of each entry of tensors that are
// not packed; where it is null, each entry has T. On a GPU the second mask stream never has data, and the first one has
// none where there are no resets.

// Numbers that are added to columns [column, column + rows) of the streams, which lie side by side in one tensor. A GPU's
// loop gets them apart (`biases`, of which there are `bias_count`) where it said that it adds them. They have the streams'
// type.
struct rnncc_bias {
  const void* data;
  int64_t column;
  int64_t rows;
};

// Asks a GPU's loop whether it adds these biases, and takes the products of the input (`products` of a call), in calls of
// one step.
struct rnncc_single_question {
  int64_t batch;
  int64_t heads;
  const int64_t* sizes;
  const int64_t* stream_widths;
  const rnncc_bias* biases;
  int64_t bias_count;
};

// One run of a segment's loop. Arrays are in the order of the segment's streams, weights, states and sequences. `saved`
// has the adjoint's saved values and then its saved states.
struct rnncc_forward_call {
  int64_t steps;  // T
  int64_t batch;  // B
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
  int64_t rows;  // T * B, or as many as packed tensors have
  const int64_t* lengths;
  const rnncc_bias* biases;
  int64_t bias_count;
  const void* products;  // rnncc::StepProducts that a GPU makes before the loop; null: none
};

struct rnncc_backward_call {
  int64_t steps;
  int64_t batch;
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
  int64_t rows;  // T * B, or as many as packed tensors have
  const int64_t* lengths;
  const rnncc_bias* biases;
  int64_t bias_count;
  const void* products;  // the same, after the loop
};
