// Vectors of float and double for one x86-64 level.
//
// The same source is compiled once per level (-march=x86-64-v4, -v3, or neither). The compiler's own macros tell the
// level. It gives the vector width, and names the inline namespace: so the three copies of every function have
// different symbols, and `rnncc::exp(v)` still finds the right one. Nothing here includes a header of the C++ library:
// the linker could take an inline std function that was compiled for AVX-512 as the one copy for all levels.
//
// A vector is a plain GCC/clang vector type: + - * / and comparisons work as they are, also with a scalar of the same
// type (v * 2.0f). A comparison gives a Mask: lanes of all ones or all zeros.
#pragma once

#include <stdint.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define RNNCC_VECTOR_BYTES 64
#define RNNCC_ISA_LEVEL 4
#ifndef RNNCC_ISA_NAMESPACE
#define RNNCC_ISA_NAMESPACE x86_64_v4
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#define RNNCC_VECTOR_BYTES 32
#define RNNCC_ISA_LEVEL 3
#ifndef RNNCC_ISA_NAMESPACE
#define RNNCC_ISA_NAMESPACE x86_64_v3
#endif
#else
#define RNNCC_VECTOR_BYTES 16
#define RNNCC_ISA_LEVEL 1
#ifndef RNNCC_ISA_NAMESPACE
#define RNNCC_ISA_NAMESPACE generic
#endif
#endif

#define RNNCC_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define RNNCC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RNNCC_UNROLL _Pragma("GCC unroll 64")
#endif

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

template <class T>
struct VecOf;

template <>
struct VecOf<float> {
  typedef float type __attribute__((vector_size(RNNCC_VECTOR_BYTES)));
  typedef float unaligned __attribute__((vector_size(RNNCC_VECTOR_BYTES), aligned(4), may_alias));
  typedef int32_t bits __attribute__((vector_size(RNNCC_VECTOR_BYTES)));
  typedef uint32_t unsigned_bits __attribute__((vector_size(RNNCC_VECTOR_BYTES)));
};

template <>
struct VecOf<double> {
  typedef double type __attribute__((vector_size(RNNCC_VECTOR_BYTES)));
  typedef double unaligned __attribute__((vector_size(RNNCC_VECTOR_BYTES), aligned(8), may_alias));
  typedef int64_t bits __attribute__((vector_size(RNNCC_VECTOR_BYTES)));
  typedef uint64_t unsigned_bits __attribute__((vector_size(RNNCC_VECTOR_BYTES)));
};

template <class T>
using Vec = typename VecOf<T>::type;

// What a comparison of two Vec<T> gives: one signed integer per lane, -1 or 0.
template <class T>
using Mask = typename VecOf<T>::bits;

// Lanes of a Vec<T>.
template <class T>
constexpr int64_t lanes = RNNCC_VECTOR_BYTES / int64_t(sizeof(T));

// Element type of a vector type: element<Vec<float>> is float.
template <class V>
struct ElementOf;
template <>
struct ElementOf<Vec<float>> {
  using type = float;
};
template <>
struct ElementOf<Vec<double>> {
  using type = double;
};
template <class V>
using element = typename ElementOf<V>::type;

// All lanes equal to x.
template <class T>
RNNCC_INLINE Vec<T> broadcast(T x) {
  return x - Vec<T>{};
}

// p need only be aligned for T.
template <class T>
RNNCC_INLINE Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VecOf<T>::unaligned*>(p);
}

template <class T>
RNNCC_INLINE void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecOf<T>::unaligned*>(p) = v;
}

// 0, 1, 2, ... in the integer lanes of a Mask<T>.
template <class T>
RNNCC_INLINE Mask<T> lane_index() {
  Mask<T> r = {};
  RNNCC_UNROLL
  for (int i = 0; i < lanes<T>; ++i) r[i] = i;
  return r;
}

// The first n lanes from p, zero in the rest; 0 <= n <= lanes. Nothing beyond p[n-1] is read.
RNNCC_INLINE Vec<float> load_partial(const float* p, int64_t n) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  return __builtin_ia32_loadups512_mask(p, Vec<float>{}, uint16_t((1u << n) - 1));
#elif RNNCC_ISA_LEVEL == 3 && !defined(__clang__)
  return __builtin_ia32_maskloadps256(reinterpret_cast<const Vec<float>*>(p), lane_index<float>() < int32_t(n));
#else
  Vec<float> v = {};
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

RNNCC_INLINE Vec<double> load_partial(const double* p, int64_t n) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  return __builtin_ia32_loadupd512_mask(p, Vec<double>{}, uint8_t((1u << n) - 1));
#elif RNNCC_ISA_LEVEL == 3 && !defined(__clang__)
  return __builtin_ia32_maskloadpd256(reinterpret_cast<const Vec<double>*>(p), lane_index<double>() < n);
#else
  Vec<double> v = {};
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

