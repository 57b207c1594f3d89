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

#include "resident.cuh"

namespace rnncc {

// Operands in shared memory, in blocks [8 columns][8 terms]: what a warp sends to a peer is 128 bytes in a row, and 160
// bytes from block to block keep the lanes of a quarter-warp, which read four blocks, off each other's banks.
constexpr int OPERAND_BLOCK = 160;

// acc[n][m] += matrix @ operands. `operand`: the lane's place in the first block.
template <class E, class R, int TILES>
RNNCC_DEVICE void multiply(const R& matrix, const char* operand, int tile_bytes, float (&acc)[TILES][R::ROWS][4]) {
  // Few tiles make short chains of dependent products: even and odd terms then have sums of their own.
  constexpr bool two = R::ROWS * TILES < 4;
  float odd_acc[TILES][R::ROWS][4] = {};
#pragma unroll
  for (int pair = 0; pair < R::PAIRS; ++pair) {
    uint4 operands[TILES];
#pragma unroll
    for (int n = 0; n < TILES; ++n)
      operands[n] = *reinterpret_cast<const uint4*>(operand + n * tile_bytes + pair * 4 * OPERAND_BLOCK);
    multiply_pair<E>(matrix, pair, operands, acc, two ? odd_acc : acc);
  }
  if constexpr (two)
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
      for (int m = 0; m < R::ROWS; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][m][i] += odd_acc[n][m][i];
}

}  // namespace rnncc
