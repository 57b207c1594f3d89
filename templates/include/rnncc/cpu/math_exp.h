// Exponentials and logarithms, and the activations made of them. Include math.h, which says what holds for all.
#pragma once

#include "vec.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// ---- building blocks

template <class T>
struct Float;

template <>
struct Float<float> {
  static constexpr int mantissa_bits = 23;
  static constexpr int32_t bias = 127;
  static constexpr float infinity = __builtin_inff();
  static constexpr float nan = __builtin_nanf("");
  static constexpr float epsilon = 0x1p-23f;
  static constexpr float min_normal = 0x1p-126f;
  static constexpr float to_integer = 0x1.8p23f;  // x + to_integer rounds x to an integer held in the low bits
  static constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  static constexpr int32_t sqrt_half_bits = 0x3f3504f3;
};

template <>
struct Float<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr int64_t bias = 1023;
  static constexpr double infinity = __builtin_inf();
  static constexpr double nan = __builtin_nan("");
  static constexpr double epsilon = 0x1p-52;
  static constexpr double min_normal = 0x1p-1022;
  static constexpr double to_integer = 0x1.8p52;
  static constexpr double ln2_high = 0x1.62e42fefa3p-1, ln2_low = 0x1.3de6af278ece6p-42;
  static constexpr int64_t sqrt_half_bits = 0x3fe6a09e667f3bcd;
};

// The vector type of A and B, one of which may be a scalar.
template <class A>
constexpr bool is_vector = sizeof(A) == RNNCC_VECTOR_BYTES;

template <bool first, class A, class B>
struct Pick {
  using type = A;
};
template <class A, class B>
struct Pick<false, A, B> {
  using type = B;
};
template <class A, class B>
using common = typename Pick<is_vector<A>, A, B>::type;

template <class V, class A>
RNNCC_INLINE V spread(A a) {
  if constexpr (is_vector<A>) {
    return a;
  } else {
    return broadcast(element<V>(a));
  }
}

// c[0] + c[1] x + c[2] x^2 + ...
template <class V, int N>
RNNCC_INLINE V polynomial(V x, const element<V> (&c)[N]) {
  V r = broadcast(c[N - 1]);
  RNNCC_UNROLL
  for (int i = N - 2; i >= 0; --i) r = r * x + c[i];
  return r;
}

template <class V>
RNNCC_INLINE V shift_left(V v, int bits) {
  using U = typename VecOf<element<V>>::unsigned_bits;
  return reinterpret_cast<V>(reinterpret_cast<U>(v) << bits);
}

// Returns 2^n. `shifted` is n + to_integer, and 2^n is normal.
template <class V>
RNNCC_INLINE V power_of_two(V shifted) {
  using T = element<V>;
  return from_bits<T>(as_bits(shift_left(shifted, Float<T>::mantissa_bits)) + as_bits(broadcast(T(1))));
}

// Returns y * 2^n, rounded once. The result may be denormal or overflow.
template <class V>
RNNCC_INLINE V scale(V y, V n) {
  using T = element<V>;
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  if constexpr (sizeof(T) == 4) {
    return __builtin_ia32_scalefps512_mask(y, n, y, uint16_t(-1), 4);
  } else {
    return __builtin_ia32_scalefpd512_mask(y, n, y, uint8_t(-1), 4);
  }
#else
  constexpr T magic = Float<T>::to_integer;
  const V half = n * T(0.5) + magic;
  return y * power_of_two(half) * power_of_two((n - (half - magic)) + magic);
#endif
}

template <class V>
RNNCC_INLINE bool any(Mask<element<V>> mask) {
  int64_t words[RNNCC_VECTOR_BYTES / 8];
  __builtin_memcpy(words, &mask, sizeof(words));
  int64_t all = 0;
  RNNCC_UNROLL
  for (int i = 0; i < RNNCC_VECTOR_BYTES / 8; ++i) all |= words[i];
  return all != 0;
}

// Return x, but at least low (at most high); NaN stays NaN. Each is one instruction where GCC has a name for it.
template <class V>
RNNCC_INLINE V at_least(element<V> low, V x) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  if constexpr (sizeof(element<V>) == 4) {
    return __builtin_ia32_maxps512_mask(broadcast(low), x, x, uint16_t(-1), 4);
  } else {
    return __builtin_ia32_maxpd512_mask(broadcast(low), x, x, uint8_t(-1), 4);
  }
#else
  return x < low ? broadcast(low) : x;
#endif
}

