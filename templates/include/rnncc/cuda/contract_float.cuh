// Products of float weights with float operands, in true float32 arithmetic without tensor cores.
//
// A warp puts a chunk of the operand (32 terms of 16 or 32 entries) into its own part of shared memory, transposed by
// quads of terms. A lane then has entries lane % 8 + 8 i and rows lane / 8 + 4 j.
#pragma once

#include "contract.cuh"

namespace rnncc {

// A warp's weights. It takes BYTES of the STRIDE bytes of each chunk. Chunks that are not resident come through `ring`,
// STREAMED chunks at a time.
template <int BYTES, int STRIDE>
struct FloatWeights {
  const Share& share;
  unsigned char* ring;

  // Starts to copy a chunk's weights. Every call is one group of copies.
  RNNCC_DEVICE void fetch(int chunk) const {
    if (chunk < share.end) {
      const int local = chunk - share.first, lane = threadIdx.x % 32;
      const uint32_t to =
          uint32_t(__cvta_generic_to_shared(ring)) + (local - share.resident) % STREAMED * BYTES + lane * 16;
      const unsigned char* from = share.packed + uint32_t(local * STRIDE) + lane * 16;
#pragma unroll
      for (int b = 0; b < BYTES; b += 512) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + b), "l"(from + b) : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  RNNCC_DEVICE void fetch_first() const {
#pragma unroll
    for (int i = 0; i < STREAMED; ++i) fetch(share.first + share.resident + i);
  }
  // Returns a chunk's weights in shared memory. The caller then calls `release`.
  RNNCC_DEVICE const unsigned char* of(int chunk) const {
    const int local = chunk - share.first;
    if (local < share.resident) return share.shared + local * STRIDE;
    asm volatile("cp.async.wait_group %0;" ::"n"(STREAMED - 1) : "memory");
    __syncwarp();
    return ring + (local - share.resident) % STREAMED * BYTES;
  }
  RNNCC_DEVICE void release(int chunk) const {
    if (chunk - share.first < share.resident) return;
    __syncwarp();
    fetch(chunk + STREAMED);
  }
};

template <int UNIT_BLOCKS, int ENTRY_BLOCKS>
struct Contraction<float, UNIT_BLOCKS, ENTRY_BLOCKS> {
  static constexpr int DEPTH = ENTRY_BLOCKS == 1 ? 4 : 2;
  static constexpr int ROWS = 2 * UNIT_BLOCKS, HELD = 2 * ENTRY_BLOCKS, ALL = ENTRY_BLOCKS * ENTRY_BLOCK;
  float c[HELD][ROWS];
  float4 operands[DEPTH][4 * ENTRY_BLOCKS];  // quad lane % 8 of entries lane / 8 + 4 i

  // Where a lane's operands begin: at entry lane / 8, and at quad lane % 8 of the terms.
  static RNNCC_DEVICE int64_t lane_offset(int64_t row) {
    const int lane = threadIdx.x % 32;
    return lane / 8 * row + lane % 8 * 16;
  }

  RNNCC_DEVICE void load(int i, const Share& share, int chunk) {
    const char* p = share.operand(chunk);
    const int64_t four = share.row * 4;
#pragma unroll
    for (int j = 0; j < 4 * ENTRY_BLOCKS; ++j) {
      const uint4 v = load_operand(p);
      p += four;
      operands[i][j] =
          make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
    }
  }

  // Entry e of quad q lies at q * ALL + (e ^ q), so that neither stores nor loads of a warp meet in a bank.
  RNNCC_DEVICE void stage(int i, float4* staging) const {
    const int lane = threadIdx.x % 32, quad = lane % 8;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4 * ENTRY_BLOCKS; ++j) staging[quad * ALL + ((lane / 8 + 4 * j) ^ quad)] = operands[i][j];
    __syncwarp();
  }

  RNNCC_DEVICE void multiply(const float4* staging, const unsigned char* weights) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int quad = 0; quad < CHUNK / 4; ++quad) {
      float4 x[HELD];
#pragma unroll
      for (int i = 0; i < HELD; ++i) x[i] = staging[quad * ALL + ((lane % 8 + 8 * i) ^ quad)];
#pragma unroll
      for (int j = 0; j < ROWS; ++j) {
        const int row = lane / 8 + 4 * j;
        const float4 w = *reinterpret_cast<const float4*>(weights + row / UNIT_BLOCK * BLOCK_BYTES<float> +
                                                          (quad * UNIT_BLOCK + row % UNIT_BLOCK) * 16);
#pragma unroll
        // Four terms are added up by themselves first: so fewer roundings are of the size of the whole sum.
        for (int i = 0; i < HELD; ++i) c[i][j] += fmaf(x[i].w, w.w, fmaf(x[i].z, w.z, fmaf(x[i].y, w.y, x[i].x * w.x)));
      }
    }
  }

  template <int STRIDE>
  RNNCC_DEVICE void run(const Share& share, unsigned char* ring, unsigned char* scratch) {
    const FloatWeights<UNIT_BLOCKS * BLOCK_BYTES<float>, STRIDE> weights = {share, ring};
    weights.fetch_first();
    float4* staging = reinterpret_cast<float4*>(scratch);
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
#pragma unroll
      for (int j = 0; j < ROWS; ++j) c[i][j] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      // Set in any case: a variable that may have an old value would hold its registers for the whole sequence.
#pragma unroll
      for (int j = 0; j < 4 * ENTRY_BLOCKS; ++j) operands[i][j] = make_float4(0, 0, 0, 0);
      if (share.first + i < share.end) load(i, share, share.first + i);
    }
    for (int chunk = share.first; chunk < share.end; chunk += DEPTH) {
#pragma unroll
      for (int i = 0; i < DEPTH; ++i) {
        if (chunk + i >= share.end) break;
        stage(i, staging);
        if (chunk + i + DEPTH < share.end) load(i, share, chunk + i + DEPTH);
        multiply(staging, weights.of(chunk + i));
        weights.release(chunk + i);
      }
    }
  }

  RNNCC_DEVICE void put(float* partial) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
#pragma unroll
      for (int j = 0; j < ROWS; ++j)
        partial[(lane % 8 + 8 * i) * partial_row(UNIT_BLOCKS) + lane / 8 + 4 * j] = c[i][j];
    }
  }
};

}  // namespace rnncc
