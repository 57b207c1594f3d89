// Copies rows from the order of steps to the order of entries, or back (permute_call.h).
#pragma once

#include "permute_call.h"

namespace rnncc {

// The last entry that begins at or before a row of the order of entries. The lanes of a warp look at 32 places at once,
// so that any number of entries takes a few loads.
__device__ __forceinline__ int64_t entry_of(const PermuteCall& call, int64_t row, int lane) {
  int64_t entry = 0, left = call.batch;
  while (left > 1) {
    const int64_t part = (left + 31) / 32, ahead = lane * part;
    const bool has_begun = ahead < left && __ldg(call.starts + entry + ahead) <= row;
    const int64_t skipped = (::max(__popc(__ballot_sync(~0u, has_begun)), 1) - 1) * part;
    entry += skipped;
    left = ::min(part, left - skipped);
  }
  return entry;
}

// Where a row of the order of entries is in the order of steps. `entry` is the row's entry, or one before it. The row
// that is returned exists, whatever numbers the caller gave.
__device__ __forceinline__ int64_t place_of(const PermuteCall& call, int64_t row, int64_t entry) {
  const auto within = [](int64_t number, int64_t count) { return ::max(int64_t(0), ::min(number, count - 1)); };
  while (entry + 1 < call.batch && __ldg(call.starts + entry + 1) <= row) ++entry;
  const int64_t step = within(row - __ldg(call.starts + entry), call.steps);
  return within(__ldg(call.firsts + step) + entry, call.rows);
}

// Copies a warp's tile: the pieces from `first` on of `rows` rows. Lane l knows the offsets of row l in both tensors,
// in bytes.
template <class Piece>
__device__ __forceinline__ void copy_tile(const PermuteCall& call, int64_t from, int64_t to, int rows, int64_t first,
                                          int lane) {
  const int width = int(::min(call.pieces - first, int64_t(PERMUTE_TILE)));
  int row = lane / width, piece = lane % width;
  Piece held[PERMUTE_PIECES];
  Piece* targets[PERMUTE_PIECES];
#pragma unroll
  for (int i = 0; i < PERMUTE_PIECES; ++i) {
    const int64_t own_from = __shfl_sync(~0u, from, row & 31), own_to = __shfl_sync(~0u, to, row & 31);
    targets[i] = nullptr;
    if (row < rows) {
      held[i] = reinterpret_cast<const Piece*>(call.from + own_from)[first + piece];
      targets[i] = reinterpret_cast<Piece*>(call.to + own_to) + first + piece;
    }
    row += 32 / width;
    piece += 32 % width;
    if (piece >= width) {
      piece -= width;
      ++row;
    }
  }
#pragma unroll
  for (int i = 0; i < PERMUTE_PIECES; ++i)
    if (targets[i]) *targets[i] = held[i];
}

__device__ __forceinline__ void permute_rows(const PermuteCall& call) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_piece = int64_t(blockIdx.x % call.tiles_of_row) * PERMUTE_TILE;
  const int64_t first_row = (int64_t(blockIdx.x / call.tiles_of_row) * PERMUTE_WARPS + warp) * call.rows_of_tile;
  const int rows = int(::min(int64_t(call.rows_of_tile), call.rows - first_row));
  if (rows <= 0) return;
  // A lane without a row of its own takes the last one.
  const int64_t row = first_row + ::min(lane, rows - 1), place = place_of(call, row, entry_of(call, first_row, lane));
  const int64_t from = (call.to_steps ? row : place) * call.from_row, to = (call.to_steps ? place : row) * call.to_row;
  switch (call.piece_bytes) {
    case 16: return copy_tile<uint4>(call, from, to, rows, first_piece, lane);
    case 8: return copy_tile<uint2>(call, from, to, rows, first_piece, lane);
    case 4: return copy_tile<uint32_t>(call, from, to, rows, first_piece, lane);
    case 2: return copy_tile<uint16_t>(call, from, to, rows, first_piece, lane);
    default: return copy_tile<uint8_t>(call, from, to, rows, first_piece, lane);
  }
}

}  // namespace rnncc
