// Chooses at run time the code for this processor: from what was compiled with the package, or later (late.h). The
// generated file that includes this header defines RNNCC_V3 and RNNCC_V4 before: the features that -march=x86-64-v3 and
// -v4 let the compiler use.
#pragma once

#include <cpuid.h>

#include "../core/call.h"

// Returns the function NAME_SET_FILE, which another library than the package's has. Throws where there is none.
void* rnncc_late_function(const char* name, const char* set, const char* file);

// Features by Linux's names for them.
enum rnncc_feature {
  RNNCC_AVX2 = 1 << 0,
  RNNCC_FMA = 1 << 1,
  RNNCC_BMI1 = 1 << 2,
  RNNCC_BMI2 = 1 << 3,
  RNNCC_F16C = 1 << 4,
  RNNCC_MOVBE = 1 << 5,
  RNNCC_ABM = 1 << 6,  // LZCNT
  RNNCC_AVX512F = 1 << 7,
  RNNCC_AVX512BW = 1 << 8,
  RNNCC_AVX512CD = 1 << 9,
  RNNCC_AVX512DQ = 1 << 10,
  RNNCC_AVX512VL = 1 << 11
};

// The features of this processor. A virtual machine may hide any of them. The compiler's probe also asks whether the
// system saves the wide registers. Some compilers' probes do not know F16C, MOVBE and LZCNT, so these are read from the
// processor.
static inline int rnncc_features() {
  __builtin_cpu_init();
  int found = 0;
  if (__builtin_cpu_supports("avx2")) found |= RNNCC_AVX2;
  if (__builtin_cpu_supports("fma")) found |= RNNCC_FMA;
  if (__builtin_cpu_supports("bmi")) found |= RNNCC_BMI1;
  if (__builtin_cpu_supports("bmi2")) found |= RNNCC_BMI2;
  if (__builtin_cpu_supports("avx512f")) found |= RNNCC_AVX512F;
  if (__builtin_cpu_supports("avx512bw")) found |= RNNCC_AVX512BW;
  if (__builtin_cpu_supports("avx512cd")) found |= RNNCC_AVX512CD;
  if (__builtin_cpu_supports("avx512dq")) found |= RNNCC_AVX512DQ;
  if (__builtin_cpu_supports("avx512vl")) found |= RNNCC_AVX512VL;
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    if (c & (1u << 29)) found |= RNNCC_F16C;
    if (c & (1u << 22)) found |= RNNCC_MOVBE;
  }
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d) && (c & (1u << 5))) found |= RNNCC_ABM;
  return found;
}

// The x86-64 level that these features make: 4 (AVX-512), 3 (AVX2, FMA) or 1.
static inline int rnncc_level_of(int features) {
  if ((features & RNNCC_V3) != RNNCC_V3) return 1;
  return (features & RNNCC_V4) == RNNCC_V4 ? 4 : 3;
}

static inline int rnncc_level() {
  static const int level = rnncc_level_of(rnncc_features());
  return level;
}

namespace rnncc {

// A function of a file that was not compiled with the package. It is found when it is first called.
class LateFunction {
 public:
  constexpr LateFunction(const char* name, const char* set, const char* file) : name_(name), set_(set), file_(file) {}

  template <class Function>
  Function* get() {
    void* known = __atomic_load_n(&known_, __ATOMIC_ACQUIRE);
    if (!known) {
      known = rnncc_late_function(name_, set_, file_);
      __atomic_store_n(&known_, known, __ATOMIC_RELEASE);
    }
    return reinterpret_cast<Function*>(known);
  }

 private:
  const char *name_, *set_, *file_;
  void* known_ = nullptr;
};

}  // namespace rnncc

#define RNNCC_DECLARE(name, set, file, call_type) int32_t name##_##set##_##file(const call_type*);
#define RNNCC_DECLARE_v4(name, file, call_type) RNNCC_DECLARE(name, v4, file, call_type)
#define RNNCC_DECLARE_v3(name, file, call_type) RNNCC_DECLARE(name, v3, file, call_type)
#define RNNCC_DECLARE_generic(name, file, call_type) RNNCC_DECLARE(name, generic, file, call_type)
#define RNNCC_DECLARE_all(name, file, call_type)                                  \
  RNNCC_DECLARE_v4(name, file, call_type) RNNCC_DECLARE_v3(name, file, call_type) \
      RNNCC_DECLARE_generic(name, file, call_type)
#define RNNCC_DECLARE_late_v4(name, file, call_type)
#define RNNCC_DECLARE_late_v3(name, file, call_type)
#define RNNCC_DECLARE_late_generic(name, file, call_type)
#define RNNCC_DECLARE_late_all(name, file, call_type)

#define RNNCC_CALL(name, set, level, file) \
  if (rnncc_level() >= level) return name##_##set##_##file(call);
#define RNNCC_CALL_v4(name, file, call_type) RNNCC_CALL(name, v4, 4, file)
#define RNNCC_CALL_v3(name, file, call_type) RNNCC_CALL(name, v3, 3, file)
#define RNNCC_CALL_generic(name, file, call_type) RNNCC_CALL(name, generic, 1, file)
#define RNNCC_CALL_all(name, file, call_type) \
  RNNCC_CALL_v4(name, file, call_type) RNNCC_CALL_v3(name, file, call_type) RNNCC_CALL_generic(name, file, call_type)
#define RNNCC_CALL_LATE(name, set, level, file, call_type)   \
  if (rnncc_level() >= level) {                              \
    static rnncc::LateFunction function(#name, #set, #file); \
    return function.get<int32_t(const call_type*)>()(call);  \
  }
#define RNNCC_CALL_late_v4(name, file, call_type) RNNCC_CALL_LATE(name, v4, 4, file, call_type)
#define RNNCC_CALL_late_v3(name, file, call_type) RNNCC_CALL_LATE(name, v3, 3, file, call_type)
#define RNNCC_CALL_late_generic(name, file, call_type) RNNCC_CALL_LATE(name, generic, 1, file, call_type)
#define RNNCC_CALL_late_all(name, file, call_type)                                    \
  RNNCC_CALL_late_v4(name, file, call_type) RNNCC_CALL_late_v3(name, file, call_type) \
      RNNCC_CALL_late_generic(name, file, call_type)

// Defines int32_t name(const call_type*), which calls name_SET_FILE: of the file `f64` where `dtype_expression`, which
// reads `call`, is float64, and of the file `f32` elsewhere. `f32_code` and `f64_code` say what code there is of a file:
// for one instruction set (`v4`, `v3`, `generic`), or for `all`, and then the best one runs. Before either, `late_` says
// that it was not compiled with the package; then the function throws where it cannot be found. Where this processor
// lacks the only instruction set, the function returns 4.
#define RNNCC_DISPATCH(name, f32, f32_code, f64, f64_code, call_type, dtype_expression)         \
  extern "C" {                                                                                  \
  RNNCC_DECLARE_##f32_code(name, f32, call_type) RNNCC_DECLARE_##f64_code(name, f64, call_type) \
      __attribute__((visibility("default"))) int32_t name(const call_type* call) {              \
    if ((dtype_expression) == RNNCC_FLOAT64) {                                                  \
      RNNCC_CALL_##f64_code(name, f64, call_type)                                               \
    } else {                                                                                    \
      RNNCC_CALL_##f32_code(name, f32, call_type)                                               \
    }                                                                                           \
    return 4;                                                                                   \
  }                                                                                             \
  }
