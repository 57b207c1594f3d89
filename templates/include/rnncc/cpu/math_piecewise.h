// Piecewise functions and conditions. Include math.h, which says what holds for all.
#pragma once

#include "math_exp.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// ---- piecewise functions, conditions

#define RNNCC_CONDITION(name, op)                                  \
  template <class A, class B>                                      \
  RNNCC_INLINE common<A, B> name(A a, B b) {                       \
    using V = common<A, B>;                                        \
    using T = element<V>;                                          \
    return (spread<V>(a) op spread<V>(b)) ? broadcast(T(1)) : V{}; \
  }
RNNCC_CONDITION(lt, <)
RNNCC_CONDITION(le, <=)
RNNCC_CONDITION(gt, >)
RNNCC_CONDITION(ge, >=)
RNNCC_CONDITION(eq, ==)
RNNCC_CONDITION(ne, !=)
#undef RNNCC_CONDITION

// a where the condition is not 0, else b.
template <class C, class A, class B>
RNNCC_INLINE common<C, common<A, B>> where(C condition, A a, B b) {
  using V = common<C, common<A, B>>;
  return spread<V>(condition) != element<V>(0) ? spread<V>(a) : spread<V>(b);
}

// torch.maximum and torch.minimum.
template <class A, class B>
RNNCC_INLINE common<A, B> max(A a, B b) {
  using V = common<A, B>;
  return maximum(spread<V>(a), spread<V>(b));
}

template <class A, class B>
RNNCC_INLINE common<A, B> min(A a, B b) {
  using V = common<A, B>;
  return minimum(spread<V>(a), spread<V>(b));
}

// torch.clamp: min(max(x, low), high), NaN if any is.
template <class V, class A, class B>
RNNCC_INLINE V clamp(V x, A low, B high) {
  return minimum(maximum(x, spread<V>(low)), spread<V>(high));
}

template <class V>
RNNCC_INLINE V relu(V x) {
  return x < element<V>(0) ? V{} : x;
}

template <class V>
RNNCC_INLINE V hardtanh(V x) {
  return clamp(x, element<V>(-1), element<V>(1));
}

template <class V>
RNNCC_INLINE V hardsigmoid(V x) {
  using T = element<V>;
  return clamp(x + T(3), T(0), T(6)) / T(6);
}

template <class V>
RNNCC_INLINE V elu(V x) {
  return x > element<V>(0) ? x : expm1(x);
}

template <class V>
RNNCC_INLINE V leakyrelu(V x) {
  return x > element<V>(0) ? x : x * element<V>(0.01);
}

// -1, 0, 1; as in torch 0 for NaN.
template <class V>
RNNCC_INLINE V sign(V x) {
  using T = element<V>;
  return x > T(0) ? broadcast(T(1)) : x < T(0) ? broadcast(T(-1)) : V{};
}

// 1 above 0, else 0; as in torch 0 for NaN.
template <class V>
RNNCC_INLINE V heaviside(V x) {
  using T = element<V>;
  return x > T(0) ? broadcast(T(1)) : V{};
}

// The nearest whole number, halves to the even one; the sign stays, as in torch. From 2^23 (2^52) on all are whole.
template <class V>
RNNCC_INLINE V round(V x) {
  using T = element<V>;
  constexpr T whole = Float<T>::to_integer / T(1.5);
  const V magnitude = abs(x);
  return magnitude < whole ? copysign((magnitude + whole) - whole, x) : x;
}

// The largest whole number that is not above x.
template <class V>
RNNCC_INLINE V floor(V x) {
  const V near = round(x);
  return near > x ? near - element<V>(1) : near;
}

template <class T>
RNNCC_INLINE T infinity() {
  return T(__builtin_inf());
}
template <class T>
RNNCC_INLINE T not_a_number() {
  return T(__builtin_nan(""));
}

// The machine epsilon of V's element; the argument only gives the type.
template <class V>
RNNCC_INLINE V epsilon(V) {
  return broadcast(Float<element<V>>::epsilon);
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
