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

// Polls for SOURCES floats of the lane's entry from `from` on, and joins them over the four lanes of a row. A lane
// reads pieces q, q + 4, … of 16 bytes. Where they are not `wanted`, nobody sends them.
template <bool LARGEST, int SOURCES>
RNNCC_DEVICE float received(const char* from, bool wanted) {
  constexpr int PIECES = ceil_div(ceil_div(SOURCES, 4), 4);
  const int q = threadIdx.x % 4;
  uint4 piece[PIECES];
  const auto number = [&](int i, int k) {
    const uint4& v = piece[i];
    return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
  };
  const auto exists = [&](int i, int k) { return wanted && (i * 4 + q) * 4 + k < SOURCES; };
  const auto ask = [&](int i) {
    if (exists(i, 0)) piece[i] = load16_relaxed(from + (i * 4 + q) * 16);
  };
  const auto has_come = [&](int i) {
    bool all = true;
#pragma unroll
    for (int k = 0; k < 4; ++k) all &= !exists(i, k) | (number(i, k) != NOT_YET);
    return all;
  };
  const auto all_have_come = [&] {
    bool all = true;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) all &= has_come(i);
    return __all_sync(~0u, all);
  };
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    piece[i] = {};
    ask(i);
  }
  for (Spin spin; !all_have_come(); spin.poll()) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
      if (!has_come(i)) ask(i);
  }
  float all = nothing_joined<LARGEST>();
#pragma unroll
  for (int i = 0; i < PIECES; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (exists(i, k)) all = joined<LARGEST>(all, __uint_as_float(number(i, k)));
  return joined_over_lanes<LARGEST, 1, 2>(all);
}

}  // namespace rnncc
