// What cuda/rows.cuh needs of a GPU, for one thread of a host: in the place of the header of that name.
#pragma once

#include <math.h>
#include <stdint.h>

#include "rnncc/core/tables.h"

#define RNNCC_DEVICE inline

struct Index {
  int x;
};
constexpr Index threadIdx = {0};

// One thread has no other to exchange values with.
inline float __shfl_xor_sync(unsigned, float value, int) { return value; }
inline float __shfl_up_sync(unsigned, float value, int) { return value; }
inline float __shfl_sync(unsigned, float value, int) { return value; }
inline void __syncthreads() {}
inline float __int_as_float(int bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

namespace rnncc {

constexpr int THREADS = 1, WARPS = 1;

template <int slot, class R>
RNNCC_DEVICE float load(const R& run, int, int64_t at) {
  return run.memory[slot][at];
}

template <int slot, class R>
RNNCC_DEVICE void store(const R& run, int, int64_t at, float value) {
  run.memory[slot][at] = value;
}

}  // namespace rnncc
