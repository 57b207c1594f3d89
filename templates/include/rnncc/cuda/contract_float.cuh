// Products of float weights with float operands, without tensor cores: true float32 arithmetic.
//
// A warp brings a chunk of the operand (32 terms, 16 or 32 columns) into its own part of shared memory, transposed by
// quads of terms; a lane then holds columns lane % 8 + 8 i and rows lane / 8 + 4 j.
#pragma once

#include "contract.cuh"

namespace rnncc {

template <int BLOCKS, int COLUMNS>
struct Contraction<float, BLOCKS, COLUMNS> {
  static constexpr int DEPTH = COLUMNS == 1 ? 4 : 2;
  static constexpr int ROWS = 2 * BLOCKS, HELD = 2 * COLUMNS, ALL = COLUMNS * COLUMN_BLOCK;
  float c[HELD][ROWS];

  // Where a lane's operands begin: at column `lane / 8`, a quad of terms apart.
  static RNNCC_DEVICE int64_t lane_offset(int64_t row) {
    const int lane = threadIdx.x % 32;
    return lane / 8 * row + lane % 8 * 16;
  }

  float4 operands[DEPTH][4 * COLUMNS];  // columns lane / 8 + 4 i, quad lane % 8

  RNNCC_DEVICE void load(int i, const Share& share, int chunk) {
    const char* p = share.operand(chunk);
    const int64_t four = share.row * 4;
#pragma unroll
    for (int j = 0; j < 4 * COLUMNS; ++j) {
      const uint4 v = load_operand(p);
      p += four;
      operands[i][j] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
    }
  }

  // Column c of quad q lies at (q * ALL + (c ^ q)): neither stores nor loads of a warp meet in a bank.
  RNNCC_DEVICE void stage(int i, float4* staging) const {
    const int lane = threadIdx.x % 32, quad = lane % 8;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4 * COLUMNS; ++j) staging[quad * ALL + ((lane / 8 + 4 * j) ^ quad)] = operands[i][j];
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
        for (int i = 0; i < HELD; ++i) {
          c[i][j] += x[i].x * w.x;
          c[i][j] += x[i].y * w.y;
          c[i][j] += x[i].z * w.z;
          c[i][j] += x[i].w * w.w;
        }
      }
    }
  }

  template <int STRIDE>
  RNNCC_DEVICE void run(const Share& share, unsigned char* scratch) {
    constexpr int BYTES = BLOCKS * BLOCK_BYTES<float>;
    share.fetch_first<BYTES, STRIDE>();
    float4* staging = reinterpret_cast<float4*>(scratch);
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
#pragma unroll
      for (int j = 0; j < ROWS; ++j) c[i][j] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      // Set in any case: what may keep an old value would take its registers for the whole sequence.
#pragma unroll
      for (int j = 0; j < 4 * COLUMNS; ++j) operands[i][j] = make_float4(0, 0, 0, 0);
      if (share.first + i < share.end) load(i, share, share.first + i);
    }
    for (int chunk = share.first; chunk < share.end; chunk += DEPTH) {
#pragma unroll
      for (int i = 0; i < DEPTH; ++i) {
        if (chunk + i >= share.end) break;
        stage(i, staging);
        if (chunk + i + DEPTH < share.end) load(i, share, chunk + i + DEPTH);
        multiply(staging, share.weights<BYTES, STRIDE>(chunk + i));
        share.release<BYTES, STRIDE>(chunk + i);
      }
    }
  }

  RNNCC_DEVICE void put(float* partial) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
#pragma unroll
      for (int j = 0; j < ROWS; ++j) partial[(lane % 8 + 8 * i) * partial_row(BLOCKS) + lane / 8 + 4 * j] = c[i][j];
    }
  }
};

}  // namespace rnncc
