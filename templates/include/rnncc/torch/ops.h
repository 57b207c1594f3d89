// The tables of a package's segments and ops, and the functions that take them. These are compiled once for all
// packages (_core_binding.cpp).
#pragma once

#include "../core/call.h"
#include "schema.h"
#include "shim.h"

typedef int32_t (*rnncc_forward_function)(const rnncc_forward_call*);
typedef int32_t (*rnncc_backward_function)(const rnncc_backward_call*);
// These run `count` directions of a layer on the GPU of index `device`. The directions differ in their tensors and in
// `reverse` alone. They throw.
typedef bool (*rnncc_device_single_function)(const rnncc_single_question*);
typedef void (*rnncc_device_forward_function)(const rnncc_forward_call*, int32_t count, int32_t device);
typedef void (*rnncc_device_backward_function)(const rnncc_backward_call*, int32_t count, int32_t device);
typedef void (*rnncc_size_function)(const int64_t* sizes, int64_t heads, int64_t* result);

// One loop of a segment: the plain one, or the masked one with its two mask streams. These stand last and are not
// counted here. On a GPU they may have no data (call.h).
struct rnncc_loop {
  int32_t weights;  // learned initial states are weights too, but only of the masked loop
  int32_t saved;
  const int32_t* saved_sequence;  // for each saved tensor: the sequence that holds the same values, or -1
  const int32_t* saved_state;     // for each saved tensor: the state whose sequence it is, or -1
  const bool* saved_rounded;      // for each saved tensor: whether it has the streams' dtype on a GPU
  bool borders;                   // whether a CPU keeps states at borders alone (borders.h)
  rnncc_size_function weight_elements;
  rnncc_size_function saved_widths;
  rnncc_forward_function forward;
  rnncc_backward_function backward;
  rnncc_device_forward_function device_forward;  // these are null without GPU kernels
  rnncc_device_backward_function device_backward;
  rnncc_device_single_function device_single;  // of the plain loop alone
};

struct rnncc_segment {
  const char* name;
  int32_t sizes, constants, streams, states, sequences;
  bool clips;  // whether a bound on the recurrent gradient may follow the constants
  // In a single step the last streams may be inputs themselves: x, and so many further ones.
  bool reads_x;
  int32_t further;
  rnncc_size_function stream_widths;
  rnncc_size_function state_widths;
  rnncc_size_function sequence_widths;
  rnncc_loop plain, masked;
};

struct rnncc_op {
  const char* name;
  const char* schema;  // without the name
  BoxedKernel kernel;
  BoxedKernel device_kernel;  // for CUDA tensors; null where the op takes none
};

extern "C" {
void rnncc_forward_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_backward_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_whole_forward_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_whole_backward_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_whole_layout_op(const rnncc_segment* segment, StableValue* stack);
// Packages with GPU kernels have these two.
void rnncc_whole_forward_on_gpu_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_whole_backward_on_gpu_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_pack_op(StableValue* stack, uint64_t arguments, uint64_t results);
void rnncc_linear_forward_op(StableValue* stack, uint64_t arguments, uint64_t results);
void rnncc_linear_backward_op(StableValue* stack, uint64_t arguments, uint64_t results);
// Packages with GPU kernels have the first of these, and the others where their layers call them.
void rnncc_permute_rows_op(StableValue* stack, uint64_t arguments, uint64_t results);
void rnncc_head_norm_op(StableValue* stack, uint64_t arguments, uint64_t results);
void rnncc_head_norm_backward_op(StableValue* stack, uint64_t arguments, uint64_t results);
const char* rnncc_register_ops(const rnncc_op* table, int64_t count, const char* space);
}

namespace rnncc {

// A segment's ops as boxed kernels. The template's argument is the segment in the generated table.
template <const rnncc_segment& S>
void forward_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_forward_op(&S, stack);
}

template <const rnncc_segment& S>
void backward_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_backward_op(&S, stack);
}

template <const rnncc_segment& S>
void whole_forward_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_whole_forward_op(&S, stack);
}

template <const rnncc_segment& S>
void whole_backward_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_whole_backward_op(&S, stack);
}

template <const rnncc_segment& S>
void whole_forward_on_gpu_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_whole_forward_on_gpu_op(&S, stack);
}

template <const rnncc_segment& S>
void whole_backward_on_gpu_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_whole_backward_on_gpu_op(&S, stack);
}

template <const rnncc_segment& S>
void whole_layout_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_whole_layout_op(&S, stack);
}

}  // namespace rnncc