template <class V>
RNNCC_INLINE V at_most(element<V> high, V x) {
#if RNNCC_ISA_LEVEL == 4 && !defined(__clang__)
  if constexpr (sizeof(element<V>) == 4) {
    return __builtin_ia32_minps512_mask(broadcast(high), x, x, uint16_t(-1), 4);
  } else {
    return __builtin_ia32_minpd512_mask(broadcast(high), x, x, uint8_t(-1), 4);
  }
#else
  return x > high ? broadcast(high) : x;
#endif
}

// ---- exp

// x = n ln2 + r with n an integer, |r| <= ln2/2 and tail = e^r - 1; n_shifted = n + to_integer.
template <class V>
struct ExpParts {
  V n_shifted, n, tail;
};

// |x| may be at most about 2^10.
template <class V>
RNNCC_INLINE ExpParts<V> exp_parts(V x) {
  using T = element<V>;
  constexpr T magic = Float<T>::to_integer;
  const V shifted = x * T(1.44269504088896340736) + magic;
  const V n = shifted - magic;
  const V r = (x - n * Float<T>::ln2_high) - n * Float<T>::ln2_low;
  V q;
  if constexpr (sizeof(T) == 4) {
    q = polynomial(r, {0.5000000092418351f, 0.16666518808900083f, 0.0416662051484472207f, 0.00836890599908064263f,
                       0.0013950740698325517f});
  } else {
    q = polynomial(r, {0.500000000000001277, 0.166666666666667005, 0.041666666666515078, 0.00833333333330632639,
                       0.00138888889471280505, 0.000198412699190887603, 0.0000248014898064882829,
                       2.75572149441466388e-6, 2.7631334592011533e-7, 2.51182462025383011e-8});
  }
  return {shifted, n, r * r * q + r};
}

template <class V>
RNNCC_INLINE V exp(V x) {
  using T = element<V>;
  constexpr bool single = sizeof(T) == 4;
  // Beyond these bounds the result is 0 or infinity anyway. NaN passes both.
  constexpr T low = single ? T(-104) : T(-746), high = single ? T(89) : T(710);
  const ExpParts<V> e = exp_parts(at_most(high, at_least(low, x)));
  return scale(e.tail + T(1), e.n);
}

template <class V>
RNNCC_INLINE V expm1(V x) {
  using T = element<V>;
  constexpr bool single = sizeof(T) == 4;
  constexpr T low = single ? T(-20) : T(-40), high = single ? T(89) : T(710);
  const ExpParts<V> e = exp_parts(at_most(high, at_least(low, x)));
  // This is half of 2^n, which itself overflows just below the largest finite result.
  const V half = power_of_two(e.n_shifted - T(1));
  const V r = (e.tail * half + (half - T(0.5))) * T(2);
  return copysign(e.n == T(0) ? e.tail : r, x);
}

// ---- sigmoid and tanh

template <class V>
RNNCC_INLINE V sigmoid(V x) {
  using T = element<V>;
  const V e = exp(-abs(x));
  const V s = e + T(1);
  const V q = (x < T(0) ? e : broadcast(T(1))) / s;
  if constexpr (sizeof(T) == 8) return q;
  // In float the rounding of 1 + e is put right by q (1 - lost / s), with 1 / s to 5 %. Else the error could reach 2.3
  // ulp.
  const V lost = e - (s - T(1));
  return q - q * (lost * (T(0.957) - e * T(0.5)));
}

// In float it is x + x^3 P(x^2) up to 5/8, then 1 - 2 / (e^2|x| + 1). In double, where two more ulps are allowed and a
// polynomial would be long, it is expm1(2|x|) / (expm1(2|x|) + 2). Both are exactly 1 where the true value rounds to 1,
// and never above.
template <class V>
RNNCC_INLINE V tanh(V x) {
  using T = element<V>;
  if constexpr (sizeof(T) == 4) {
    const V t = at_most(10.0f, abs(x));
    const V z = t * t;
    const V near = t * z *
                       polynomial(z, {-0.333332839151562799f, 0.133314911504451616f, -0.0537434748653065208f,
                                      0.0206504491728527384f, -0.0057168181772519925f}) +
                   t;
    const ExpParts<V> e = exp_parts(t + t);
    const V power = power_of_two(e.n_shifted);
    const V far = 1.0f - 2.0f / (e.tail * power + (power + 1.0f));
    return copysign(t < 0.625f ? near : far, x);
  } else {
    const V t = at_most(20.0, abs(x));
    const ExpParts<V> e = exp_parts(t + t);
    const V power = power_of_two(e.n_shifted);
    const V m = e.tail * power + (power - 1.0);
    return copysign(m / (m + 2.0), x);
  }
}

