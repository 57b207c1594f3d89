// The part of a loop's matrices that a warp holds on chip for the whole sequence, and its products. All families but
// stepwise share this.
#pragma once

#include "step.cuh"

namespace rnncc {

// The pairs of k16 tiles, each of 32 terms, that a warp has. Some are in registers, and the others in shared memory.
// The latter stand between the former, so that they are loaded during products.
template <int PAIRS_, int REGISTER_PAIRS_>
struct Pairs {
  static constexpr int PAIRS = PAIRS_, REGISTER_PAIRS = REGISTER_PAIRS_ < PAIRS_ ? REGISTER_PAIRS_ : PAIRS_;
  static constexpr int SHARED_PAIRS = PAIRS - REGISTER_PAIRS;
  __host__ __device__ static constexpr bool in_shared(int p) {
    return (p + 1) * SHARED_PAIRS / PAIRS > p * SHARED_PAIRS / PAIRS;
  }
  __host__ __device__ static constexpr int shared_before(int p) { return p * SHARED_PAIRS / PAIRS; }
};

// How many rows of each half-tile a lane has in float32, where a warp has so many half-tiles. It multiplies each operand
// that it loads by all of its rows. Shared memory hands an SM 128 bytes per cycle, and a lane with up to four rows waits for
// it. More rows take more registers: a layout limits them to `most`, which is 1 or 4. rows_of_lane in
// rnncc/stages/schedule/lanes.py has the same rule.
__host__ __device__ constexpr int rows_of_lane(int halves, int most) {
  return halves >= 4 ? 1 : halves >= 2 && most > 2 ? 2 : most;
}

// A lane's part of the sums of a tile of entries in float32: [half-tile][row][entry].
template <int HALVES, int ROWS>
struct LaneSums {
  float of[HALVES][ROWS][8] = {};
};

// HALVES half-tiles of 8 rows of a matrix of 16-bit elements, as fragments of tensor core products of 16 rows. Where the
// number is odd, the last tile has zeros in its upper half. They take registers, since an operand of a product is four
// registers in a row, but no shared memory. LANE_ROWS is for floats.
template <class E, int PAIRS_, int HALVES_, int REGISTER_PAIRS_, int LANE_ROWS_>
struct Resident : Pairs<PAIRS_, REGISTER_PAIRS_> {
  using Of = Pairs<PAIRS_, REGISTER_PAIRS_>;
  using Of::PAIRS, Of::REGISTER_PAIRS, Of::SHARED_PAIRS, Of::in_shared, Of::shared_before;
  static constexpr int HALVES = HALVES_, ROWS = ceil_div(HALVES, 2), WARP_BYTES = SHARED_PAIRS * HALVES * 512;

  uint4 registers[at_least_one(REGISTER_PAIRS)][ROWS][2];
  uint4* shared;  // of the warp

  // The matrices of the CTA begin at `matrices` in shared memory, and the warp has the part with the number `part`.
  // terms(pair, m, half) returns terms 8q…8q+7 of the pair, for row lane / 4 of that half of tile m.
  template <class F>
  RNNCC_DEVICE void fill(uint32_t matrices, int part, const F& terms) {
    shared = &shared_at<uint4>(matrices + part * WARP_BYTES + threadIdx.x % 32 * 16);
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
      if (!in_shared(pair))
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
          uint4(&to)[2] = registers[pair - shared_before(pair)][m];
          interleave(terms(pair, m, 0), is_whole(m) ? terms(pair, m, 1) : make_uint4(0, 0, 0, 0), to[0], to[1]);
        }
    // One pair after the other: loads of many pairs at once would need more registers than the loop has.
#pragma unroll 1
    for (int pair = 0; pair < PAIRS; ++pair)
      if (in_shared(pair))
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
          uint4* const to = shared + (shared_before(pair) * HALVES + 2 * m) * 32;
          if (is_whole(m))
            interleave(terms(pair, m, 0), terms(pair, m, 1), to[0], to[32]);
          else
            to[0] = terms(pair, m, 0);
        }
  }
  RNNCC_DEVICE void get(int pair, int m, uint4& even, uint4& odd) const {
    const uint4* const from = shared + (shared_before(pair) * HALVES + 2 * m) * 32;
    even = in_shared(pair) ? from[0] : registers[pair - shared_before(pair)][m][0];
    if (is_whole(m) || !in_shared(pair))
      odd = in_shared(pair) ? from[32] : registers[pair - shared_before(pair)][m][1];
    else
      interleave(even, make_uint4(0, 0, 0, 0), even, odd);
  }

 private:
  static __host__ __device__ constexpr bool is_whole(int m) { return 2 * m + 1 < HALVES; }
  static RNNCC_DEVICE void interleave(uint4 low, uint4 high, uint4& even, uint4& odd) {
    even = make_uint4(low.x, high.x, low.y, high.y);
    odd = make_uint4(low.z, high.z, low.w, high.w);
  }
};

