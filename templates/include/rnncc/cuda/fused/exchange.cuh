// What the CTAs of a grid send each other through L2. Each word of the exchange was set to a pattern that no conversion
// makes, so that the word itself says whether it has arrived.
#pragma once

#include "reduce.cuh"
#include "resident.cuh"

namespace rnncc {

constexpr uint32_t NOT_YET = 0xffffffffu;
// A float as a word of the exchange, which is never NOT_YET. A NaN with these bits becomes another NaN.
RNNCC_DEVICE uint32_t message(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits == NOT_YET ? 0x7fffffffu : bits;
}

// The part of a chunk that a lane polls for, in a tile of entries: terms 8q…8q+7 of one entry.
template <class E>
struct Message {
  static constexpr int PARTS = sizeof(E) / 2;  // parts of 16 bytes
  uint4 part[PARTS];
  // It uses & since && would make branches.
  RNNCC_DEVICE bool has_come() const {
    bool all = true;
#pragma unroll
    for (const uint4& v : part) all &= (v.x != NOT_YET) & (v.y != NOT_YET) & (v.z != NOT_YET) & (v.w != NOT_YET);
    return all;
  }
  RNNCC_DEVICE void ask(const char* from) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i) part[i] = load16_relaxed(from + i * 16);
  }
};

// How many pieces of 16 bytes a lane receives at a time: as many as it has registers for.
template <class Step>
constexpr int RECEIVED_PIECES = Step::MASKED ? 8 : 12;

// Polls for what the items of a head give to the reductions of phase P for the lane's entry, from `from` on, and joins
// it over the four lanes of a row. A lane reads pieces q, q + 4, … of 16 bytes; each has the numbers of four items.
// `wanted`: whether CTAs send them for the lane's entry. `in_vain`: whether the warp polled more than once.
template <class Step, int P, int H>
RNNCC_DEVICE Joined<Step, P> received(const FusedCall<Step>& call, const char* from, bool wanted, bool& in_vain) {
  constexpr int NUMBERS = PhaseOf<Step, P>::REDUCTIONS, ITEMS = H / 8, ALL = ceil_div(ITEMS, 4);
  constexpr int PIECES = ceil_div(ALL, 4), MOST = at_least_one(RECEIVED_PIECES<Step> / NUMBERS);
  constexpr int BATCH = ceil_div(PIECES, ceil_div(PIECES, MOST));
  const int q = threadIdx.x % 4;
  Joined<Step, P> all([](int) { return 0.0f; });
#pragma unroll
  for (int first = 0; first < PIECES; first += BATCH) {
    uint4 piece[BATCH][NUMBERS];
    const auto item = [&](int i, int k) { return ((first + i) * 4 + q) * 4 + k; };
    const auto exists = [&](int i, int k) { return wanted && first + i < PIECES && item(i, k) < ITEMS; };
    const auto number = [&](int i, int r, int k) {
      const uint4& v = piece[i][r];
      return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
    };
    const auto ask = [&](int i, int r) {
      if (exists(i, 0)) piece[i][r] = load16_relaxed(from + (r * ALL + (first + i) * 4 + q) * 16);
    };
    const auto has_come = [&](int i, int r) {
      bool all = true;
#pragma unroll
      for (int k = 0; k < 4; ++k) all &= !exists(i, k) | (number(i, r, k) != NOT_YET);
      return all;
    };
    const auto all_have_come = [&] {
      bool all = true;
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
#pragma unroll
        for (int r = 0; r < NUMBERS; ++r) all &= has_come(i, r);
      return __all_sync(~0u, all);
    };
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
#pragma unroll
      for (int r = 0; r < NUMBERS; ++r) {
        piece[i][r] = {};
        ask(i, r);
      }
    for (Spin spin; !all_have_come(); spin.poll()) {
      in_vain = true;
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
#pragma unroll
        for (int r = 0; r < NUMBERS; ++r)
          if (!has_come(i, r)) ask(i, r);
    }
    if (first == 0)
      all = Joined<Step, P>(
          [&](int r) { return __shfl_sync(~0u, __uint_as_float(number(0, r, 0)), threadIdx.x % 32 - q); });
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (!exists(i, k)) continue;
        float given[NUMBERS];
#pragma unroll
        for (int r = 0; r < NUMBERS; ++r) given[r] = __uint_as_float(number(i, r, k));
        all.template add<H>(call, (first + i) * 4 + k, item(i, k), given);
      }
  }
  all.template join_lanes<1, 2, Step::WIDTHS == 1 && ITEMS % 16 == 0>();
  return all;
}

}  // namespace rnncc
