// Element types of tensors on a GPU: float, and numbers of 16 bits. Kernels load and store the latter, and multiply
// them on tensor cores, and do nothing else with them.
#pragma once

#include "../core/integers.h"

#define RNNCC_DEVICE __device__ __forceinline__

namespace rnncc {

struct bfloat16 {
  uint16_t bits;
};

struct float16 {
  uint16_t bits;
};

RNNCC_DEVICE float to_float(float x) { return x; }
RNNCC_DEVICE float to_float(bfloat16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
RNNCC_DEVICE float to_float(float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

// NaN if either is. One instruction each.
RNNCC_DEVICE float maximum(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
RNNCC_DEVICE float minimum(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

template <class S>
RNNCC_DEVICE S from_float(float x);
template <>
RNNCC_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
RNNCC_DEVICE bfloat16 from_float<bfloat16>(float x) {
  bfloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
RNNCC_DEVICE float16 from_float<float16>(float x) {
  float16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// c += a bᵀ for 16 rows of a, 8 rows of b, and 16 terms.
template <class S>
RNNCC_DEVICE void multiply_add(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                               uint32_t b1);
template <>
RNNCC_DEVICE void multiply_add<bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
RNNCC_DEVICE void multiply_add<float16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                        uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace rnncc