// The same for floats. LANE_ROWS lanes, 4 apart, share terms 8q…8q+7 of each pair, and as many rows of each half-tile. Each
// of them has 8 / LANE_ROWS terms of all these rows: lane / 4 % LANE_ROWS is its number among them.
template <int PAIRS_, int HALVES_, int REGISTER_PAIRS_, int LANE_ROWS_>
struct Resident<float, PAIRS_, HALVES_, REGISTER_PAIRS_, LANE_ROWS_> : Pairs<PAIRS_, REGISTER_PAIRS_> {
  using Of = Pairs<PAIRS_, REGISTER_PAIRS_>;
  using Of::PAIRS, Of::REGISTER_PAIRS, Of::SHARED_PAIRS, Of::in_shared, Of::shared_before;
  static constexpr int HALVES = HALVES_, ROWS = ceil_div(HALVES, 2), WARP_BYTES = SHARED_PAIRS * HALVES * 1024;
  static constexpr int LANE_ROWS = LANE_ROWS_;
  using Sums = LaneSums<HALVES, LANE_ROWS>;

  Floats registers[at_least_one(REGISTER_PAIRS)][HALVES];
  float4* shared;  // of the warp

  template <class F>
  RNNCC_DEVICE void fill(uint32_t matrices, int part, const F& terms) {
    shared = &shared_at<float4>(matrices + part * WARP_BYTES + threadIdx.x % 32 * 16);
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
      if (!in_shared(pair))
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
          registers[pair - shared_before(pair)][half] = dealt(terms(pair, half / 2, half % 2));
#pragma unroll 1
    for (int pair = 0; pair < PAIRS; ++pair)
      if (in_shared(pair))
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
          const Floats v = dealt(terms(pair, half / 2, half % 2));
          float4* const to = shared + (shared_before(pair) * HALVES + half) * 64;
          to[0] = v.low;
          to[32] = v.high;
        }
  }
  RNNCC_DEVICE Floats get(int pair, int half) const {
    const float4* const from = shared + (shared_before(pair) * HALVES + half) * 64;
    return in_shared(pair) ? Floats{from[0], from[32]} : registers[pair - shared_before(pair)][half];
  }

 private:
  // From terms 8q…8q+7 of row lane / 4: the lane's own terms of all its rows, row by row. The lanes of these rows swap parts of
  // them, first those whose rows are two apart.
  static RNNCC_DEVICE Floats dealt(Floats own) {
    if constexpr (LANE_ROWS == 4) {
      swap(threadIdx.x & 8, 8, own.low.x, own.high.x);
      swap(threadIdx.x & 8, 8, own.low.y, own.high.y);
      swap(threadIdx.x & 8, 8, own.low.z, own.high.z);
      swap(threadIdx.x & 8, 8, own.low.w, own.high.w);
      swap(threadIdx.x & 4, 4, own.low.x, own.low.z);
      swap(threadIdx.x & 4, 4, own.low.y, own.low.w);
      swap(threadIdx.x & 4, 4, own.high.x, own.high.z);
      swap(threadIdx.x & 4, 4, own.high.y, own.high.w);
    } else if constexpr (LANE_ROWS == 2) {
      swap(threadIdx.x & 4, 4, own.low.x, own.high.x);
      swap(threadIdx.x & 4, 4, own.low.y, own.high.y);
      swap(threadIdx.x & 4, 4, own.low.z, own.high.z);
      swap(threadIdx.x & 4, 4, own.low.w, own.high.w);
    }
    return own;
  }
  // The upper lane of two gives its first number for the other one's second.
  static RNNCC_DEVICE void swap(bool is_upper, int mask, float& first, float& second) {
    const float taken = __shfl_xor_sync(~0u, is_upper ? first : second, mask);
    first = is_upper ? taken : first;
    second = is_upper ? second : taken;
  }
};

