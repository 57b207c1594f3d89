// Rows put in another order on a GPU: what the host fills (permute_op.h) and the kernel reads (permute.cuh). Plain data.
#pragma once

#include <stdint.h>

namespace rnncc {

constexpr int PERMUTE_WARPS = 4;   // of a thread block
constexpr int PERMUTE_PIECES = 4;  // that a thread loads before it stores the first: enough bytes are then on their way
constexpr int PERMUTE_TILE = 32 * PERMUTE_PIECES;

// Row firsts[t] + b of the order of steps is row starts[b] + t of the order of columns. A warp copies a tile: rows that follow each
// other in the order of columns, or where one alone is more than PERMUTE_TILE pieces, so many of its pieces.
struct PermuteCall {
  const char* from;
  char* to;
  const int64_t* firsts;  // [steps + 1]
  const int64_t* starts;  // [columns + 1]
  int64_t steps, batch, rows;
  int64_t from_row, to_row;  // bytes from a row to the next
  int64_t pieces;            // of a row
  int32_t piece_bytes;       // 1, 2, 4, 8 or 16
  int32_t rows_of_tile;      // 1 to 32: a lane finds a row
  uint32_t tiles_of_row;
  bool to_steps;  // from the order of columns to that of steps, and not the other way
};

}  // namespace rnncc
