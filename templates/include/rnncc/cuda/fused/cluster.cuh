// Fused loops in one cluster of thread blocks (or one block): matrices in registers and shared memory, carries in registers.
//
//   gather   operands go to all blocks, each computes whole sums for its own units: little to send where a unit has one
//            operand (forward)
//   scatter  operands stay, each block computes a part of the sums of all units and sends it to the units' owner, who adds
//            them in the order of the blocks: little to send where a unit has one sum (backward)
//
// Blocks send with st.async, and a barrier in the receiver's shared memory counts the bytes: no fence, no cluster barrier.
// Two buffers are enough: a block sends for step t + 1 only after it has got everything of step t, which its peers sent
// after their last look at step t - 1.
#pragma once

#include "step.cuh"

namespace rnncc {

// Fragments of a matrix that stay for the whole sequence: pairs of k16 tiles, some in registers, the others in shared
// memory; those stand between the former, so that their loads run under the products.
template <int PAIRS_, int ROWS_, int REGISTER_PAIRS_>
struct Resident {
  static constexpr int PAIRS = PAIRS_, ROWS = ROWS_, REGISTER_PAIRS = REGISTER_PAIRS_ < PAIRS_ ? REGISTER_PAIRS_ : PAIRS_;
  static constexpr int SHARED_PAIRS = PAIRS - REGISTER_PAIRS, WARP_BYTES = SHARED_PAIRS * ROWS * 1024;
  __host__ __device__ static constexpr bool in_shared(int p) { return (p + 1) * SHARED_PAIRS / PAIRS > p * SHARED_PAIRS / PAIRS; }
  __host__ __device__ static constexpr int shared_before(int p) { return p * SHARED_PAIRS / PAIRS; }

  uint4 registers[at_least_one(REGISTER_PAIRS)][ROWS][2];
  uint4* shared;  // of the warp

  // `low`, `high`: terms 8q…8q+7 of the chunk of rows `row` of the tile's two halves.
  RNNCC_DEVICE void set(int pair, int m, uint4 low, uint4 high) {
    const uint4 even = make_uint4(low.x, high.x, low.y, high.y), odd = make_uint4(low.z, high.z, low.w, high.w);
    if (!in_shared(pair)) {
      registers[pair - shared_before(pair)][m][0] = even;
      registers[pair - shared_before(pair)][m][1] = odd;
    } else {
      uint4* const to = shared + (shared_before(pair) * ROWS + m) * 64 + threadIdx.x % 32;
      to[0] = even;
      to[32] = odd;
    }
  }
  RNNCC_DEVICE void get(int pair, int m, uint4& even, uint4& odd) const {
    if (!in_shared(pair)) {
      even = registers[pair - shared_before(pair)][m][0];
      odd = registers[pair - shared_before(pair)][m][1];
    } else {
      const uint4* const from = shared + (shared_before(pair) * ROWS + m) * 64 + threadIdx.x % 32;
      even = from[0];
      odd = from[32];
    }
  }
};

// Operands in shared memory, in blocks [8 columns][8 terms]: what a warp sends to a peer is 128 bytes in a row, and 160
// bytes from block to block keep the lanes of a quarter-warp, which read four blocks, off each other's banks.
constexpr int OPERAND_BLOCK = 160;

// acc[n][m] += matrix @ operands. `operand`: the lane's place in the first block.
template <class E, class R, int TILES>
RNNCC_DEVICE void multiply(const R& matrix, const char* operand, int tile_bytes, float (&acc)[TILES][R::ROWS][4]) {
  // Few tiles make short chains of dependent products: even and odd terms then have sums of their own.
  constexpr int CHAINS = R::ROWS * TILES >= 4 ? 1 : 2;
  float odd_acc[CHAINS == 2 ? TILES : 1][CHAINS == 2 ? R::ROWS : 1][4] = {};
#pragma unroll
  for (int pair = 0; pair < R::PAIRS; ++pair) {
    uint4 even[R::ROWS], odd[R::ROWS];
#pragma unroll
    for (int m = 0; m < R::ROWS; ++m) matrix.get(pair, m, even[m], odd[m]);
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
      const uint4 b = *reinterpret_cast<const uint4*>(operand + n * tile_bytes + pair * 4 * OPERAND_BLOCK);
#pragma unroll
      for (int m = 0; m < R::ROWS; ++m) mma<E>(acc[n][m], even[m], b.x, b.y);
#pragma unroll
      for (int m = 0; m < R::ROWS; ++m) mma<E>(CHAINS == 2 ? odd_acc[n % (CHAINS == 2 ? TILES : 1)][m % (CHAINS == 2 ? R::ROWS : 1)] : acc[n][m], odd[m], b.z, b.w);
    }
  }
  if constexpr (CHAINS == 2)
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
      for (int m = 0; m < R::ROWS; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][m][i] += odd_acc[n][m][i];
}

// Where a block of the grid works.
struct Seat {
  int rank, head, first_column, columns;
};
template <int CTAS, class C>
RNNCC_DEVICE Seat seat_of(const C& call) {
  const int cluster = blockIdx.x / CTAS, group = cluster / call.heads;
  Seat seat;
  seat.rank = CTAS > 1 ? cluster_rank() : 0;
  seat.head = cluster % call.heads;
  seat.first_column = group * call.group_columns;
  seat.columns = min(call.group_columns, call.columns - seat.first_column);
  return seat;
}

}  // namespace rnncc
