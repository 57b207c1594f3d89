// In place of rnncc/cuda/scalar.cuh: element types and tensor cores on a CPU.
#pragma once

#include "device.h"

#define RNNCC_DEVICE inline

namespace rnncc {

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
inline float to_float(float16 x) {
  _Float16 y;
  memcpy(&y, &x.bits, 2);
  return float(y);
}

template <class S>
inline S from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
// To the nearest, and of two equally near the even one.
template <>
inline bfloat16 from_float<bfloat16>(float x) {
  const uint32_t bits = __float_as_uint(x);
  return {uint16_t(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <>
inline float16 from_float<float16>(float x) {
  const _Float16 y = _Float16(x);
  float16 z;
  memcpy(&z.bits, &y, 2);
  return x != x ? float16{0x7fff} : z;
}

// NaN if either is.
inline float maximum(float a, float b) { return a != a || a > b ? a : b; }
inline float minimum(float a, float b) { return a != a || a < b ? a : b; }

// Element `half` of a word of two.
template <class S>
inline float element(uint32_t word, int half) {
  return to_float(S{uint16_t(word >> 16 * half)});
}

// mma.m16n8k16, row by column (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane l has rows l / 4 and l / 4 + 8 of a,
// and column l / 4 of b.
template <class S>
inline void multiply_add(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  struct Fragments {
    uint32_t a[4], b[2];
  };
  const Fragments own = {{a0, a1, a2, a3}, {b0, b1}};
  emulated::exchange(own, 0);
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, upper = i / 2, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int quarter = k % 8 / 2, late = k / 8;
      const uint32_t a = emulated::of_lane<Fragments>(row * 4 + quarter).a[late * 2 + upper];
      const uint32_t b = emulated::of_lane<Fragments>(column * 4 + quarter).b[late];
      c[i] += element<S>(a, k % 2) * element<S>(b, k % 2);
    }
  }
}

}  // namespace rnncc
