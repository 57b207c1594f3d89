// The sums of a joint for one tile and one chunk of columns: each warp contracts its share of the terms, then all add up.
#pragma once

#include "contract_float.cuh"

namespace rnncc {

struct Pass {
  const Shared& layout;
  const JointPlan& joint;
  unsigned char* shared;
  const unsigned char* packed;    // the tile's weights
  const unsigned char* resident;  // what of them is in shared memory
  const char* present;            // images of this step and the one before, at the first column
  const char* previous;
  int64_t row;
  int head;
  float* sums;  // [column][sums_row]
  int sums_row;
};

// Unit blocks [FIRST, FIRST + BLOCKS) of ALL.
template <class S, int FIRST, int BLOCKS, int ALL, int COLUMNS, bool ACCUMULATE>
RNNCC_DEVICE void contract_blocks(const Pass& pass) {
  const JointPlan& joint = pass.joint;
  int warp = threadIdx.x / 32;
  // The compiler must not know this to be the same at each step: it would keep addresses of every call in registers.
  asm volatile("" : "+r"(warp));
  constexpr int stride = ALL * BLOCK_BYTES<S>;
  Share share;
  share.first = ::min(warp * joint.per_warp, joint.chunks);
  share.end = ::min(share.first + joint.per_warp, joint.chunks);
  share.resident = joint.resident;
  share.shared = pass.resident + warp * joint.resident * stride + FIRST * BLOCK_BYTES<S>;
  share.packed = pass.packed + int64_t(share.first) * stride + FIRST * BLOCK_BYTES<S>;
  share.places = reinterpret_cast<const ChunkPlace*>(pass.shared + joint.table);
  const int64_t lane_offset = Contraction<S, BLOCKS, COLUMNS>::lane_offset(pass.row);
  share.present = pass.present + lane_offset;
  share.previous = pass.previous + lane_offset;
  share.row = pass.row;
  share.head = pass.head;
  Contraction<S, BLOCKS, COLUMNS> contraction;
  contraction.template run<stride>(share, pass.shared + pass.layout.staging + warp * staging_bytes(int(sizeof(S)), COLUMNS));

  constexpr int columns = partial_row(BLOCKS), partial_warp = COLUMNS * COLUMN_BLOCK * columns, rows = BLOCKS * UNIT_BLOCK;
  float* partial = reinterpret_cast<float*>(pass.shared + pass.layout.partial);
  contraction.put(partial + warp * partial_warp);
  __syncthreads();
  const int used = (joint.chunks + joint.per_warp - 1) / joint.per_warp;
#pragma unroll
  for (int e0 = 0; e0 < rows * COLUMNS * COLUMN_BLOCK; e0 += THREADS) {
    const int e = e0 + threadIdx.x, row = e % rows, column = e / rows;
    if (e >= rows * COLUMNS * COLUMN_BLOCK) break;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      if (w < used) total += partial[w * partial_warp + column * columns + row];
    }
    float& sum = pass.sums[column * pass.sums_row + FIRST * UNIT_BLOCK + row];
    sum = ACCUMULATE ? sum + total : total;
  }
  __syncthreads();
}

template <class S, int FIRST, int ALL, int COLUMNS, bool ACCUMULATE>
RNNCC_DEVICE void contract_passes(const Pass& pass) {
  if constexpr (FIRST < ALL) {
    constexpr int blocks = pass_blocks(ALL - FIRST, COLUMNS, int(sizeof(S)));
    contract_blocks<S, FIRST, blocks, ALL, COLUMNS, ACCUMULATE>(pass);
    contract_passes<S, FIRST + blocks, ALL, COLUMNS, ACCUMULATE>(pass);
  }
}

// All `COUNT` matrices of a joint, by the plan's blocks of units and columns (one or two of each).
template <class S, int COUNT, bool ACCUMULATE>
RNNCC_DEVICE void contract_joint(const Pass& pass, int unit_blocks, int column_blocks) {
  if (unit_blocks == 1) {
    if (column_blocks == 1) {
      contract_passes<S, 0, COUNT, 1, ACCUMULATE>(pass);
    } else {
      contract_passes<S, 0, COUNT, 2, ACCUMULATE>(pass);
    }
  } else {
    if (column_blocks == 1) {
      contract_passes<S, 0, 2 * COUNT, 1, ACCUMULATE>(pass);
    } else {
      contract_passes<S, 0, 2 * COUNT, 2, ACCUMULATE>(pass);
    }
  }
}

}  // namespace rnncc
