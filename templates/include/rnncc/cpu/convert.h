// Converts rows of tensors of any floating dtype to the compute type (float or double), and back.
//
// 16-bit tensors are converted a row at a time where they are read and written; everything between is float. Rounding
// is to nearest, ties to even; NaN stays NaN. The conversion of float16 multiplies by powers of two, so it needs
// denormals to be on. They are, unless the program called torch.set_flush_denormal(True): then float16 values below
// 2^-14 become 0.
#pragma once

#include <stddef.h>

#include "vec.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// The values are torch's ScalarType codes, so that aoti_torch_get_dtype's answer can be cast.
enum class DType : int32_t { f16 = 5, f32 = 6, f64 = 7, bf16 = 15 };

// Bytes of one element; 0 for a code that is none of the four.
RNNCC_INLINE int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::f16: return 2;
    case DType::bf16: return 2;
    case DType::f32: return 4;
    case DType::f64: return 8;
  }
  return 0;
}

typedef uint32_t ConvertBits __attribute__((vector_size(RNNCC_VECTOR_BYTES)));
typedef uint16_t HalfBits __attribute__((vector_size(RNNCC_VECTOR_BYTES / 2)));
typedef uint16_t HalfBitsUnaligned __attribute__((vector_size(RNNCC_VECTOR_BYTES / 2), aligned(2), may_alias));

RNNCC_INLINE ConvertBits widen(const uint16_t* p) {
  return __builtin_convertvector(*reinterpret_cast<const HalfBitsUnaligned*>(p), ConvertBits);
}

RNNCC_INLINE void narrow(uint16_t* p, ConvertBits bits) {
  *reinterpret_cast<HalfBitsUnaligned*>(p) = __builtin_convertvector(bits, HalfBits);
}

RNNCC_INLINE Vec<float> bf16_to_float(ConvertBits h) { return reinterpret_cast<Vec<float>>(h << 16); }

RNNCC_INLINE ConvertBits float_to_bf16(Vec<float> v) {
  const ConvertBits b = reinterpret_cast<ConvertBits>(v);
  const ConvertBits rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  const ConvertBits quiet = (b >> 16) | 0x40u;
  return v == v ? rounded : quiet;
}

// The 15 low bits, moved to float's places, are 2^-112 times the value. Infinity and NaN get the full exponent.
RNNCC_INLINE Vec<float> f16_to_float(ConvertBits h) {
  const ConvertBits magnitude = (h & 0x7fffu) << 13;
  const ConvertBits finite = reinterpret_cast<ConvertBits>(reinterpret_cast<Vec<float>>(magnitude) * 0x1p112f);
  const ConvertBits r = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
  return reinterpret_cast<Vec<float>>(r | ((h & 0x8000u) << 16));
}

RNNCC_INLINE ConvertBits float_to_f16(Vec<float> v) {
  const ConvertBits b = reinterpret_cast<ConvertBits>(v);
  const ConvertBits sign = (b >> 16) & 0x8000u;
  const ConvertBits a = b & 0x7fffffffu;
  // Normal: rebias by 112 and round the 13 dropped bits; a carry into the exponent is right, up to infinity.
  const ConvertBits normal = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 1/2 rounds to a multiple of 2^-24, which then stands in the low bits.
  const ConvertBits small = reinterpret_cast<ConvertBits>(reinterpret_cast<Vec<float>>(a) + 0.5f) - 0x3f000000u;
  ConvertBits r = a < (113u << 23) ? small : normal;
  r = a >= 0x477ff000u ? ConvertBits{} + 0x7c00u : r;
  r = a > 0x7f800000u ? (((a >> 13) & 0x3ffu) | 0x7e00u) : r;
  return r | sign;
}

// Widens the first min(n, lanes) elements; the other lanes are 0.
RNNCC_INLINE ConvertBits widen_upto(const uint16_t* p, int64_t n) {
  if (n >= lanes<float>) return widen(p);
  uint16_t part[lanes<float>] = {};
  __builtin_memcpy(part, p, size_t(n) * 2);
  return widen(part);
}

RNNCC_INLINE void narrow_upto(uint16_t* p, ConvertBits bits, int64_t n) {
  if (n >= lanes<float>) return narrow(p, bits);
  uint16_t part[lanes<float>];
  narrow(part, bits);
  __builtin_memcpy(p, part, size_t(n) * 2);
}

// Reads elements [first, first + n) of src, a tensor of the given dtype. Float from float and double from double is a
// copy.
static inline void load_row(float* dst, const void* src, int64_t first, int64_t n, DType dtype) {
  switch (dtype) {
    case DType::f32: __builtin_memcpy(dst, static_cast<const float*>(src) + first, size_t(n) * 4); return;
    case DType::f64: {
      const double* p = static_cast<const double*>(src) + first;
      for (int64_t i = 0; i < n; ++i) dst[i] = float(p[i]);
      return;
    }
    case DType::f16: {
      const uint16_t* p = static_cast<const uint16_t*>(src) + first;
      for (int64_t i = 0; i < n; i += lanes<float>) store_upto(dst + i, f16_to_float(widen_upto(p + i, n - i)), n - i);
      return;
    }
    case DType::bf16: {
      const uint16_t* p = static_cast<const uint16_t*>(src) + first;
      for (int64_t i = 0; i < n; i += lanes<float>) store_upto(dst + i, bf16_to_float(widen_upto(p + i, n - i)), n - i);
      return;
    }
  }
}

// Writes elements [first, first + n) of dst, a tensor of the given dtype.
static inline void store_row(void* dst, int64_t first, const float* src, int64_t n, DType dtype) {
  switch (dtype) {
    case DType::f32: __builtin_memcpy(static_cast<float*>(dst) + first, src, size_t(n) * 4); return;
    case DType::f64: {
      double* p = static_cast<double*>(dst) + first;
      for (int64_t i = 0; i < n; ++i) p[i] = src[i];
      return;
    }
    case DType::f16: {
      uint16_t* p = static_cast<uint16_t*>(dst) + first;
      for (int64_t i = 0; i < n; i += lanes<float>) narrow_upto(p + i, float_to_f16(load_upto(src + i, n - i)), n - i);
      return;
    }
    case DType::bf16: {
      uint16_t* p = static_cast<uint16_t*>(dst) + first;
      for (int64_t i = 0; i < n; i += lanes<float>) narrow_upto(p + i, float_to_bf16(load_upto(src + i, n - i)), n - i);
      return;
    }
  }
}

// The same for those who compute in double: tensors are float64, or they are float32, which is read exactly and rounded
// once on the way back. With 16-bit tensors everything is computed in float.
static inline void load_row(double* dst, const void* src, int64_t first, int64_t n, DType dtype) {
  if (dtype == DType::f64) {
    __builtin_memcpy(dst, static_cast<const double*>(src) + first, size_t(n) * 8);
  } else if (dtype == DType::f32) {
    const float* p = static_cast<const float*>(src) + first;
    for (int64_t i = 0; i < n; ++i) dst[i] = double(p[i]);
  }
}

static inline void store_row(void* dst, int64_t first, const double* src, int64_t n, DType dtype) {
  if (dtype == DType::f64) {
    __builtin_memcpy(static_cast<double*>(dst) + first, src, size_t(n) * 8);
  } else if (dtype == DType::f32) {
    float* p = static_cast<float*>(dst) + first;
    for (int64_t i = 0; i < n; ++i) p[i] = float(src[i]);
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
