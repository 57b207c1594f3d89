// The part of a loop's matrices that a warp keeps for the whole sequence, and its products: what all families share.
#pragma once

#include "step.cuh"

namespace rnncc {

// Fragments of a matrix: pairs of k16 tiles of 32 terms, some in registers, the others in shared memory; those stand
// between the former, so that their loads run under the products.
template <int PAIRS_, int ROWS_, int REGISTER_PAIRS_>
struct Resident {
  static constexpr int PAIRS = PAIRS_, ROWS = ROWS_, REGISTER_PAIRS = REGISTER_PAIRS_ < PAIRS_ ? REGISTER_PAIRS_ : PAIRS_;
  static constexpr int SHARED_PAIRS = PAIRS - REGISTER_PAIRS, WARP_BYTES = SHARED_PAIRS * ROWS * 1024;
  __host__ __device__ static constexpr bool in_shared(int p) { return (p + 1) * SHARED_PAIRS / PAIRS > p * SHARED_PAIRS / PAIRS; }
  __host__ __device__ static constexpr int shared_before(int p) { return p * SHARED_PAIRS / PAIRS; }

  uint4 registers[at_least_one(REGISTER_PAIRS)][ROWS][2];
  uint4* shared;  // of the warp

  // `part` is the warp's in the block, whose matrices begin at `matrices`. terms(pair, m, half): terms 8q…8q+7 of the pair,
  // of row lane / 4 of that half of tile m.
  template <class F>
  RNNCC_DEVICE void fill(char* matrices, int part, const F& terms) {
    shared = reinterpret_cast<uint4*>(matrices + part * WARP_BYTES) + threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
      if (!in_shared(pair))
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
          uint4(&to)[2] = registers[pair - shared_before(pair)][m];
          interleave(terms(pair, m, 0), terms(pair, m, 1), to[0], to[1]);
        }
    // One after the other: what many pairs have on their way needs more registers than the loop.
#pragma unroll 1
    for (int pair = 0; pair < PAIRS; ++pair)
      if (in_shared(pair))
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
          uint4* const to = shared + (shared_before(pair) * ROWS + m) * 64;
          interleave(terms(pair, m, 0), terms(pair, m, 1), to[0], to[32]);
        }
  }
  RNNCC_DEVICE void get(int pair, int m, uint4& even, uint4& odd) const {
    const uint4* const from = shared + (shared_before(pair) * ROWS + m) * 64;
    even = in_shared(pair) ? from[0] : registers[pair - shared_before(pair)][m][0];
    odd = in_shared(pair) ? from[32] : registers[pair - shared_before(pair)][m][1];
  }

 private:
  static RNNCC_DEVICE void interleave(uint4 low, uint4 high, uint4& even, uint4& odd) {
    even = make_uint4(low.x, high.x, low.y, high.y);
    odd = make_uint4(low.z, high.z, low.w, high.w);
  }
};

// even[n][m], odd[n][m] += a pair of the matrix @ operands[n], the lane's terms 8q…8q+7 of column lane / 4; both may be the
// same sums.
template <class E, class R, int TILES, class Sums>
RNNCC_DEVICE void multiply_pair(const R& matrix, int pair, const uint4 (&operands)[TILES], Sums& even_sums, Sums& odd_sums) {
  uint4 even[R::ROWS], odd[R::ROWS];
#pragma unroll
  for (int m = 0; m < R::ROWS; ++m) matrix.get(pair, m, even[m], odd[m]);
#pragma unroll
  for (int n = 0; n < TILES; ++n) {
#pragma unroll
    for (int m = 0; m < R::ROWS; ++m) mma<E>(even_sums[n][m], even[m], operands[n].x, operands[n].y);
#pragma unroll
    for (int m = 0; m < R::ROWS; ++m) mma<E>(odd_sums[n][m], odd[m], operands[n].z, operands[n].w);
  }
}

}  // namespace rnncc
