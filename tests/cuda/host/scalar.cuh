// What cuda/math.cuh needs of a GPU, for a host: in the place of the header of that name.
#pragma once

#include <math.h>

#define RNNCC_DEVICE inline

inline float __fdividef(float a, float b) { return a / b; }
inline float __frsqrt_rn(float x) { return float(1 / ::sqrt(double(x))); }
inline float __uint_as_float(unsigned bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

namespace rnncc {

RNNCC_DEVICE float maximum(float a, float b) { return a != a || a > b ? a : b; }
RNNCC_DEVICE float minimum(float a, float b) { return a != a || a < b ? a : b; }

}  // namespace rnncc
