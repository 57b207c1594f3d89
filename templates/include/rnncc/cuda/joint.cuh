// The sums of a joint for one tile and one chunk of entries. Each warp multiplies its share of the terms, and then all
// warps add up their partial sums.
#pragma once

#include "contract_float.cuh"

namespace rnncc {

// The sums of an element, one per accumulator of its stage. Accumulators are `gap` floats apart. Each has `warps`
// partial sums, which are `warp_gap` floats apart.
struct Sums {
  const float* at;
  int gap, warps, warp_gap;

  RNNCC_DEVICE float operator[](int accumulator) const {
    const float* p = at + accumulator * gap;
    float total = p[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) {
      if (w < warps) total += p[w * warp_gap];
    }
    return total;
  }
};

// What the warps multiply, and where its sums go.
struct Pass {
  const Shared& layout;
  const JointPlan& joint;
  unsigned char* shared;
  const unsigned char* packed;    // the tile's weights
  const unsigned char* resident;  // those of them that stay in shared memory
  const char* present;            // the images of this step and of the step before, at the first entry
  const char* previous;
  int64_t row;
  int head;
  float* sums;  // [entry][sums_row]
  int sums_row;
};

// How many warps have a share of the joint's chunks.
RNNCC_DEVICE int used_warps(const JointPlan& joint) { return (joint.chunks + joint.per_warp - 1) / joint.per_warp; }

// Multiplies unit blocks [first, first + UNIT_BLOCKS) of ALL. Without ADD_UP the readers add up the warps' partial
// sums.
template <class S, int UNIT_BLOCKS, int ALL, int ENTRY_BLOCKS, bool ACCUMULATE, bool ADD_UP>
RNNCC_DEVICE void contract_blocks(const Pass& pass, int first) {
  const JointPlan& joint = pass.joint;
  int warp = threadIdx.x / 32;
  // The compiler must not know that this is the same at each step: it would hold addresses for every call in registers.
  asm volatile("" : "+r"(warp));
  constexpr int stride = ALL * BLOCK_BYTES<S>;
  Share share;
  share.first = ::min(warp * joint.per_warp, joint.chunks);
  share.end = ::min(share.first + joint.per_warp, joint.chunks);
  share.resident = joint.resident;
  share.shared = pass.resident + warp * joint.resident * stride + first * BLOCK_BYTES<S>;
  share.packed = pass.packed + int64_t(share.first) * stride + first * BLOCK_BYTES<S>;
  share.places = reinterpret_cast<const ChunkPlace*>(pass.shared + joint.table);
  unsigned char* mine = pass.shared + pass.layout.warps + warp * pass.layout.warp_bytes;
  const int64_t lane_offset = Contraction<S, UNIT_BLOCKS, ENTRY_BLOCKS>::lane_offset(pass.row);
  share.present = pass.present + lane_offset;
  share.previous = pass.previous + lane_offset;
  share.row = pass.row;
  share.head = pass.head;
  Contraction<S, UNIT_BLOCKS, ENTRY_BLOCKS> contraction;
  contraction.template run<stride>(share, mine, mine + pass.layout.staging);

  constexpr int entry_gap = partial_row(UNIT_BLOCKS), rows = UNIT_BLOCKS * UNIT_BLOCK;
  const float* partial = reinterpret_cast<const float*>(pass.shared + pass.layout.warps);
  __syncwarp();
  contraction.put(reinterpret_cast<float*>(mine));
  __syncthreads();
  if constexpr (ADD_UP) {
#pragma unroll
    for (int e0 = 0; e0 < rows * ENTRY_BLOCKS * ENTRY_BLOCK; e0 += THREADS) {
      const int e = e0 + threadIdx.x, row = e % rows, entry = e / rows;
      if (e >= rows * ENTRY_BLOCKS * ENTRY_BLOCK) break;
      const float total = Sums{partial + entry * entry_gap + row, 0, used_warps(joint), pass.layout.warp_bytes / 4}[0];
      float& sum = pass.sums[entry * pass.sums_row + first * UNIT_BLOCK + row];
      sum = ACCUMULATE ? sum + total : total;
    }
    __syncthreads();
  }
}

// Passes of equal size are one loop: a copy of each would take as long again to compile.
template <class S, int ALL, int ENTRY_BLOCKS, bool ACCUMULATE, bool ADD_UP>
RNNCC_DEVICE void contract_passes(const Pass& pass) {
  constexpr int blocks = pass_blocks(ALL, ENTRY_BLOCKS, int(sizeof(S))), equal = ALL / blocks * blocks;
#pragma unroll 1
  for (int first = 0; first < equal; first += blocks)
    contract_blocks<S, blocks, ALL, ENTRY_BLOCKS, ACCUMULATE, ADD_UP>(pass, first);
  if constexpr (equal < ALL) contract_blocks<S, ALL - equal, ALL, ENTRY_BLOCKS, ACCUMULATE, ADD_UP>(pass, equal);
}

// Multiplies all unit blocks, in one pass or in several. `ALONE`: the stage has no other joint. If there is also one
// pass alone, its partial sums stay where they are.
template <class S, int ALL, int ENTRY_BLOCKS, bool ACCUMULATE, bool ALONE>
RNNCC_DEVICE Sums contract_all(const Pass& pass) {
  constexpr bool single = ALONE && pass_blocks(ALL, ENTRY_BLOCKS, int(sizeof(S))) == ALL;
  contract_passes<S, ALL, ENTRY_BLOCKS, ACCUMULATE, !single>(pass);
  if constexpr (single) {
    constexpr int row = partial_row(ALL);
    const float* partial = reinterpret_cast<const float*>(pass.shared + pass.layout.warps);
    return {partial, row, used_warps(pass.joint), pass.layout.warp_bytes / 4};
  } else {
    return {pass.sums, pass.sums_row, 1, 0};
  }
}

// Multiplies all `COUNT` matrices of a joint, for one or two unit blocks and one or two entry blocks. Returns where the
// sums of a joint are that is alone in its stage; `gap` is then the distance between entries.
template <class S, int COUNT, bool ACCUMULATE, bool ALONE>
RNNCC_DEVICE Sums contract_joint(const Pass& given, int unit_blocks, int entry_blocks) {
  const Pass pass = given;
  // As a function of its own this does not see who calls it, and so not what lies in shared memory.
  __builtin_assume(__isShared(pass.shared));
  __builtin_assume(__isShared(pass.resident));
  __builtin_assume(__isShared(pass.sums));
  if (unit_blocks == 1) {
    if (entry_blocks == 1) return contract_all<S, COUNT, 1, ACCUMULATE, ALONE>(pass);
    return contract_all<S, COUNT, 2, ACCUMULATE, ALONE>(pass);
  }
  if (entry_blocks == 1) return contract_all<S, 2 * COUNT, 1, ACCUMULATE, ALONE>(pass);
  return contract_all<S, 2 * COUNT, 2, ACCUMULATE, ALONE>(pass);
}

}  // namespace rnncc
