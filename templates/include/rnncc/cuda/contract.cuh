// Products of weights with 16-bit operands on the tensor cores: sums[entry][row] of a tile. Warps divide the terms.
//
// The first operand is the batch (16 entries), and the second is the weights (8 rows), so that tiles of 8 units lose
// nothing. A multiplication takes four terms of each lane. Any order of the terms will do if both operands have the
// same order. So the four terms of two multiplications are eight that follow each other in memory, and a lane loads
// both operands as they lie, 16 bytes at a time: operands from L2, and weights as pack.cuh packed them.
#pragma once

#include "place.cuh"

namespace rnncc {

// Bytes per chunk and unit block of packed weights.
template <class S>
constexpr int BLOCK_BYTES = block_bytes(int(sizeof(S)));

// A warp's share of a joint: chunks [first, end). The first `resident` of them are in shared memory.
struct Share {
  int first, end, resident;
  const unsigned char* shared;  // the warp's first resident chunk
  const unsigned char* packed;  // chunk `first`
  const ChunkPlace* places;
  const char* present;  // the images of this step and of the step before, where the lane begins
  const char* previous;
  int64_t row;  // bytes between entries
  uint32_t head;

  RNNCC_DEVICE const char* operand(int chunk) const {
    const ChunkPlace place = places[chunk];
    return (place.head >> 31 ? previous : present) + uint64_t(place.offset + head * (place.head & 0x7fffffffu)) * 16;
  }
};

RNNCC_DEVICE uint4 load_operand(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// The products of a warp's chunks, summed in c.
template <class S, int UNIT_BLOCKS, int ENTRY_BLOCKS>
struct Contraction {
  // Where a lane's operands begin: at entry lane / 4, and at term 8 * (lane % 4).
  static RNNCC_DEVICE int64_t lane_offset(int64_t row) {
    const int lane = threadIdx.x % 32;
    return lane / 4 * row + lane % 4 * 16;
  }

  static constexpr int DEPTH =
      ENTRY_BLOCKS == 1 ? (UNIT_BLOCKS > 4 ? 6 : 8) : 4;  // how many chunks of operands are on their way
  float c[UNIT_BLOCKS][ENTRY_BLOCKS][4];
  uint4 operands[DEPTH][ENTRY_BLOCKS][2];

  RNNCC_DEVICE void load(int i, const Share& share, int chunk) {
    const char* p = share.operand(chunk);
    const int64_t eight = share.row * 8;
#pragma unroll
    for (int m = 0; m < ENTRY_BLOCKS; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        operands[i][m][half] = load_operand(p);
        p += eight;
      }
    }
  }

  RNNCC_DEVICE void multiply(int i, const unsigned char* weights) {
#pragma unroll
    for (int b = 0; b < UNIT_BLOCKS; ++b) {
      const uint4 w = *reinterpret_cast<const uint4*>(weights + b * BLOCK_BYTES<S> + threadIdx.x % 32 * 16);
#pragma unroll
      for (int m = 0; m < ENTRY_BLOCKS; ++m) {
        const uint4(&a)[2] = operands[i][m];
        multiply_add<S>(c[b][m], a[0].x, a[1].x, a[0].y, a[1].y, w.x, w.y);
        multiply_add<S>(c[b][m], a[0].z, a[1].z, a[0].w, a[1].w, w.z, w.w);
      }
    }
  }

  // `STRIDE`: bytes per chunk, of all unit blocks together.
  template <int STRIDE>
  RNNCC_DEVICE void run(const Share& share, unsigned char*, unsigned char*) {
#pragma unroll
    for (int b = 0; b < UNIT_BLOCKS; ++b) {
#pragma unroll
      for (int m = 0; m < ENTRY_BLOCKS; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[b][m][i] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      // Set in any case: a variable that may have an old value would hold its registers for the whole sequence.
#pragma unroll
      for (int m = 0; m < ENTRY_BLOCKS; ++m) operands[i][m][0] = operands[i][m][1] = make_uint4(0, 0, 0, 0);
      if (share.first + i < share.end) load(i, share, share.first + i);
    }
    for (int chunk = share.first; chunk < share.end; chunk += DEPTH) {
#pragma unroll
      for (int i = 0; i < DEPTH; ++i) {
        if (chunk + i >= share.end) break;
        // A warp reads whole lines of L2 when each lane loads 16 bytes, so weights need no detour through shared
        // memory.
        const int local = chunk + i - share.first;
        multiply(i, (local < share.resident ? share.shared : share.packed) + uint32_t(local * STRIDE));
        if (chunk + i + DEPTH < share.end) load(i, share, chunk + i + DEPTH);
      }
    }
  }

  // Writes the sums to the warp's partial sums, [entry][row].
  RNNCC_DEVICE void put(float* partial) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < UNIT_BLOCKS; ++b) {
#pragma unroll
      for (int m = 0; m < ENTRY_BLOCKS; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int entry = m * ENTRY_BLOCK + half * 8 + lane / 4;
          *reinterpret_cast<float2*>(partial + entry * partial_row(UNIT_BLOCKS) + b * UNIT_BLOCK + lane % 4 * 2) =
              make_float2(c[b][m][2 * half], c[b][m][2 * half + 1]);
        }
      }
    }
  }
};

}  // namespace rnncc
