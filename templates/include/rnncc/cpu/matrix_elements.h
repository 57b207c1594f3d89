// Runs a stage of a matrix's elements, tile by tile of its rows (RowTiles in layout.h). What columns add up to goes from tile
// to tile in their order, so that it does not depend on which thread has which tile.
#pragma once

#include "elements.h"
#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// Joins n numbers of a vector of columns to those of the tiles before.
template <bool LARGEST, class T>
static void join_columns(T* to, const T* more, int64_t n) {
  for (int64_t j = 0; j < n; j += lanes<T>)
    store_upto(to + j, joined<LARGEST>(load_upto(to + j, n - j), load_upto(more + j, n - j)), n - j);
}

// A stage for a thread, whose tiles are those of whole heads where its group has enough heads for all. Only the first tile
// of a head puts its vectors of columns to their slots; those of the others are joined to them.
template <class T>
struct ElementStage {
  const Run<T>& run;
  const StageInfo& stage;
  Frame<T>& frame;
  int64_t thread;
  RowTiles tiles;
  bool divided;  // whether threads divide the tiles of a head

  int64_t columns() const { return run.dim(stage.matrix_columns) / run.call.heads; }

  // Where a later tile puts the vectors of columns of batch entry b.
  T* parts(int64_t tile, int64_t b) const {
    const int64_t row = divided ? frame.turn * run.call.batch + b : run.parts_of_threads + thread;
    return run.parts + row * run.parts_of_entry + (tile - 1) * column_vectors(stage) * run.part_width(stage);
  }

  // Runs a tile of heads [h0, h1) for batch entries [b0, b1): of one entry, unless there is one tile or tiles are divided.
  void call(int64_t b0, int64_t b1, int64_t h0, int64_t h1, int64_t tile) const {
    frame.first_row = tile * RowTiles::size;
    frame.end_row = tiles.end_of(tile);
    frame.parts = tile > 0 && column_vectors(stage) > 0 ? parts(tile, 0) : nullptr;
    frame.part_row = divided ? run.parts_of_entry : 0;
    frame.part_size = run.part_width(stage);
    run.program.functions[stage.function](frame, b0, b1, h0, h1, run.call.heads);
  }

  void join(const Range& entries, int64_t h0, int64_t h1) const {
    const int16_t vectors = column_vectors(stage);
    const int16_t* const slots = run.program.stage_slots + stage.first_stored + stage.stored - vectors;
    const int64_t begin = h0 * columns(), n = h1 * columns() - begin;
    for (int64_t b = entries.begin; b < entries.end; ++b)
      for (int64_t tile = 1; tile < tiles.count; ++tile)
        for (int16_t v = 0; v < vectors; ++v) {
          T* const to = frame.at(slots[v], b) + begin;
          const T* const more = parts(tile, b) + v * run.part_width(stage) + begin;
          v < stage.column_sums ? join_columns<false>(to, more, n) : join_columns<true>(to, more, n);
        }
  }

  // Runs the tiles `own`, counted over all heads.
  void run_tiles(const Range& entries, const Range& own) const {
    const int64_t first = own.begin / tiles.count, end = own.end / tiles.count;
    if (tiles.count == 1) return call(entries.begin, entries.end, first, end, 0);
    if (divided) {
      for (int64_t i = own.begin; i < own.end; ++i)
        call(entries.begin, entries.end, i / tiles.count, i / tiles.count + 1, i % tiles.count);
      return;
    }
    for (int64_t b = entries.begin; b < entries.end; ++b) {
      for (int64_t head = first; head < end; ++head)
        for (int64_t tile = 0; tile < tiles.count; ++tile) call(b, b + 1, head, head + 1, tile);
      join({b, b + 1}, first, end);
    }
  }
};

// Runs a stage for a thread, which is one of `mates` of a group. `entries`: the group's. `own`: the thread's part of them.
// `meet()` waits for the group. `copy(i, entries, begin, end)` copies elements [begin, end) of what the stage stored as
// number i to the other tensors that want it.
template <class T, class Meet, class Copy>
static void run_elements(const Run<T>& run, const StageInfo& stage, Frame<T>& frame, int64_t thread, int64_t place,
                         int64_t mates, const Range& entries, const Range& own, const Meet& meet, const Copy& copy) {
  const int64_t heads = run.call.heads;
  const RowTiles tiles = run.row_tiles(stage);
  const bool divided = tiles.are_divided(heads, mates);
  const ElementStage<T> elements = {run, stage, frame, thread, tiles, divided};
  const Range some = share(heads * tiles.count, divided ? 1 : tiles.count, place, mates);
  if (some.begin < some.end && entries.begin < entries.end) elements.run_tiles(entries, some);
  const int16_t vectors = column_vectors(stage), others = int16_t(stage.stored - vectors);
  if (divided && vectors > 0) {
    meet();
    elements.join(own, 0, heads);
    frame.turn = 1 - frame.turn;  // the next such stage may begin while a slower thread joins these
  }
  const auto row_of = [&](int64_t i) { return i / tiles.count * tiles.rows + i % tiles.count * RowTiles::size; };
  const int64_t first_row = row_of(some.begin), end_row = row_of(some.end);
  for (int16_t i = 0; i < others && first_row < end_row; ++i) {
    // It is a matrix, or a vector with a number for each row.
    const int64_t depth = run.dim(run.program.slots[run.program.stage_slots[stage.first_stored + i]].width) / heads;
    copy(i, entries, first_row * depth / tiles.rows, end_row * depth / tiles.rows);
  }
  for (int16_t i = others; i < stage.stored; ++i) {
    const int64_t columns = elements.columns();
    if (divided)
      copy(i, own, 0, heads * columns);
    else
      copy(i, entries, some.begin / tiles.count * columns, some.end / tiles.count * columns);
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
