// The tables of a package's segments and ops, and what takes them: one object file for all packages (_core_binding.cpp).
#pragma once

#include "../core/call.h"
#include "schema.h"
#include "shim.h"

typedef int32_t (*rnncc_forward_function)(const rnncc_forward_call*);
typedef int32_t (*rnncc_backward_function)(const rnncc_backward_call*);
// `count` directions of a layer, alike in all but their tensors and `reverse`, on a GPU, by its index; these throw.
typedef void (*rnncc_device_forward_function)(const rnncc_forward_call*, int32_t count, int32_t device);
typedef void (*rnncc_device_backward_function)(const rnncc_backward_call*, int32_t count, int32_t device);
typedef void (*rnncc_size_function)(const int64_t* sizes, int64_t heads, int64_t* result);

// One loop of a segment: plain, or with the two mask streams, which stand last and are not counted here (on a GPU they may have
// no data, call.h).
struct rnncc_loop {
  int32_t weights;  // the masked loop also reads the learned initial states
  int32_t saved;
  const int32_t* saved_sequence;  // for each saved tensor: the sequence that holds the same values, or -1
  const int32_t* saved_state;     // for each saved tensor: the state that it is the sequence of, or -1
  const bool* saved_rounded;      // for each: whether a GPU keeps it in the streams' dtype
  rnncc_size_function weight_elements;
  rnncc_size_function saved_widths;
  rnncc_forward_function forward;
  rnncc_backward_function backward;
  rnncc_device_forward_function device_forward;  // null without GPU kernels, both
  rnncc_device_backward_function device_backward;
};

struct rnncc_segment {
  const char* name;
  int32_t sizes, constants, streams, states, sequences;
  bool clips;  // whether a bound on what products hand back to earlier values of states may follow the constants
  rnncc_size_function stream_widths;
  rnncc_size_function state_widths;
  rnncc_size_function sequence_widths;
  rnncc_loop plain, masked;
};

struct rnncc_op {
  const char* name;
  const char* schema;  // without the name
  BoxedKernel kernel;
  bool on_device;  // the kernel takes CUDA tensors too
};

extern "C" {
void rnncc_forward_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_backward_op(const rnncc_segment* segment, StableValue* stack);
void rnncc_linear_forward_op(StableValue* stack, uint64_t arguments, uint64_t results);
void rnncc_linear_backward_op(StableValue* stack, uint64_t arguments, uint64_t results);
void rnncc_permute_rows_op(StableValue* stack, uint64_t arguments, uint64_t results);  // with GPU kernels
const char* rnncc_register_ops(const rnncc_op* table, int64_t count, const char* space);
}

namespace rnncc {

// A segment's ops as boxed kernels; the name of what the generated table holds is the template's argument.
template <const rnncc_segment& S>
void forward_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_forward_op(&S, stack);
}

template <const rnncc_segment& S>
void backward_op(StableValue* stack, uint64_t, uint64_t) {
  rnncc_backward_op(&S, stack);
}

}  // namespace rnncc
