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

// HALVES half-tiles of 8 rows of a matrix of 16-bit elements, as fragments of tensor core products of 16 rows. Where the
// number is odd, the last tile has zeros in its upper half. They take registers, since an operand of a product is four
// registers in a row, but no shared memory.
template <class E, int PAIRS_, int HALVES_, int REGISTER_PAIRS_>
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

// The same for floats. A lane has row lane / 4 of each half-tile, and terms 8q…8q+7 of each pair.
template <int PAIRS_, int HALVES_, int REGISTER_PAIRS_>
struct Resident<float, PAIRS_, HALVES_, REGISTER_PAIRS_> : Pairs<PAIRS_, REGISTER_PAIRS_> {
  using Of = Pairs<PAIRS_, REGISTER_PAIRS_>;
  using Of::PAIRS, Of::REGISTER_PAIRS, Of::SHARED_PAIRS, Of::in_shared, Of::shared_before;
  static constexpr int HALVES = HALVES_, ROWS = ceil_div(HALVES, 2), WARP_BYTES = SHARED_PAIRS * HALVES * 1024;

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
          registers[pair - shared_before(pair)][half] = terms(pair, half / 2, half % 2);
#pragma unroll 1
    for (int pair = 0; pair < PAIRS; ++pair)
      if (in_shared(pair))
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
          const Floats v = terms(pair, half / 2, half % 2);
          float4* const to = shared + (shared_before(pair) * HALVES + half) * 64;
          to[0] = v.low;
          to[32] = v.high;
        }
  }
  RNNCC_DEVICE Floats get(int pair, int half) const {
    const float4* const from = shared + (shared_before(pair) * HALVES + half) * 64;
    return in_shared(pair) ? Floats{from[0], from[32]} : registers[pair - shared_before(pair)][half];
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
  static constexpr int BYTES = 272, PIECES = 16;
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

// parts[n][half][entry] += the lane's terms of a pair of the matrix @ operands. The pair's operand blocks of tile n
// begin at operands + n * tile_bytes.
template <class R, int ENTRY_TILES>
RNNCC_DEVICE void multiply_pair(const R& matrix, int pair, uint32_t operands, int tile_bytes,
                                float (&parts)[ENTRY_TILES][R::HALVES][8]) {
  Floats w[R::HALVES];
#pragma unroll
  for (int half = 0; half < R::HALVES; ++half) w[half] = matrix.get(pair, half);
#pragma unroll
  for (int n = 0; n < ENTRY_TILES; ++n)
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const uint32_t at = operands + n * tile_bytes + threadIdx.x % 4 * OperandBlock<float>::BYTES + c * 32;
      const Floats h = {shared_at<const float4>(at), shared_at<const float4>(at + 16)};
#pragma unroll
      for (int half = 0; half < R::HALVES; ++half) {
        float& sum = parts[n][half][c];
        sum = fmaf(w[half].low.x, h.low.x, sum);
        sum = fmaf(w[half].low.y, h.low.y, sum);
        sum = fmaf(w[half].low.z, h.low.z, sum);
        sum = fmaf(w[half].low.w, h.low.w, sum);
        sum = fmaf(w[half].high.x, h.high.x, sum);
        sum = fmaf(w[half].high.y, h.high.y, sum);
        sum = fmaf(w[half].high.z, h.high.z, sum);
        sum = fmaf(w[half].high.w, h.high.w, sum);
      }
    }
}

// Adds up the parts of the four lanes of a row. Each lane gets the sums of entries 2q and 2q + 1, as tensor core
// products give them.
template <int ENTRY_TILES, int HALVES, int ROWS>
RNNCC_DEVICE void sum_over_lanes(const float (&parts)[ENTRY_TILES][HALVES][8], float (&acc)[ENTRY_TILES][ROWS][4]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
#pragma unroll
  for (int n = 0; n < ENTRY_TILES; ++n)
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      const float (&part)[8] = parts[n][half];
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
