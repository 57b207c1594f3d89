// Where the tensors of a loop lie, for kernels that are made for one loop. Sets of tensors say which of them are float,
// and more.
#pragma once

#include "../../packed.cuh"

namespace rnncc {

// The sets of a step's tensors that are float. Where Elements are float, all tensors are.
template <class Step>
constexpr uint64_t float_reads = sizeof(typename Step::Element) == 4 ? ~uint64_t(0) : Step::READ_FLOAT;
template <class Step>
constexpr uint64_t float_writes = sizeof(typename Step::Element) == 4 ? ~uint64_t(0) : Step::WRITE_FLOAT;

template <class Step>
constexpr uint64_t row_floats = sizeof(typename Step::Element) == 4 ? ~uint64_t(0) : Step::ROW_FLOAT;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
// Whether a set has member i. A set is a number with one bit per member.
__host__ __device__ constexpr bool has(uint64_t set, int i) { return set >> i & 1; }
// How many members below i a set has. It is no loop, since the compiler must fold it where i counts an unrolled loop.
__host__ __device__ constexpr int count_below(uint64_t set, int i) {
  uint64_t v = set & ((uint64_t(1) << i) - 1);
  v -= v >> 1 & 0x5555555555555555ull;
  v = (v & 0x3333333333333333ull) + (v >> 2 & 0x3333333333333333ull);
  return int((v + (v >> 4) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull >> 56);
}
__host__ __device__ constexpr int at_least_one(int n) { return n > 0 ? n : 1; }

// Element (step, entry, unit) of a tensor stands at base + step * `step` + row * `entry` bytes + unit elements. `row`
// is the entry's first row (OwnRows), and steps are counted in the loop's order. A null base: the tensor is not wanted,
// or it is all zeros.
struct Place {
  char* base;
  int64_t step, entry;
};

// How many values of a step a batch entry has: those that are read at (t, entry), in a masked loop whether the step is
// the entry's own, and in some loops the head_dim.
template <class Step>
constexpr int row_values = at_least_one(Step::ROW_VALUES);

// The rows of an entry of a FusedCall or ScanCall.
template <class Step, class Call>
RNNCC_DEVICE OwnRows own_rows(const Call& call, bool descending, int entry) {
  if constexpr (Step::MASKED) return own_rows(call.extents, call.steps, descending, entry);
  return {entry, call.steps, 0, call.steps};
}

// A tensor [B, H] or [H]. `entry`: bytes from an entry to the next. Elements have 16 bits unless `is_float`.
struct Edge {
  char* base;
  int64_t entry;
  int32_t is_float, unused;
};

template <class E>
RNNCC_DEVICE float take(const Edge& edge, int64_t entry, int64_t unit) {
  if (!edge.base) return 0.0f;
  const char* const at = edge.base + entry * edge.entry;
  return edge.is_float ? reinterpret_cast<const float*>(at)[unit] : to_float(reinterpret_cast<const E*>(at)[unit]);
}
template <class E>
RNNCC_DEVICE void put(const Edge& edge, int64_t entry, int64_t unit, float value) {
  if (!edge.base) return;
  char* const at = edge.base + entry * edge.entry;
  if (edge.is_float)
    reinterpret_cast<float*>(at)[unit] = value;
  else
    reinterpret_cast<E*>(at)[unit] = from_float<E>(value);
}

}  // namespace rnncc