// The first n lanes to p; 0 <= n <= lanes. Nothing beyond p[n-1] is written.
RNNCC_INLINE void store_partial(float* p, Vec<float> v, int64_t n) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  __builtin_ia32_storeups512_mask(p, v, uint16_t((1u << n) - 1));
#elif RNNCC_ISA_LEVEL == 3 && !defined(__clang__)
  __builtin_ia32_maskstoreps256(reinterpret_cast<Vec<float>*>(p), lane_index<float>() < int32_t(n), v);
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

RNNCC_INLINE void store_partial(double* p, Vec<double> v, int64_t n) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  __builtin_ia32_storeupd512_mask(p, v, uint8_t((1u << n) - 1));
#elif RNNCC_ISA_LEVEL == 3 && !defined(__clang__)
  __builtin_ia32_maskstorepd256(reinterpret_cast<Vec<double>*>(p), lane_index<double>() < n, v);
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// Load and store min(n, lanes) lanes, for loops whose last trip is short. The branch is predictable.
template <class T>
RNNCC_INLINE Vec<T> load_upto(const T* p, int64_t n) {
  return n >= lanes<T> ? load(p) : load_partial(p, n);
}

template <class T>
RNNCC_INLINE void store_upto(T* p, Vec<T> v, int64_t n) {
  if (n >= lanes<T>) {
    store(p, v);
  } else {
    store_partial(p, v, n);
  }
}

// Lane-wise `mask ? a : b`.
template <class M, class V>
RNNCC_INLINE V select(M mask, V a, V b) {
  return mask ? a : b;
}

template <class V>
RNNCC_INLINE auto as_bits(V v) {
  return reinterpret_cast<Mask<element<V>>>(v);
}

template <class T>
RNNCC_INLINE Vec<T> from_bits(Mask<T> b) {
  return reinterpret_cast<Vec<T>>(b);
}

template <class V>
RNNCC_INLINE V abs(V v) {
  using T = element<V>;
  return from_bits<T>(as_bits(v) & ~as_bits(-V{}));
}

// Magnitude of `magnitude`, sign of `sign`.
template <class V>
RNNCC_INLINE V copysign(V magnitude, V sign) {
  using T = element<V>;
  const Mask<T> s = as_bits(-V{});
  return from_bits<T>((as_bits(magnitude) & ~s) | (as_bits(sign) & s));
}

// torch.maximum and torch.minimum: NaN if either is NaN.
template <class V>
RNNCC_INLINE V maximum(V a, V b) {
  return ((a > b) | (a != a)) ? a : b;
}

template <class V>
RNNCC_INLINE V minimum(V a, V b) {
  return ((a < b) | (a != a)) ? a : b;
}