// What a warp holds of a phase without a product.
struct NoMatrix {
  static constexpr int ROWS = 1, WARP_BYTES = 0;
};
template <bool EXISTS, class Matrix>
struct MatrixIf {
  using type = Matrix;
};
template <class Matrix>
struct MatrixIf<false, Matrix> {
  using type = NoMatrix;
};

// What a warp holds for each phase of a shape.
template <class S, int P = 0, bool EXISTS = (P < S::PHASES)>
struct Matrices {
  typename S::template Phase<P>::Matrix own;
  Matrices<S, P + 1> later;
  template <int Q>
  RNNCC_DEVICE auto& of() {
    if constexpr (Q == P)
      return own;
    else
      return later.template of<Q>();
  }
};
template <class S, int P>
struct Matrices<S, P, false> {};

// even_sums[n][m] and odd_sums[n][m] += a pair of the matrix @ operands[n], which are the lane's terms 8q…8q+7 of entry
// lane / 4. Both may be the same sums.
template <class E, class R, int ENTRY_TILES, class Sums>
RNNCC_DEVICE void multiply_pair(const R& matrix, int pair, const uint4 (&operands)[ENTRY_TILES], Sums& even_sums,
                                Sums& odd_sums) {
  uint4 even[R::ROWS], odd[R::ROWS];
#pragma unroll
  for (int m = 0; m < R::ROWS; ++m) matrix.get(pair, m, even[m], odd[m]);
#pragma unroll
  for (int n = 0; n < ENTRY_TILES; ++n) {
#pragma unroll
    for (int m = 0; m < R::ROWS; ++m) mma<E>(even_sums[n][m], even[m], operands[n].x, operands[n].y);
#pragma unroll
    for (int m = 0; m < R::ROWS; ++m) mma<E>(odd_sums[n][m], odd[m], operands[n].z, operands[n].w);
  }
}

// Operands in the order in which a warp multiplies them, in blocks of 8 entries × 8 terms. Each lane of an item gives
// two of them, x and y, which belong to unit lane / 4 and entries 2q and 2q + 1. A peer is sent a block as PIECES of 16
// bytes that follow each other.
template <class E>
struct OperandBlock {
  // Blocks have gaps between them, so that the lanes of a quarter-warp, which read four blocks, do not meet in a bank.
  static constexpr int BYTES = 160, PIECES = 8;
  static RNNCC_DEVICE int entry(int piece) { return piece; }
  static RNNCC_DEVICE void store(uint32_t to, float x, float y) {
    shared_at<uint32_t>(to + threadIdx.x % 32 * 4) = transpose8x8(pack<E>(x, y));
  }
  // Returns piece lane % PIECES.
  static RNNCC_DEVICE uint4 piece(float x, float y) {
    const uint32_t two = transpose8x8(pack<E>(x, y));
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __shfl_sync(~0u, two, threadIdx.x % 8 * 4 + i);
    return make_uint4(w[0], w[1], w[2], w[3]);
  }
};
template <>
struct OperandBlock<float> {
  // The lanes that load together meet in no bank, whatever rows_of_lane says.
  static constexpr int BYTES = 288, PIECES = 16;
  static RNNCC_DEVICE int entry(int piece) { return piece / 2; }
  static RNNCC_DEVICE void store(uint32_t to, float x, float y) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = to + lane % 4 * 64 + lane / 4 * 4;
    shared_at<float>(at) = x;
    shared_at<float>(at + 32) = y;
  }
  static RNNCC_DEVICE uint4 piece(float x, float y) {
    // The piece has units 4s to 4s + 3 of entry c, which lanes (unit, c / 2) have.
    const int c = threadIdx.x % 16 / 2, s = threadIdx.x % 2, from = s * 16 + c / 2;
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float even = __shfl_sync(~0u, x, from + i * 4), odd = __shfl_sync(~0u, y, from + i * 4);
      w[i] = __float_as_uint(c % 2 ? odd : even);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
  }
};

