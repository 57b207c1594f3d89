// Products of heads over many rows (head_products_call.h), on tensor cores. Both operands lie row by row, so a product
// over rows takes both of them transposed: ldmatrix does that on the way from shared memory into registers.
#pragma once

#include "fused/device/ptx.cuh"
#include "head_products_call.h"

namespace rnncc {

// A tile of HEAD_TILE_ROWS rows and COLUMNS columns.
template <class S, int COLUMNS>
class HeadTile {
  // Warps share the tile: each has ROWS x 64 numbers of it, as 16 x 8 at a time.
  static constexpr int ACROSS = COLUMNS / 64, DOWN = HEAD_PRODUCT_THREADS / 32 / ACROSS, ROWS = HEAD_TILE_ROWS / DOWN;
  static constexpr int A_ROW = HEAD_TILE_ROWS * 2, B_ROW = COLUMNS * 2;  // bytes
  static constexpr int A_BYTES = HEAD_STAGE_ROWS * A_ROW, STAGE_BYTES = A_BYTES + HEAD_STAGE_ROWS * B_ROW;
  static_assert(HEAD_STAGES * STAGE_BYTES == head_product_shared(COLUMNS), "all stages");

  // A thread copies a piece of 8 units of some rows of each stage, always the same units.
  struct Pieces {
    const char* from;  // the first row of the slice
    uint32_t to;       // in the first stage
    int row;           // the first of the thread's rows in a stage
    bool exists;       // whether the operand has these units
  };

  const HeadProductCall& call_;
  const int64_t rows_;  // of this slice
  const int head_, first_row_, first_column_;
  const int row_, column_;              // of the tile, where the warp's part begins
  const int rows_left_, columns_left_;  // of the head's matrix, from there on
  const uint32_t shared_;
  const Pieces a_, b_;
  float sums_[ROWS / 16][8][4];

  // Units 8 * piece to 8 * piece + 7 of a row of shared memory. Eight rows of the same units are in different banks.
  static RNNCC_DEVICE uint32_t place(int row, int piece, int row_bytes) {
    return row * row_bytes + (piece ^ row % 8) * 16;
  }

  RNNCC_DEVICE Pieces pieces(const char* data, int64_t row_bytes, int64_t first, int unit, int units, int width,
                             uint32_t to, int pieces_of_row, int shared_row) const {
    const int piece = threadIdx.x % pieces_of_row, row = threadIdx.x / pieces_of_row;
    const int own = unit + 8 * piece;
    const int64_t column = (int64_t(own / width) * call_.heads + head_) * width + own % width;
    return {data + (first + row) * row_bytes + column * 2, to + place(row, piece, shared_row), row, own < units};
  }

  // Begins to copy a stage.
  template <int PIECES_OF_ROW>
  RNNCC_DEVICE void copy(const Pieces& pieces, int64_t row_bytes, int64_t first, int stage) const {
    // Rows that a thread copies are a multiple of 8 apart, so they are at the same place within a row.
    constexpr int STEP = HEAD_PRODUCT_THREADS / PIECES_OF_ROW;
    static_assert(STEP % 8 == 0 && HEAD_STAGE_ROWS % STEP == 0, "whole rows");
#pragma unroll
    for (int i = 0; i < HEAD_STAGE_ROWS / STEP; ++i)
      copy16_or_zeros(pieces.to + stage * STAGE_BYTES + i * STEP * PIECES_OF_ROW * 16,
                      pieces.from + (first + i * STEP) * row_bytes,
                      pieces.exists && first + i * STEP + pieces.row < rows_);
  }
  RNNCC_DEVICE void begin(int64_t first, int stage) const {
    if (first < rows_) {
      copy<A_ROW / 16>(a_, call_.a_row, first, stage);
      copy<B_ROW / 16>(b_, call_.b_row, first, stage);
    }
    copies_end_group();
  }

