// Elementwise functions of the fused kernels. They are those of math.cuh. But where tensors have 16 bits, sigmoid, tanh
// and what is made of the exponential are short sequences of instructions. bfloat16 has 8 significant bits, so the
// hardware's tanh with a relative error of 2^-11 will do. float16 has 11 and gets 2^-20.
#pragma once

#include "../../math.cuh"

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

// Returns log(1 + e) for 0 <= e <= 1. Near zero 1 + e is rounded, so there the series is used.
RNNCC_DEVICE float log1p_fast(float e) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + e));
  return e < 0.01f ? e * fmaf(e, -0.5f, 1.0f) : 0.69314718f * y;
}

// Functions for both 16-bit dtypes.
struct Fast16 {
  RNNCC_DEVICE static float exp(float x) { return exp2_fast(1.4426950408889634f * x); }
  RNNCC_DEVICE static float softplus(float x) {
    return x > 20.0f ? x : (x > 0.0f ? x : 0.0f) + log1p_fast(exp(-::fabsf(x)));
  }
  RNNCC_DEVICE static float logsigmoid(float x) { return (x > 0.0f ? 0.0f : x) - log1p_fast(exp(-::fabsf(x))); }
  // The relative error is at most 2^-23.
  RNNCC_DEVICE static float sqrt(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  // The relative error is at most 2^-22.9, and 0, denormals and infinity are as in math.cuh.
  RNNCC_DEVICE static float rsqrt(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  // The error is at most 2 ulp over the whole range.
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
  RNNCC_DEVICE static float sqrt(float x) { return rnncc::sqrt(x); }
  RNNCC_DEVICE static float rsqrt(float x) { return rnncc::rsqrt(x); }
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
  // Where the exponential overflows, its reciprocal is 0, which is right.
  RNNCC_DEVICE static float sigmoid(float x) { return reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * x)); }
  // Near zero the difference cancels, so there the series is used.
  RNNCC_DEVICE static float tanh(float x) {
    const float a = ::fabsf(x), e = exp2_fast(-2.8853900817779268f * a), square = x * x;
    const float small = a * fmaf(square, fmaf(square, 0.13333333f, -0.33333333f), 1.0f);
    return ::copysignf(a < 0.15f ? small : __fdividef(1.0f - e, 1.0f + e), x);
  }
};

// The functions of loops without products. Over many thousand steps, how far a gate is from 1 is all that counts. So
// bfloat16 has the functions of float16.
template <class E>
struct FastScan : Fast<float16> {};
template <>
struct FastScan<float> : Fast<float> {};

}  // namespace rnncc