// sums[n] += the lane's terms of a pair of the matrix @ operands. The pair's operand blocks of tile n begin at
// operands + n * tile_bytes.
template <class R, int ENTRY_TILES>
RNNCC_DEVICE void multiply_pair(const R& matrix, int pair, uint32_t operands, int tile_bytes,
                                typename R::Sums (&sums)[ENTRY_TILES]) {
  constexpr int ROWS = R::LANE_ROWS, TERMS = 8 / ROWS, LOADS = TERMS > 4 ? 2 : 1, AT_ONCE = TERMS / LOADS;
  struct alignas(4 * AT_ONCE) Load {
    float of[AT_ONCE];
  };
  float w[R::HALVES][8];
#pragma unroll
  for (int half = 0; half < R::HALVES; ++half) {
    const Floats own = matrix.get(pair, half);
    const float all[8] = {own.low.x, own.low.y, own.low.z, own.low.w, own.high.x, own.high.y, own.high.z, own.high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) w[half][i] = all[i];
  }
  operands += threadIdx.x % 4 * OperandBlock<float>::BYTES + threadIdx.x / 4 % ROWS * (4 * TERMS);
#pragma unroll
  for (int n = 0; n < ENTRY_TILES; ++n)
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      Load h[LOADS];
#pragma unroll
      for (int l = 0; l < LOADS; ++l) h[l] = shared_at<const Load>(operands + n * tile_bytes + c * 32 + l * 16);
#pragma unroll
      for (int half = 0; half < R::HALVES; ++half)
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
#pragma unroll
          for (int i = 0; i < TERMS; ++i) {
            float& sum = sums[n].of[half][row][c];
            sum = fmaf(w[half][row * TERMS + i], h[i / AT_ONCE].of[i % AT_ONCE], sum);
          }
    }
}

// Two lanes have parts of the same ROWS rows. The upper one gets the sums of the upper half of them, and the other one those
// of the lower half.
template <int ROWS>
RNNCC_DEVICE void halve_rows(const float (&from)[ROWS][8], float (&kept)[ROWS / 2][8]) {
  const bool is_upper = threadIdx.x & 2 * ROWS;
#pragma unroll
  for (int row = 0; row < ROWS / 2; ++row)
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float low = from[row][c], high = from[ROWS / 2 + row][c];
      kept[row][c] = (is_upper ? high : low) + __shfl_xor_sync(~0u, is_upper ? low : high, 2 * ROWS);
    }
}

// The parts of row lane / 4.
RNNCC_DEVICE void own_row(const float (&from)[1][8], float (&row)[8]) {
#pragma unroll
  for (int c = 0; c < 8; ++c) row[c] = from[0][c];
}
template <int ROWS>
RNNCC_DEVICE void own_row(const float (&from)[ROWS][8], float (&row)[8]) {
  float kept[ROWS / 2][8];
  halve_rows(from, kept);
  own_row(kept, row);
}

// Adds up the parts of each row. Each lane gets the sums of entries 2q and 2q + 1 of row lane / 4, as tensor core products
// give them.
template <int ENTRY_TILES, int HALVES, int LANE_ROWS, int ROWS>
RNNCC_DEVICE void sum_over_lanes(const LaneSums<HALVES, LANE_ROWS> (&sums)[ENTRY_TILES],
                                 float (&acc)[ENTRY_TILES][ROWS][4]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
#pragma unroll
  for (int n = 0; n < ENTRY_TILES; ++n)
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      float part[8];
      own_row(sums[n].of[half], part);
      float four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        four[i] = (upper ? part[4 + i] : part[i]) + __shfl_xor_sync(~0u, upper ? part[i] : part[4 + i], 2);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        acc[n][half / 2][half % 2 * 2 + i] =
            (odd ? four[2 + i] : four[i]) + __shfl_xor_sync(~0u, odd ? four[i] : four[2 + i], 1);
    }
}

}  // namespace rnncc
