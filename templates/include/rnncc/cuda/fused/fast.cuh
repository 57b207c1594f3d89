// Elementwise functions of the fused kernels: math.cuh's, but where tensors are 16-bit sigmoid and what is made of the
// exponential by short instruction sequences. bfloat16 keeps 8 bits, so the hardware's tanh (relative error 2^-11) will
// do; float16 keeps 11 and gets 2^-20.
#pragma once

#include "../math.cuh"

namespace rnncc {

RNNCC_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

RNNCC_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log(1 + e), 0 <= e <= 1. Near zero 1 + e rounds: there, the series.
RNNCC_DEVICE float log1p_fast(float e) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + e));
  return e < 0.01f ? e * fmaf(e, -0.5f, 1.0f) : 0.69314718f * y;
}

// What serves both 16-bit dtypes.
struct Fast16 {
  RNNCC_DEVICE static float exp(float x) { return exp2_fast(1.4426950408889634f * x); }
  RNNCC_DEVICE static float softplus(float x) { return x > 20.0f ? x : (x > 0.0f ? x : 0.0f) + log1p_fast(exp(-::fabsf(x))); }
  RNNCC_DEVICE static float logsigmoid(float x) { return (x > 0.0f ? 0.0f : x) - log1p_fast(exp(-::fabsf(x))); }
  // Within 2 ulp over the whole range.
  RNNCC_DEVICE static float divide(float a, float b) {
    float y;
    asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
  }
};

template <class E>
struct Fast;

template <>
struct Fast<float> {
  RNNCC_DEVICE static float tanh(float x) { return rnncc::tanh(x); }
  RNNCC_DEVICE static float sigmoid(float x) { return rnncc::sigmoid(x); }
  RNNCC_DEVICE static float exp(float x) { return rnncc::exp(x); }
  RNNCC_DEVICE static float softplus(float x) { return rnncc::softplus(x); }
  RNNCC_DEVICE static float logsigmoid(float x) { return rnncc::logsigmoid(x); }
  RNNCC_DEVICE static float divide(float a, float b) { return a / b; }
};

template <>
struct Fast<bfloat16> : Fast16 {
  RNNCC_DEVICE static float tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  RNNCC_DEVICE static float sigmoid(float x) { return fmaf(tanh(0.5f * x), 0.5f, 0.5f); }
};

template <>
struct Fast<float16> : Fast16 {
  // Where the exponential overflows, its reciprocal is the 0 that is meant.
  RNNCC_DEVICE static float sigmoid(float x) { return reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * x)); }
  // Near zero the difference cancels: there, the series.
  RNNCC_DEVICE static float tanh(float x) {
    const float a = ::fabsf(x), e = exp2_fast(-2.8853900817779268f * a), square = x * x;
    const float small = a * fmaf(square, fmaf(square, 0.13333333f, -0.33333333f), 1.0f);
    return ::copysignf(a < 0.15f ? small : __fdividef(1.0f - e, 1.0f + e), x);
  }
};

// Those of loops without products: over many thousand steps what a gate near 1 lacks is all that counts, so bfloat16 has
// float16's.
template <class E>
struct FastScan : Fast<float16> {};
template <>
struct FastScan<float> : Fast<float> {};

}  // namespace rnncc
