// Puts rows in another order on a GPU. The host fills this record (permute_op.h), and the kernel reads it
// (permute.cuh). Plain data.
#pragma once

#include "../core/integers.h"

namespace rnncc {

constexpr int PERMUTE_WARPS = 4;  // warps per CTA
constexpr int PERMUTE_PIECES =
    4;  // pieces that a thread loads before it stores the first, so that enough bytes are on their way
constexpr int PERMUTE_TILE = 32 * PERMUTE_PIECES;

// Row firsts[t] + b of the order of steps is row starts[b] + t of the order of entries. A warp copies a tile: rows that
// follow each other in the order of entries, or PERMUTE_TILE pieces of one row where that has more.
struct PermuteCall {
  const char* from;
  char* to;
  const int64_t* firsts;  // [steps + 1]
  const int64_t* starts;  // [batch + 1]
  int64_t steps, batch, rows;
  int64_t from_row, to_row;  // bytes from a row to the next
  int64_t pieces;            // pieces per row
  int32_t piece_bytes;       // 1, 2, 4, 8 or 16
  int32_t rows_of_tile;      // 1 to 32, since each lane finds one row
  uint32_t tiles_of_row;
  bool to_steps;  // whether rows go from the order of entries to the order of steps; else the other way
};

}  // namespace rnncc
