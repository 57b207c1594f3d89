// Elementwise functions of one float on a GPU, under the names of math.h and with its conventions: conditions are
// numbers, infinities give the limit, NaN gives NaN, piecewise functions are torch's. The library's own functions (no
// fast-math) are within 2 ulp where math.h promises that.
#pragma once

#include "scalar.cuh"

namespace rnncc {

RNNCC_DEVICE float broadcast(float x) { return x; }
template <class T>
RNNCC_DEVICE T infinity() {
  return __uint_as_float(0x7f800000u);
}
template <class T>
RNNCC_DEVICE T not_a_number() {
  return __uint_as_float(0x7fc00000u);
}

RNNCC_DEVICE float exp(float x) { return ::expf(x); }
RNNCC_DEVICE float log(float x) { return ::logf(x); }
RNNCC_DEVICE float log1p(float x) { return ::log1pf(x); }
RNNCC_DEVICE float sqrt(float x) { return ::sqrtf(x); }
RNNCC_DEVICE float rsqrt(float x) { return __frsqrt_rn(x); }
RNNCC_DEVICE float abs(float x) { return ::fabsf(x); }
RNNCC_DEVICE float sin(float x) { return ::sinf(x); }
RNNCC_DEVICE float cos(float x) { return ::cosf(x); }
RNNCC_DEVICE float erf(float x) { return ::erff(x); }
RNNCC_DEVICE float tanh(float x) { return ::tanhf(x); }
RNNCC_DEVICE float pow(float a, float b) { return ::powf(a, b); }
// x^N by repeated squaring, as on a CPU.
template <int N>
RNNCC_DEVICE float powi(float x) {
  if constexpr (N < 0) {
    return 1.0f / powi<-N>(x);
  } else if constexpr (N == 0) {
    return 1.0f;
  } else if constexpr (N == 1) {
    return x;
  } else if constexpr (N % 2 == 0) {
    return powi<N / 2>(x * x);
  } else {
    return x * powi<N - 1>(x);
  }
}

// e^-|x| and 1 + e^-|x| are in [0, 1] and [1, 2], where the fast division is exact to 2 ulp.
RNNCC_DEVICE float sigmoid(float x) {
  const float e = ::expf(-::fabsf(x));
  return __fdividef(x < 0.0f ? e : 1.0f, 1.0f + e);
}

RNNCC_DEVICE float silu(float x) { return x * sigmoid(x); }
// torch's threshold: the argument itself above 20.
RNNCC_DEVICE float softplus(float x) { return x > 20.0f ? x : ::log1pf(::expf(x)); }
RNNCC_DEVICE float logsigmoid(float x) { return (x > 0.0f ? 0.0f : x) - ::log1pf(::expf(-::fabsf(x))); }
RNNCC_DEVICE float gelu(float x) { return x * 0.5f * (1.0f + ::erff(x * 0.70710678f)); }

RNNCC_DEVICE float lt(float a, float b) { return a < b ? 1.0f : 0.0f; }
RNNCC_DEVICE float le(float a, float b) { return a <= b ? 1.0f : 0.0f; }
RNNCC_DEVICE float gt(float a, float b) { return a > b ? 1.0f : 0.0f; }
RNNCC_DEVICE float ge(float a, float b) { return a >= b ? 1.0f : 0.0f; }
RNNCC_DEVICE float eq(float a, float b) { return a == b ? 1.0f : 0.0f; }
RNNCC_DEVICE float ne(float a, float b) { return a != b ? 1.0f : 0.0f; }
// a where the condition is not 0, else b.
RNNCC_DEVICE float where(float condition, float a, float b) { return condition != 0.0f ? a : b; }

// torch.maximum and torch.minimum.
RNNCC_DEVICE float max(float a, float b) { return maximum(a, b); }
RNNCC_DEVICE float min(float a, float b) { return minimum(a, b); }
RNNCC_DEVICE float clamp(float x, float low, float high) { return rnncc::min(rnncc::max(x, low), high); }
RNNCC_DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }
RNNCC_DEVICE float hardtanh(float x) { return clamp(x, -1.0f, 1.0f); }
RNNCC_DEVICE float hardsigmoid(float x) { return clamp(x + 3.0f, 0.0f, 6.0f) / 6.0f; }
RNNCC_DEVICE float elu(float x) { return x > 0.0f ? x : ::expm1f(x); }
RNNCC_DEVICE float leakyrelu(float x) { return x > 0.0f ? x : x * 0.01f; }
// 0 for NaN, as in torch.
RNNCC_DEVICE float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
RNNCC_DEVICE float heaviside(float x) { return x > 0.0f ? 1.0f : 0.0f; }
RNNCC_DEVICE float round(float x) { return ::rintf(x); }  // halves to the even number
RNNCC_DEVICE float floor(float x) { return ::floorf(x); }
RNNCC_DEVICE float epsilon(float) { return 1.1920928955078125e-7f; }

RNNCC_DEVICE float logaddexp(float a, float b) {
  // Equal infinities differ by NaN, but by nothing really.
  const float difference = a == b ? 0.0f : ::fabsf(a - b);
  const float larger = rnncc::max(a, b);
  return larger == larger ? larger + ::log1pf(::expf(-difference)) : larger;
}

// torch.remainder: fmod, moved to the sign of the divisor.
RNNCC_DEVICE float remainder(float a, float b) {
  const float r = ::fmodf(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

}  // namespace rnncc
