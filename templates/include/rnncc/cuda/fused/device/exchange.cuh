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

// A warp pauses before it polls, since a poll in vain slows down the CTAs that write. The pause grows by MORE cycles
// after a step in which the warp polled in vain, and shrinks by LESS after any other step: it learns a pause with which it
// polls too early in one step of nine.
struct Pause {
  static constexpr uint32_t MORE = 32, LESS = 4, MOST = 2048;
  uint32_t cycles = 0;
  RNNCC_DEVICE void wait() const {
    for (const uint32_t since = clock(); uint32_t(clock()) - since < cycles;) {
    }
  }
  RNNCC_DEVICE void learn(bool in_vain) {
    cycles = in_vain ? ::min(cycles + MORE, MOST) : cycles - ::min(cycles, LESS);
  }
};

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

// What the warps of a CTA receive of the reductions of phase P. Each lane polls for pieces of 16 bytes, which have what
// four items side by side give for its entry, joins these, and puts the result into shared memory as a part of 32 units.
// Lane 4r + q of warp w has entry r of each tile, and the pieces 4w + q, 4w + q + 4 WARPS, …. The pieces of a tile's
// LANE_ENTRIES entries lie side by side.
template <class Step, int P, int H, int WARPS, int ENTRY_TILES, int LANE_ENTRIES>
struct Received {
  static constexpr int NUMBERS = PhaseOf<Step, P>::REDUCTIONS, ITEMS = H / 8, PIECES = ceil_div(ITEMS, 4);
  using Given = Parts<at_least_one(NUMBERS), PIECES, 32>;
  static constexpr int BYTES = NUMBERS > 0 ? ENTRY_TILES * Given::BYTES : 0;
  static constexpr int PIECE_BYTES = 16 * LANE_ENTRIES;  // of a tile
  // A lane polls for BATCH of its pieces of each number at a time: for as many as it has registers for.
  static constexpr int OWN = ceil_div(PIECES, 4 * WARPS), ALL = OWN * ENTRY_TILES, MOST = 8 / at_least_one(NUMBERS);
  static constexpr int BATCH = MOST < 1 ? 1 : MOST < ALL ? MOST : ALL;

  // at(n): where the lane's entry of tile n has its numbers. `in_vain`: whether the warp polled more than once.
  template <class At>
  RNNCC_DEVICE static void receive(const FusedCall<Step>& call, const At& at, uint32_t to, bool& in_vain) {
    const int entry = threadIdx.x % 32 / 4, first_piece = threadIdx.x / 32 * 4 + threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < ALL; first += BATCH) {
      uint4 words[BATCH][NUMBERS];
      const auto tile = [&](int i) { return (first + i) / OWN; };
      const auto piece = [&](int i) { return first_piece + (first + i) % OWN * 4 * WARPS; };
      const auto exists = [&](int i) { return first + i < ALL && piece(i) < PIECES; };
      const auto word = [&](int i, int r, int k) {
        const uint4& v = words[i][r];
        return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
      };
      // The last piece may have fewer than four items.
      const auto has_come = [&](int i, int r) {
        bool all = true;
#pragma unroll
        for (int k = 0; k < 4; ++k) all &= (word(i, r, k) != NOT_YET) | (ITEMS % 4 != 0 && piece(i) * 4 + k >= ITEMS);
        return all;
      };
      const auto ask = [&](int i, int r) {
        words[i][r] = load16_relaxed(at(tile(i)) + (r * PIECES + piece(i)) * PIECE_BYTES);
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
        for (int r = 0; r < NUMBERS; ++r)
          if (exists(i))
            ask(i, r);
          else
            words[i][r] = {};
      for (Spin spin; !all_have_come(); spin.poll()) {
        in_vain = true;
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
#pragma unroll
          for (int r = 0; r < NUMBERS; ++r)
            if (!has_come(i, r)) ask(i, r);
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
        if (first + i < ALL && piece(i) < PIECES) join(call, words[i], piece(i), to + tile(i) * Given::BYTES, entry);
    }
  }

 private:
  // Joins what the four items of a piece give.
  RNNCC_DEVICE static void join(const FusedCall<Step>& call, const uint4 (&words)[at_least_one(NUMBERS)], int piece,
                                uint32_t to, int entry) {
    const auto given = [&](int r, int k) {
      const uint4& v = words[r];
      return __uint_as_float(k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w);
    };
    const auto units = [&](int k, int dim) { return piece * 32 + k * 8 < dim ? 8 : 0; };
    float all[NUMBERS];
    for_numbers<NUMBERS>([&](auto reduction) {
      constexpr int R = decltype(reduction)::value;
      if constexpr (PhaseOf<Step, P>::mean_of(R - 1) == 0)
        join_given<Step, P, H, R, Sharing<4, 8, 1, Step::WIDTHS == 1 && ITEMS % 4 == 0>>(call, given(R, 0), given,
                                                                                         units, all);
    });
    Given::store(to, piece, entry, all);
  }
};

}  // namespace rnncc