// Correctly rounded; NaN below zero, -0 for -0.
RNNCC_INLINE Vec<float> sqrt(Vec<float> v) {
#if defined(__clang__)  // which makes one instruction of the loop
  RNNCC_UNROLL for (int i = 0; i < lanes<float>; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#elif RNNCC_ISA_LEVEL == 4
  return __builtin_ia32_sqrtps512_mask(v, v, uint16_t(-1), 4);
#elif RNNCC_ISA_LEVEL == 3
  return __builtin_ia32_sqrtps256(v);
#else
  return __builtin_ia32_sqrtps(v);
#endif
}

RNNCC_INLINE Vec<double> sqrt(Vec<double> v) {
#if defined(__clang__)  // which makes one instruction of the loop
  RNNCC_UNROLL for (int i = 0; i < lanes<double>; ++i) v[i] = __builtin_sqrt(v[i]);
  return v;
#elif RNNCC_ISA_LEVEL == 4
  return __builtin_ia32_sqrtpd512_mask(v, v, uint8_t(-1), 4);
#elif RNNCC_ISA_LEVEL == 3
  return __builtin_ia32_sqrtpd256(v);
#else
  return __builtin_ia32_sqrtpd(v);
#endif
}

// A transposition exchanges squares of `step` lanes between two vectors of L lanes. Returns the lane, counted through
// both vectors, that goes to lane i of the first result, or of the second. Inside 16 bytes, which are S lanes, it
// interleaves as x86 does; beyond, the squares stay in their places.
constexpr int turned_lane(int L, int S, int step, bool second, int i) {
  if (step < S) return i / S * S + (second ? S / 2 : 0) + i % S / (2 * step) * step + i % step + i / step % 2 * L;
  return second ? (i & step ? L + i : i + step) : (i & step ? L + i - step : i);
}

template <int STEP, bool SECOND, class V>
RNNCC_INLINE V turned(V a, V b) {
  constexpr int L = lanes<element<V>>;
  constexpr int S = 16 / int(sizeof(element<V>));
#define RNNCC_LANE(i) turned_lane(L, S, STEP, SECOND, i)
#define RNNCC_LANES_2(i) RNNCC_LANE(i), RNNCC_LANE(i + 1)
#define RNNCC_LANES_4(i) RNNCC_LANES_2(i), RNNCC_LANES_2(i + 2)
#define RNNCC_LANES_8(i) RNNCC_LANES_4(i), RNNCC_LANES_4(i + 4)
#if defined(__clang__)
#define RNNCC_SHUFFLE(...) return __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define RNNCC_SHUFFLE(...) return __builtin_shuffle(a, b, Mask<element<V>>{__VA_ARGS__})
#endif
  if constexpr (L == 2) RNNCC_SHUFFLE(RNNCC_LANES_2(0));
  if constexpr (L == 4) RNNCC_SHUFFLE(RNNCC_LANES_4(0));
  if constexpr (L == 8) RNNCC_SHUFFLE(RNNCC_LANES_8(0));
  if constexpr (L == 16) RNNCC_SHUFFLE(RNNCC_LANES_8(0), RNNCC_LANES_8(8));
#undef RNNCC_SHUFFLE
#undef RNNCC_LANES_8
#undef RNNCC_LANES_4
#undef RNNCC_LANES_2
#undef RNNCC_LANE
}

// Transposes a square of lanes<T> vectors.
template <class T, int STEP = 1>
RNNCC_INLINE void transpose(Vec<T>* block) {
  constexpr int L = lanes<T>;
  constexpr int S = 16 / int(sizeof(T));
  if constexpr (STEP < L) {
    Vec<T> from[L];
    RNNCC_UNROLL
    for (int r = 0; r < L; ++r) from[r] = block[r];
    RNNCC_UNROLL
    for (int r = 0; r < L; ++r) {
      if (r & STEP) continue;
      // Interleaving inside 16 bytes makes two columns that stand next to each other.
      const int to = STEP > 1 && STEP < S ? r / S * S + r % STEP * STEP : r;
      block[to] = turned<STEP, false>(from[r], from[r + STEP]);
      block[to + (STEP < S ? 1 : STEP)] = turned<STEP, true>(from[r], from[r + STEP]);
    }
    transpose<T, 2 * STEP>(block);
  }
}

// A bit for each lane that is not zero, that of lane 0 the lowest. NaN is not zero.
RNNCC_INLINE uint32_t nonzero_bits(Vec<float> v) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  return __builtin_ia32_cmpps512_mask(v, Vec<float>{}, 4, uint16_t(-1), 4);
#elif RNNCC_ISA_LEVEL == 3
  return uint32_t(__builtin_ia32_movmskps256(reinterpret_cast<Vec<float>>(v != Vec<float>{})));
#elif RNNCC_ISA_LEVEL == 1
  return uint32_t(__builtin_ia32_movmskps(reinterpret_cast<Vec<float>>(v != Vec<float>{})));
#else
  uint32_t bits = 0;
  for (int i = 0; i < lanes<float>; ++i) bits |= uint32_t(v[i] != 0) << i;
  return bits;
#endif
}

RNNCC_INLINE uint32_t nonzero_bits(Vec<double> v) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  return __builtin_ia32_cmppd512_mask(v, Vec<double>{}, 4, uint8_t(-1), 4);
#elif RNNCC_ISA_LEVEL == 3
  return uint32_t(__builtin_ia32_movmskpd256(reinterpret_cast<Vec<double>>(v != Vec<double>{})));
#elif RNNCC_ISA_LEVEL == 1
  return uint32_t(__builtin_ia32_movmskpd(reinterpret_cast<Vec<double>>(v != Vec<double>{})));
#else
  uint32_t bits = 0;
  for (int i = 0; i < lanes<double>; ++i) bits |= uint32_t(v[i] != 0) << i;
  return bits;
#endif
}

// The sum of the lanes, always by the same binary tree: halves are added until one lane is left.
template <class V>
RNNCC_INLINE element<V> horizontal_sum(V v) {
  using T = element<V>;
  T part[lanes<T>];
  RNNCC_UNROLL
  for (int i = 0; i < lanes<T>; ++i) part[i] = v[i];
  RNNCC_UNROLL
  for (int width = int(lanes<T>) / 2; width > 0; width /= 2) {
    RNNCC_UNROLL
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
  return part[0];
}

// The sums of the lanes of four vectors, as a transposition adds them up: an instruction serves all four. Each is added
// in the same order, whatever the others are.
template <class V>
RNNCC_INLINE void horizontal_sums(element<V>* to, V a, V b, V c, V d) {
  using T = element<V>;
  if constexpr (lanes<T> < 4) {
    to[0] = horizontal_sum(a), to[1] = horizontal_sum(b), to[2] = horizontal_sum(c), to[3] = horizontal_sum(d);
  } else {
    const V first = turned<1, false>(a, b) + turned<1, true>(a, b);
    const V last = turned<1, false>(c, d) + turned<1, true>(c, d);
    const V all = turned<2, false>(first, last) + turned<2, true>(first, last);
    // Every four lanes have a part of the four sums.
    T part[lanes<T>];
    store(part, all);
    RNNCC_UNROLL
    for (int width = int(lanes<T>) / 2; width >= 4; width /= 2) {
      RNNCC_UNROLL
      for (int i = 0; i < width; ++i) part[i] += part[i + width];
    }
    RNNCC_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = part[i];
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
