// Products of heads over many rows, on a GPU in 16 bits. The host fills this record (heads.h), and the kernels read it
// (head_products.cuh). Plain data.
#pragma once

#include "../core/integers.h"

namespace rnncc {

// A CTA makes a tile of a head's matrix: HEAD_TILE_ROWS rows of it, and 64 or 128 columns.
constexpr int HEAD_PRODUCT_THREADS = 256, HEAD_TILE_ROWS = 256;
// Rows of the operands per stage of shared memory, and stages. All stages but one are on their way.
constexpr int HEAD_STAGE_ROWS = 32, HEAD_STAGES = 4;
constexpr int HEAD_SUM_THREADS = 256;

// Bytes of shared memory of a CTA whose tile has so many columns.
constexpr int head_product_shared(int columns) {
  return HEAD_STAGES * HEAD_STAGE_ROWS * (HEAD_TILE_ROWS + columns) * 2;
}

// CTAs of such tiles that an SM has registers and shared memory for.
constexpr int head_products_at_once(int columns) { return columns == 64 ? 2 : 1; }

// aᵀ b for each head. Row m of a head's matrix belongs to unit m % head_dim of part m / head_dim of a; so do its columns
// to the units and terms of b. The rows of a and b are dealt out in slices. Each slice has a sum of its own, and another
// kernel adds these up: the order of all sums is fixed.
struct HeadProductCall {
  const char* a;         // [rows, parts * heads * head_dim]
  const char* b;         // [rows, terms * heads * depth]
  float* sums;           // [slices, parts * heads * head_dim, terms * depth]
  int64_t a_row, b_row;  // bytes from a row to the next
  int64_t rows, slice_rows;
  int32_t heads, parts, head_dim, terms, depth;
  int32_t slices;
  int32_t tiles_down, tiles_across;  // of a head's matrix
};

struct HeadSumCall {
  const float* sums;  // [slices, count]
  void* out;          // [count]
  int64_t count;      // a multiple of 4
  int64_t slices;
};

}  // namespace rnncc
