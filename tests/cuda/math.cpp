// What the tests call: the functions of cuda/math.cuh, compiled for the host.
#include "math.cuh"

#include <stdint.h>

extern "C" {

#define UNARY(name)                                           \
  void name##_float(float* y, const float* a, int64_t n) {    \
    for (int64_t i = 0; i < n; ++i) y[i] = rnncc::name(a[i]); \
  }
#define BINARY(name)                                                       \
  void name##_float(float* y, const float* a, const float* b, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) y[i] = rnncc::name(a[i], b[i]);        \
  }
#define TERNARY(name)                                                                      \
  void name##_float(float* y, const float* a, const float* b, const float* c, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) y[i] = rnncc::name(a[i], b[i], c[i]);                  \
  }

// The functions that the operator table names: tests/cpu/host.py writes a line for each.
#include "functions.inc"

// Others that generated text names.
void powers_float(float* cube, float* inverse_square, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    cube[i] = rnncc::powi<3>(x[i]);
    inverse_square[i] = rnncc::powi<-2>(x[i]);
  }
}
float infinity_float() { return rnncc::infinity<float>(); }
float not_a_number_float() { return rnncc::not_a_number<float>(); }
}
