// Reductions over a head: what a warp joins of its own units, and what it joins of the parts that others have given. All
// joins have a fixed order, so results have the same bits in every run, and in all warps.
#pragma once

#include "step.cuh"

namespace rnncc {

// What changes nothing when it is joined: 0, or minus infinity.
template <bool LARGEST>
RNNCC_DEVICE float nothing_joined() {
  return LARGEST ? __uint_as_float(0xff800000u) : 0.0f;
}

// Joins a lane's number with those of the lanes whose indices differ in the bits from FROM to TO, which are masks of one
// bit.
template <bool LARGEST, int FROM, int TO>
RNNCC_DEVICE float joined_lanes(float number) {
  number = joined<LARGEST>(number, __shfl_xor_sync(~0u, number, FROM));
  if constexpr (FROM < TO)
    return joined_lanes<LARGEST, 2 * FROM, TO>(number);
  else
    return number;
}

// The same for moments: the sum of SUMMED means, each of COUNT numbers, and the squares of the deviations of all these
// numbers from their mean. Where means differ, this adds to the squares. Nothing cancels (Chan, Golub, LeVeque, 1979).
// The difference of two sums is all that counts, so one number may have been subtracted from all means before.
template <int COUNT, int SUMMED, int FROM, int TO>
RNNCC_DEVICE void join_moments(float& sum, float& squares) {
  const float other = __shfl_xor_sync(~0u, sum, FROM), apart = other - sum;
  squares += __shfl_xor_sync(~0u, squares, FROM);
  squares += apart * (apart * (0.5f * COUNT / SUMMED));
  sum += other;
  if constexpr (FROM < TO) join_moments<COUNT, 2 * SUMMED, 2 * FROM, TO>(sum, squares);
}

// What an item gives to the reductions of phase P: its units' values, joined. The lanes of even rows get what it gives for
// their first entry, and those of odd rows what it gives for their second. `has_unit` says for each width whether the
// lane's unit is in it. An item has all of its units in a width, or none. What it gives to moments of a width in which
// it has none, nobody takes.
template <class Step, int P>
RNNCC_DEVICE void join_units(const float (&taken)[2][PhaseOf<Step, P>::TAKES], const bool (&has_unit)[Step::WIDTHS],
                             float (&joined_number)[at_least_one(PhaseOf<Step, P>::REDUCTIONS)]) {
  using Phase = PhaseOf<Step, P>;
  const bool is_odd = threadIdx.x & 4;
  // The lane's number for the entry that it joins, and that of the next row for the same entry.
  const auto kept = [&](int r) { return is_odd ? taken[1][Phase::OPERANDS + r] : taken[0][Phase::OPERANDS + r]; };
  const auto got = [&](int r) {
    return __shfl_xor_sync(~0u, is_odd ? taken[0][Phase::OPERANDS + r] : taken[1][Phase::OPERANDS + r], 4);
  };
  for_numbers<Phase::REDUCTIONS>([&](auto reduction) {
    constexpr int R = decltype(reduction)::value, COUNT = Phase::mean_of(R);
    constexpr bool LARGEST = has(Phase::LARGEST, R);
    if constexpr (COUNT > 0) {
      // The first of the means is subtracted from all, so that large means that differ little lose no digits.
      const float first = kept(R), second = got(R), base = __shfl_sync(~0u, first, threadIdx.x % 8);
      const float apart = second - first;
      float sum = (first - base) + (second - base);
      // A single number has no deviations.
      const float own_squares = COUNT > 1 ? kept(R + 1) + got(R + 1) : 0.0f;
      float squares = own_squares + apart * (apart * (0.5f * COUNT));
      join_moments<COUNT, 2, 8, 16>(sum, squares);
      joined_number[R] = base + sum * 0.125f;
      joined_number[R + 1] = squares;
    } else if constexpr (Phase::mean_of(R - 1) == 0) {
      const float number = joined_lanes<LARGEST, 8, 16>(joined<LARGEST>(kept(R), got(R)));
      joined_number[R] =
          Step::WIDTHS == 1 || has_unit[width_of<Step, Value::reduction, P>(R)] ? number : nothing_joined<LARGEST>();
    }
  });
}

// The parts of a phase's reductions in shared memory, for a tile of 8 entries. Part s is what the UNITS_ units from
// s · UNITS_ on give: NUMBERS_ floats for each entry. The floats [part][number] of an entry lie in pieces of 16 bytes, as
// [piece][entry].
template <int NUMBERS_, int PARTS_, int UNITS_>
struct Parts {
  static constexpr int NUMBERS = NUMBERS_, PARTS = PARTS_, UNITS = UNITS_;
  static constexpr int PIECES = ceil_div(NUMBERS * PARTS, 4), BYTES = PIECES * 128;
  __host__ __device__ static constexpr int place(int part, int number, int entry) {
    const int i = part * NUMBERS + number;
    return i / 4 * 128 + entry * 16 + i % 4 * 4;
  }
  // Numbers that one instruction stores: they are never in two pieces.
  static constexpr int AT_ONCE = NUMBERS % 2 == 0 ? 2 : 1;
  RNNCC_DEVICE static void store(uint32_t to, int part, int entry, const float (&given)[NUMBERS]) {
#pragma unroll
    for (int r = 0; r < NUMBERS; r += AT_ONCE)
      if constexpr (AT_ONCE == 2)
        shared_at<float2>(to + place(part, r, entry)) = make_float2(given[r], given[r + 1]);
      else
        shared_at<float>(to + place(part, r, entry)) = given[r];
  }
};

// How parts that lie one after the other are joined: OWN of them by each lane, and SHARERS lanes share those of an entry,
// whose indices differ in the bits from 8 on. Where lanes are ALIKE, each has OWN parts of UNITS units.
template <int OWN_, int UNITS_, int SHARERS_, bool ALIKE_>
struct Sharing {
  static constexpr int OWN = OWN_, UNITS = UNITS_, SHARERS = SHARERS_;
  static constexpr bool ALIKE = ALIKE_;
};

// Joins number R of the parts of phase P, and number R + 1 with it where R is a mean. given(r, k) is number r of the
// lane's part k, and units(k, dim) is how many units of a head_dim the part has. `base` is one of the means, the same for
// all lanes of an entry. So large means that differ little lose no digits.
template <class Step, int P, int H, int R, class Sharing, class Given, class Units>
RNNCC_DEVICE void join_given(const FusedCall<Step>& call, float base, const Given& given, const Units& units,
                             float (&all)[PhaseOf<Step, P>::REDUCTIONS]) {
  using Phase = PhaseOf<Step, P>;
  constexpr int COUNT = Phase::mean_of(R), OWN = Sharing::OWN, UNITS = Sharing::UNITS, SHARERS = Sharing::SHARERS;
  constexpr int TO = 4 * SHARERS;
  if constexpr (COUNT == 0) {
    constexpr bool LARGEST = has(Phase::LARGEST, R);
    all[R] = joined_of<LARGEST, 0, OWN>(
        [&](int k) { return Sharing::ALIKE || units(k, H) > 0 ? given(R, k) : nothing_joined<LARGEST>(); });
    if constexpr (SHARERS > 1) all[R] = joined_lanes<LARGEST, 8, TO>(all[R]);
  } else if constexpr (Sharing::ALIKE) {
    const auto mean = [&](int k) { return given(R, k) - base; };
    float sum = joined_of<false, 0, OWN>(mean);
    const float middle = sum * (1.0f / OWN);
    float squares = joined_of<false, 0, OWN>([&](int k) { return given(R + 1, k); });
    squares += squares_of<OWN>([&](int k) { return mean(k) - middle; }) * float(UNITS * COUNT);
    if constexpr (SHARERS > 1) join_moments<UNITS * COUNT, OWN, 8, TO>(sum, squares);
    all[R] = base + sum * (1.0f / (OWN * SHARERS));
    all[R + 1] = squares;
  } else {
    // Parts may have fewer units, or none. So the mean of all is known before the deviations from it are.
    const int dim = head_dim_of<Step, H>(call, width_of<Step, Value::reduction, P>(R));
    const auto of_units = [&](int k, float x) { return units(k, dim) > 0 ? x * units(k, dim) : 0.0f; };
    float sum = joined_of<false, 0, OWN>([&](int k) { return of_units(k, given(R, k) - base); });
    float count = joined_of<false, 0, OWN>([&](int k) { return float(units(k, dim)); });
    if constexpr (SHARERS > 1) {
      sum = joined_lanes<false, 8, TO>(sum);
      count = dim;
    }
    const float middle = __fdividef(sum, count);
    float squares = joined_of<false, 0, OWN>([&](int k) {
      const float apart = given(R, k) - base - middle;
      return (units(k, dim) > 0 ? given(R + 1, k) : 0.0f) + of_units(k, apart * (apart * COUNT));
    });
    if constexpr (SHARERS > 1) squares = joined_lanes<false, 8, TO>(squares);
    all[R] = base + middle;
    all[R + 1] = squares;
  }
}

// Joins all parts of the reductions of phase P: reduced[j] is for the lane's entry j, as an item has them. H: the
// head_dim. All lanes of a warp call it.
template <class Step, int P, int H, class Parts>
RNNCC_DEVICE void join_parts(const FusedCall<Step>& call, uint32_t from,
                             float (&reduced)[2][at_least_one(PhaseOf<Step, P>::REDUCTIONS)]) {
  using Phase = PhaseOf<Step, P>;
  constexpr int NUMBERS = Parts::NUMBERS, UNITS = Parts::UNITS, PARTS = ceil_div(H, UNITS);
  // Some parts side by side have whole pieces. Where parts are few, a lane reads all parts of its entry.
  constexpr int ALIGNED = NUMBERS % 4 == 0 ? 1 : NUMBERS % 2 == 0 ? 2 : 4, SHARERS = PARTS <= 8 ? 1 : 4;
  constexpr int OWN = ceil_div(PARTS, ALIGNED * SHARERS) * ALIGNED;
  constexpr bool ALIKE = Step::WIDTHS == 1 && H == OWN * SHARERS * UNITS;
  const int lane = threadIdx.x % 32, entry = lane % 4 * 2 + lane / 4 % 2, share = SHARERS == 1 ? 0 : lane / 8;
  const auto part = [&](int k) { return (k / ALIGNED * SHARERS + share) * ALIGNED + k % ALIGNED; };
  float number[OWN * NUMBERS];
#pragma unroll
  for (int i = 0; i < OWN * NUMBERS; i += 4) {
    const int in_group = i % (ALIGNED * NUMBERS),
              piece = (part(i / NUMBERS / ALIGNED * ALIGNED) * NUMBERS + in_group) / 4;
    if (!ALIKE && piece >= Parts::PIECES) continue;
    const float4 v = shared_at<const float4>(from + piece * 128 + entry * 16);
    number[i] = v.x, number[i + 1] = v.y, number[i + 2] = v.z, number[i + 3] = v.w;
  }
  const auto given = [&](int r, int k) { return number[k * NUMBERS + r]; };
  const auto units = [&](int k, int dim) { return ::min(::max(dim - part(k) * UNITS, 0), UNITS); };
  float all[Phase::REDUCTIONS];
  for_numbers<Phase::REDUCTIONS>([&](auto reduction) {
    constexpr int R = decltype(reduction)::value;
    if constexpr (Phase::mean_of(R - 1) == 0)
      join_given<Step, P, H, R, Sharing<OWN, UNITS, SHARERS, ALIKE>>(
          call, SHARERS == 1 ? number[R] : shared_at<const float>(from + Parts::place(0, R, entry)), given, units, all);
  });
  // A lane has one entry, and needs two.
#pragma unroll
  for (int r = 0; r < Phase::REDUCTIONS; ++r)
#pragma unroll
    for (int j = 0; j < 2; ++j) reduced[j][r] = __shfl_sync(~0u, all[r], lane % 4 + 4 * j);
}

}  // namespace rnncc
