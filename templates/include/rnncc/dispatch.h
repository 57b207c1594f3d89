// Choice of the code for this processor, at run time.
#pragma once

#include "call.h"

// The x86-64 level that the processor has: 4 (AVX-512), 3 (AVX2, FMA) or 1.
static inline int rnncc_level() {
  __builtin_cpu_init();
  const bool three = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                     __builtin_cpu_supports("bmi2");
  const bool four = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return three && four ? 4 : three ? 3 : 1;
}

// int32_t name(const call_type*), which calls name_LEVEL_TYPE; `dtype` is an expression of `call`.
#define RNNCC_DISPATCH(name, call_type, dtype_expression)                                                                  \
  extern "C" {                                                                                                             \
  int32_t name##_v4_f32(const call_type*);                                                                                 \
  int32_t name##_v4_f64(const call_type*);                                                                                 \
  int32_t name##_v3_f32(const call_type*);                                                                                 \
  int32_t name##_v3_f64(const call_type*);                                                                                 \
  int32_t name##_generic_f32(const call_type*);                                                                            \
  int32_t name##_generic_f64(const call_type*);                                                                            \
  __attribute__((visibility("default"))) int32_t name(const call_type* call) {                                             \
    const bool wide = (dtype_expression) == RNNCC_FLOAT64;                                                                 \
    switch (rnncc_level()) {                                                                                               \
      case 4: return wide ? name##_v4_f64(call) : name##_v4_f32(call);                                                     \
      case 3: return wide ? name##_v3_f64(call) : name##_v3_f32(call);                                                     \
      default: return wide ? name##_generic_f64(call) : name##_generic_f32(call);                                          \
    }                                                                                                                      \
  }                                                                                                                        \
  }