// In float the error is up to 3 ulp, because two rounded factors are multiplied. Where sigmoid is denormal (x below
// -87, or -708 in double), the error is its rounding times |x|.
template <class V>
RNNCC_INLINE V silu(V x) {
  return x * sigmoid(x);
}

// ---- logarithms

// Returns log(u) + exponent_offset log(2) + correction. u is normal, finite and above 0, and the correction is small.
template <class V>
RNNCC_INLINE V log_normal(V u, V exponent_offset, V correction) {
  using T = element<V>;
  using I = Mask<T>;
  using U = typename VecOf<T>::unsigned_bits;
  constexpr T magic = Float<T>::to_integer;
  constexpr int bits = Float<T>::mantissa_bits;
  // Now u = 2^k m, and m is in [sqrt(1/2), sqrt(2)).
  const I moved = as_bits(u) + (as_bits(broadcast(T(1))) - Float<T>::sqrt_half_bits);
  const I exponent = reinterpret_cast<I>(reinterpret_cast<U>(moved) >> bits) - Float<T>::bias;
  const V k = (from_bits<T>(as_bits(broadcast(magic)) + exponent) - magic) + exponent_offset;
  const I mantissa = ((I{} + 1) << bits) - 1;
  const V f = from_bits<T>((moved & mantissa) + Float<T>::sqrt_half_bits) - T(1);
  const V s = f / (f + T(2));
  const V z = s * s;
  V tail;
  if constexpr (sizeof(T) == 4) {
    tail = polynomial(z, {0.666666656377799327f, 0.400003372257963314f, 0.285371662506938486f, 0.235850504041278619f});
  } else {
    tail = polynomial(z, {0.66666666666667353, 0.399999999994079127, 0.285714287440586763, 0.222221983861426347,
                          0.181835748066636346, 0.153137639296393473, 0.147989944125167379});
  }
  const V half_square = f * f * T(0.5);
  const V low = k * Float<T>::ln2_low + correction;
  return k * Float<T>::ln2_high + (f - (half_square - (s * (half_square + z * tail) + low)));
}

// Returns log(1 + x); 0 <= x < infinity.
template <class V>
RNNCC_INLINE V log1p_positive(V x) {
  using T = element<V>;
  const V u = x + T(1);
  const V part = u - T(1);
  const V lost = (T(1) - (u - part)) + (x - part);
  return log_normal(u, V{}, lost / u);
}

template <class V>
RNNCC_INLINE V log(V x) {
  using T = element<V>;
  constexpr int lift = Float<T>::mantissa_bits + 2;
  const auto small = x < Float<T>::min_normal;
  const V power = power_of_two(broadcast(T(lift)) + Float<T>::to_integer);
  const V r = log_normal(small ? x * power : x, small ? broadcast(T(-lift)) : V{}, V{});
  const V special = x == T(0) ? broadcast(-Float<T>::infinity) : x < T(0) ? broadcast(Float<T>::nan) : x;
  return ((x > T(0)) & (x < Float<T>::infinity)) ? r : special;
}

template <class V>
RNNCC_INLINE V log1p(V x) {
  using T = element<V>;
  const V special = x == T(-1) ? broadcast(-Float<T>::infinity) : x < T(-1) ? broadcast(Float<T>::nan) : x;
  return ((x > T(-1)) & (x < Float<T>::infinity)) ? copysign(log1p_positive(x), x) : special;
}

// As in torch, the result is the argument itself above 20.
template <class V>
RNNCC_INLINE V softplus(V x) {
  using T = element<V>;
  const V r = log1p_positive(exp(at_most(T(20), x)));
  return x <= T(20) ? r : x;
}

template <class V>
RNNCC_INLINE V logsigmoid(V x) {
  using T = element<V>;
  const V r = (x > T(0) ? V{} : x) - log1p_positive(exp(-abs(x)));
  return x == x ? r : x;
}

// The error is at most 2 ulp (float) or 4 ulp (double) of the larger argument; relative to a result near zero it is
// larger.
template <class A, class B>
RNNCC_INLINE common<A, B> logaddexp(A first, B second) {
  using V = common<A, B>;
  using T = element<V>;
  const V a = spread<V>(first), b = spread<V>(second);
  // The difference of equal infinities would be NaN, and must be 0.
  const V difference = a == b ? V{} : abs(a - b);
  const V larger = maximum(a, b);
  const V r = larger + log1p_positive(exp(-difference));
  return larger == larger ? r : larger + T(0);
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
