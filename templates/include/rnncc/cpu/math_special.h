// The error function, trigonometric functions, powers and remainders. Include math.h, which says what holds for all.
#pragma once

#include "math_exp.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// ---- error function

template <class V>
RNNCC_INLINE V erf(V x) {
  using T = element<V>;
  constexpr T one_from = sizeof(T) == 4 ? T(4) : T(6);
  const V t = at_most(one_from, abs(x));
  const V z = t * t;
  const V v = (t - T(2)) / (t + T(2));
  // Near zero it is x + x P(x^2), from 1 on 1 - exp(-t^2) erfcx(t).
  V near, scaled;
  if constexpr (sizeof(T) == 4) {
    near = polynomial(
        z, {0.12837916706317836f, -0.376126384839539327f, 0.112837827488875241f, -0.0268654458933599859f,
            0.00522107501721732708f, -0.000848471269566868045f, 0.000112705487627922659f, -9.68013705201456867e-6f});
    scaled =
        polynomial(v, {0.255395676833304826f, -0.427185874944911081f, 0.241657458167527437f, -0.0789813944893699941f,
                       0.00376711222933865665f, 0.00731611400936756469f, 0.000103518462259514794f});
  } else {
    near = polynomial(
        z, {0.12837916709551257, -0.376126389031837524, 0.112837916709551204, -0.0268661706451298682,
            0.0052239776254236104, -0.000854832702195602504, 0.000120553329038126011, -0.0000149256475944978538,
            1.64620459805576314e-6, -1.63646495514651601e-7, 1.4792469644520129e-8, -1.21649686171655611e-9,
            8.71046533665047274e-11, -4.23312952867958064e-12});
    scaled = polynomial(
        v, {0.25539567631050571, -0.427185847413955415, 0.241658194242556151, -0.0789785810159986849,
            0.0037328923857821302, 0.00699746165981549156, -0.000847142468152389622, -0.000981970994985802098,
            0.0000435533965846221376, 0.000174251194747936384, 0.0000273412401929547583, -0.0000269882151370705841,
            -0.0000123460803004461618, 7.13962343127331865e-7});
  }
  const V far = copysign(T(1) - exp(-z) * scaled, x);
  return t < T(1) ? x * near + x : far;
}

// The exact form, by erf. For x < 0 the error is 2 ulp (float) or 4 ulp (double) of x/2, as in torch, because 1 + erf
// cancels.
template <class V>
RNNCC_INLINE V gelu(V x) {
  using T = element<V>;
  return x * T(0.5) * (erf(x * T(0.70710678118654752440)) + T(1));
}

// ---- trigonometric functions

// Returns sin(x + quadrant pi/2). Arguments above 1e4 (float) or 1e6 (double) go lane by lane through the C library.
template <int quadrant, class V>
RNNCC_INLINE V sine_from(V x) {
  using T = element<V>;
  using I = Mask<T>;
  constexpr bool single = sizeof(T) == 4;
  const V shifted = x * T(0.63661977236758134308) + Float<T>::to_integer;
  const V n = shifted - Float<T>::to_integer;
  V r, sine, cosine;
  if constexpr (single) {
    r = ((x - n * 0x1.92p+0f) - n * 0x1.fb4p-12f) - (n * 0x1.444p-24f + n * 0x1.68c234p-39f);
    const V z = r * r;
    sine = r * z * polynomial(z, {-0.166666549197175606f, 0.00833217616137571092f, -0.000195169966742178247f}) + r;
    cosine = z * z * polynomial(z, {0.0416666468326212355f, -0.00138873653308332599f, 0.0000244381586704036157f}) +
             (T(1) - z * T(0.5));
  } else {
    r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - (n * 0x1.3198a2ep-69 + n * 0x1.b839a252049c1p-104);
    const V z = r * r;
    sine = r * z *
               polynomial(
                   z, {-0.166666666666666666, 0.00833333333333332277, -0.000198412698412550631, 2.75573192141878744e-6,
                       -2.50521049108776787e-8, 1.60583665322446509e-10, -7.57869294496442948e-13}) +
           r;
    cosine = z * z *
                 polynomial(z, {0.0416666666666665992, -0.00138888888888740741, 0.0000248015872894478855,
                                -2.75573143416296582e-7, 2.08757217255895864e-9, -1.1359563472828705e-11}) +
             (T(1) - z * T(0.5));
  }
  const I turns = as_bits(shifted) + quadrant;
  V y = ((turns & 1) != 0) ? cosine : sine;
  y = ((turns & 2) != 0) ? -y : y;
  if constexpr (quadrant == 0) y = x == T(0) ? x : y;
  const I large = abs(x) > (single ? T(1e4) : T(1e6));
  if (__builtin_expect(any<V>(large), 0)) {
    for (int i = 0; i < lanes<T>; ++i) {
      if (!large[i]) continue;
      if constexpr (single) {
        y[i] = quadrant == 0 ? __builtin_sinf(x[i]) : __builtin_cosf(x[i]);
      } else {
        y[i] = quadrant == 0 ? __builtin_sin(x[i]) : __builtin_cos(x[i]);
      }
    }
  }
  return y;
}

template <class V>
RNNCC_INLINE V sin(V x) {
  return sine_from<0>(x);
}

template <class V>
RNNCC_INLINE V cos(V x) {
  return sine_from<1>(x);
}

// ---- powers and remainders

template <class V>
RNNCC_INLINE V rsqrt(V x) {
  return element<V>(1) / sqrt(x);
}

// Returns x^N by repeated squaring, for small N: each product rounds, and each squaring doubles the error so far.
template <int N, class V>
RNNCC_INLINE V powi(V x) {
  if constexpr (N < 0) {
    return element<V>(1) / powi<-N>(x);
  } else if constexpr (N == 0) {
    return broadcast(element<V>(1));
  } else if constexpr (N == 1) {
    return x;
  } else if constexpr (N % 2 == 0) {
    return powi<N / 2>(x * x);
  } else {
    return x * powi<N - 1>(x);
  }
}

// Calls the C library's pow, lane by lane.
template <class A, class B>
RNNCC_INLINE common<A, B> pow(A base, B exponent) {
  using V = common<A, B>;
  const V a = spread<V>(base), b = spread<V>(exponent);
  V r = {};
  for (int i = 0; i < lanes<element<V>>; ++i) {
    if constexpr (sizeof(element<V>) == 4) {
      r[i] = __builtin_powf(a[i], b[i]);
    } else {
      r[i] = __builtin_pow(a[i], b[i]);
    }
  }
  return r;
}

// As torch.remainder: fmod, moved to the sign of the divisor.
template <class A, class B>
RNNCC_INLINE common<A, B> remainder(A dividend, B divisor) {
  using V = common<A, B>;
  using T = element<V>;
  const V a = spread<V>(dividend), b = spread<V>(divisor);
  V r = {};
  for (int i = 0; i < lanes<T>; ++i) {
    if constexpr (sizeof(T) == 4) {
      r[i] = __builtin_fmodf(a[i], b[i]);
    } else {
      r[i] = __builtin_fmod(a[i], b[i]);
    }
  }
  return ((r != T(0)) & ((r < T(0)) ^ (b < T(0)))) ? r + b : r;
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
