// Fused loops in one cluster of CTAs, or in one CTA. Matrices stay in registers and shared memory, carries in registers.
//
//   gather   Operands go to all CTAs. Each CTA computes whole sums for its own units. There is little to send where a unit has one
//            operand, as it has forward.
//   scatter  Operands stay. Each CTA computes a part of the sums of all units, and sends it to the CTA that owns the unit. The owner
//            adds the parts in the order of the CTAs. There is little to send where a unit has one sum, as it has backward.
//
// CTAs send with st.async, and a barrier in the receiver's shared memory counts the bytes. So there is no fence and no barrier of
// the cluster. Two buffers are enough: a CTA sends for step t + 1 only after it has received everything of step t, and its peers
// sent that after they had last read the buffer of step t - 1.
#pragma once

#include "../device/resident.cuh"

namespace rnncc {

// acc[n][m] += matrix @ operands. The operand blocks of tile n begin at operands + n * tile_bytes.
template <class E, class R, int ENTRY_TILES>
RNNCC_DEVICE void multiply(const R& matrix, uint32_t operands, int tile_bytes, float (&acc)[ENTRY_TILES][R::ROWS][4]) {
  constexpr int PAIR = 4 * OperandBlock<E>::BYTES;
  if constexpr (sizeof(E) == 4) {
    typename R::Sums sums[ENTRY_TILES];
#pragma unroll
    for (int pair = 0; pair < R::PAIRS; ++pair) multiply_pair(matrix, pair, operands + pair * PAIR, tile_bytes, sums);
    sum_over_lanes(sums, acc);
  } else {
    const uint32_t own = operands + threadIdx.x % 4 * OperandBlock<E>::BYTES + threadIdx.x % 32 / 4 * 16;
    // With few tiles, few products are independent of each other. So even and odd terms then have sums of their own.
    constexpr bool two = R::ROWS * ENTRY_TILES < 4;
    float odd_acc[ENTRY_TILES][R::ROWS][4] = {};
#pragma unroll
    for (int pair = 0; pair < R::PAIRS; ++pair) {
      uint4 terms[ENTRY_TILES];
#pragma unroll
      for (int n = 0; n < ENTRY_TILES; ++n) terms[n] = shared_at<const uint4>(own + n * tile_bytes + pair * PAIR);
      multiply_pair<E>(matrix, pair, terms, acc, two ? odd_acc : acc);
    }
    if constexpr (two)
#pragma unroll
      for (int n = 0; n < ENTRY_TILES; ++n)
#pragma unroll
        for (int m = 0; m < R::ROWS; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[n][m][i] += odd_acc[n][m][i];
  }
}

}  // namespace rnncc
