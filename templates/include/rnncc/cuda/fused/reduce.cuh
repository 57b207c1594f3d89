// Reductions over the units of a head: what a warp joins of its own units, and how lanes join their values. Every warp
// joins in the same order, so all have the same bits.
#pragma once

#include "step.cuh"

namespace rnncc {

// The sum of two numbers, or the larger one.
template <bool LARGEST>
RNNCC_DEVICE float joined(float a, float b) {
  return LARGEST ? maximum(a, b) : a + b;
}
// What changes nothing when it is joined: 0, or minus infinity.
template <bool LARGEST>
RNNCC_DEVICE float nothing_joined() {
  return LARGEST ? __uint_as_float(0xff800000u) : 0.0f;
}

// What the reductions of phase P make of some numbers of one batch entry: first of those that a lane has, at last of
// all. Until lanes have joined theirs, `base` is subtracted from a mean. It is one of the numbers, the same for all
// lanes. So large numbers that differ little lose no digits.
template <class Step, int P>
struct Joined {
  using Phase = PhaseOf<Step, P>;
  static constexpr int NUMBERS = at_least_one(Phase::REDUCTIONS);
  float number[NUMBERS], base[NUMBERS];
  float count[NUMBERS] = {};  // how many numbers a mean is made of

  // `first(r)` is the base of mean r. All lanes call it.
  template <class First>
  RNNCC_DEVICE explicit Joined(const First& first) {
    for_numbers<Phase::REDUCTIONS>([&](auto reduction) {
      constexpr int R = decltype(reduction)::value;
      number[R] = nothing_joined<has(Phase::LARGEST, R)>();
      if constexpr (Phase::mean_of(R) > 0) base[R] = first(R);
    });
  }

  // Joins with what an item gave: the lane's n-th, in the order of items.
  template <int H>
  RNNCC_DEVICE void add(const FusedCall<Step>& call, int n, int item, const float (&given)[NUMBERS]) {
    for_numbers<Phase::REDUCTIONS>([&](auto reduction) {
      constexpr int R = decltype(reduction)::value, COUNT = 8 * Phase::mean_of(R);
      if constexpr (COUNT > 0) {
        // The last items have no units of a narrower value.
        if (item >= head_dim_of<Step, H>(call, width_of<Step, Value::reduction, P>(R)) / 8) return;
        // Where a mean differs from that of the others, this adds to the squares of deviations. Nothing cancels (Chan,
        // Golub, LeVeque, 1979).
        const float apart = given[R] - base[R] - number[R];
        number[R] += apart * (1.0f / (n + 1));
        number[R + 1] += given[R + 1] + apart * (apart * (float(COUNT) * n / (n + 1)));
        count[R] += COUNT;
      } else if constexpr (Phase::mean_of(R - 1) == 0) {
        number[R] = joined<has(Phase::LARGEST, R)>(number[R], given[R]);
      }
    });
  }

  // Joins what lanes have whose indices differ only in the bits from FROM to TO. Both are masks of one bit. All these
  // lanes get the same result, bit by bit: either it stays the same if two of them change places, or each joins in the
  // order of the lanes. ALIKE: all lanes have as many numbers.
  template <int FROM, int TO, bool ALIKE>
  RNNCC_DEVICE void join_lanes() {
    for_numbers<Phase::REDUCTIONS>([&](auto reduction) {
      constexpr int R = decltype(reduction)::value;
      if constexpr (Phase::mean_of(R) > 0) {
        const float other = __shfl_xor_sync(~0u, number[R], FROM);
        const float squares = number[R + 1] + __shfl_xor_sync(~0u, number[R + 1], FROM);
        if constexpr (ALIKE) {
          const float apart = other - number[R];
          number[R] = 0.5f * (number[R] + other);
          number[R + 1] = squares + apart * (apart * (0.5f * count[R]));
          count[R] += count[R];
        } else {
          const bool is_first = !(threadIdx.x & FROM);
          const float other_count = __shfl_xor_sync(~0u, count[R], FROM), both = count[R] + other_count;
          const float before = is_first ? count[R] : other_count;
          const float share = both > 0.0f ? __fdividef(both - before, both) : 0.0f;
          const float first = is_first ? number[R] : other, apart = (is_first ? other : number[R]) - first;
          number[R] = first + apart * share;
          number[R + 1] = squares + apart * (apart * (before * share));
          count[R] = both;
        }
      } else if constexpr (Phase::mean_of(R - 1) == 0) {
        number[R] = joined<has(Phase::LARGEST, R)>(number[R], __shfl_xor_sync(~0u, number[R], FROM));
      }
    });
    if constexpr (FROM < TO)
      join_lanes<2 * FROM, TO, ALIKE>();
    else
      for_numbers<Phase::REDUCTIONS>([&](auto reduction) {
        constexpr int R = decltype(reduction)::value;
        if constexpr (Phase::mean_of(R) > 0) number[R] += base[R];
      });
  }
};

// What an item gives to the reductions of a phase: its units' values of an entry, joined. `has_unit` says for each width
// whether the lane's unit is in it. An item has all of its units in a width, or none.
template <class Step, int P>
RNNCC_DEVICE Joined<Step, P> joined_units(const float (&taken)[PhaseOf<Step, P>::TAKES],
                                          const bool (&has_unit)[Step::WIDTHS]) {
  using Phase = PhaseOf<Step, P>;
  const auto given = [&](int r) { return taken[Phase::OPERANDS + r]; };
  Joined<Step, P> all([&](int r) { return __shfl_sync(~0u, given(r), threadIdx.x % 4); });
  for_numbers<Phase::REDUCTIONS>([&](auto reduction) {
    constexpr int R = decltype(reduction)::value, COUNT = Phase::mean_of(R);
    if (has_unit[width_of<Step, Value::reduction, P>(R)]) all.number[R] = COUNT > 0 ? given(R) - all.base[R] : given(R);
    all.count[R] = COUNT;
  });
  all.template join_lanes<4, 16, true>();
  return all;
}

}  // namespace rnncc