  // Adds the products of a stage. IS_WHOLE: the warp's part of the tile is all within the head's matrix. Without a
  // condition in between, fragments are loaded while the tensor cores are busy with others.
  template <bool IS_WHOLE>
  RNNCC_DEVICE void multiply(int stage) {
    const int lane = threadIdx.x % 32;
    const uint32_t a = shared_ + stage * STAGE_BYTES, b = a + A_BYTES;
#pragma unroll
    for (int k = 0; k < HEAD_STAGE_ROWS; k += 16) {
      uint4 left[ROWS / 16], right[4];
      // Lanes name the rows of four matrices of 8 x 8: for a two pieces of units of 8 rows and then of 8 others, for b
      // two of rows of a piece and then of the next.
#pragma unroll
      for (int m = 0; m < ROWS / 16; ++m)
        if (IS_WHOLE || m * 16 < rows_left_)
          left[m] = load_transposed(a + place(k + lane % 8 + lane / 16 * 8, (row_ + 16 * m) / 8 + lane / 8 % 2, A_ROW));
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (IS_WHOLE || n * 16 < columns_left_)
          right[n] = load_transposed(b + place(k + lane % 16, (column_ + 16 * n) / 8 + lane / 16, B_ROW));
#pragma unroll
      for (int m = 0; m < ROWS / 16; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          if (IS_WHOLE || (m * 16 < rows_left_ && n * 16 < columns_left_)) {
            mma<S>(sums_[m][2 * n], left[m], right[n].x, right[n].y);
            mma<S>(sums_[m][2 * n + 1], left[m], right[n].z, right[n].w);
          }
    }
  }

  template <bool IS_WHOLE>
  RNNCC_DEVICE void go_through() {
    const int stages = int((rows_ + HEAD_STAGE_ROWS - 1) / HEAD_STAGE_ROWS);
#pragma unroll
    for (int i = 0; i < HEAD_STAGES - 1; ++i) begin(int64_t(i) * HEAD_STAGE_ROWS, i);
    for (int i = 0; i < stages; ++i) {
      copies_wait<HEAD_STAGES - 2>();
      // Everybody's part of stage i has come, and nobody reads the one before any more.
      __syncthreads();
      begin(int64_t(i + HEAD_STAGES - 1) * HEAD_STAGE_ROWS, (i + HEAD_STAGES - 1) % HEAD_STAGES);
      multiply<IS_WHOLE>(i % HEAD_STAGES);
    }
  }

  RNNCC_DEVICE void store(int slice) const {
    const int lane = threadIdx.x % 32;
    const int rows = call_.parts * call_.head_dim, columns = call_.terms * call_.depth;
    float* const sums = call_.sums + int64_t(slice) * rows * call_.heads * columns;
#pragma unroll
    for (int m = 0; m < ROWS / 16; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own = 16 * m + 8 * half + lane / 4, row = first_row_ + row_ + own;
        if (own >= rows_left_) continue;
        float* const to =
            sums +
            ((row / call_.head_dim * call_.heads + head_) * int64_t(call_.head_dim) + row % call_.head_dim) * columns +
            first_column_ + column_;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int column = 8 * n + lane % 4 * 2;
          if (column < columns_left_)
            *reinterpret_cast<float2*>(to + column) = make_float2(sums_[m][n][2 * half], sums_[m][n][2 * half + 1]);
        }
      }
  }

 public:
  // Tile `tile` of a head, over the rows of a slice.
  RNNCC_DEVICE HeadTile(const HeadProductCall& call, const char* shared, int slice, int head, int tile)
      : call_(call),
        rows_(::min(call.slice_rows, call.rows - slice * call.slice_rows)),
        head_(head),
        first_row_(tile / call.tiles_across * HEAD_TILE_ROWS),
        first_column_(tile % call.tiles_across * COLUMNS),
        row_(threadIdx.x / 32 / ACROSS * ROWS),
        column_(threadIdx.x / 32 % ACROSS * 64),
        rows_left_(call.parts * call.head_dim - first_row_ - row_),
        columns_left_(call.terms * call.depth - first_column_ - column_),
        shared_(shared_address(shared)),
        a_(pieces(call.a, call.a_row, slice * call.slice_rows, first_row_, call.parts * call.head_dim, call.head_dim,
                  shared_, A_ROW / 16, A_ROW)),
        b_(pieces(call.b, call.b_row, slice * call.slice_rows, first_column_, call.terms * call.depth, call.depth,
                  shared_ + A_BYTES, B_ROW / 16, B_ROW)),
        sums_{} {}

  RNNCC_DEVICE void run(int slice) {
    if (rows_left_ >= ROWS && columns_left_ >= 64)
      go_through<true>();
    else
      go_through<false>();
    store(slice);
  }
};

template <class S, int COLUMNS>
RNNCC_DEVICE void head_products(const HeadProductCall& call) {
  extern __shared__ __align__(128) char shared[];
  const int tiles = call.tiles_down * call.tiles_across, each = call.heads * tiles;
  const int slice = blockIdx.x / each, head = blockIdx.x % each / tiles;
  HeadTile<S, COLUMNS>(call, shared, slice, head, blockIdx.x % tiles).run(slice);
}

// Adds up the sums of all slices.
template <class S>
RNNCC_DEVICE void head_sums(const HeadSumCall& call) {
  const int64_t i = (int64_t(blockIdx.x) * HEAD_SUM_THREADS + threadIdx.x) * 4;
  if (i >= call.count) return;
  float total[4] = {};
  for (int64_t slice = 0; slice < call.slices; ++slice) {
    const float4 part = *reinterpret_cast<const float4*>(call.sums + slice * call.count + i);
    total[0] += part.x;
    total[1] += part.y;
    total[2] += part.z;
    total[3] += part.w;
  }
  uint32_t* const out = reinterpret_cast<uint32_t*>(static_cast<S*>(call.out) + i);
  out[0] = pack<S>(total[0], total[1]);
  out[1] = pack<S>(total[2], total[3]);
}

}  // namespace rnncc
