// A tile stage: the products of each tile, and then its function.
#pragma once

#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// Takes one part of a product for a tile's units, from the matrices as they lie. `room`: the thread's, for blocks.
template <class T>
static void multiply_in_place(const Run<T>& run, const ProductInfo& product, const Tiling& tiling,
                              const TileRange& range, int64_t operand, int64_t part, T* scratch, int64_t scratch_row,
                              const T* a, int64_t a_row, int64_t entries, T* room) {
  const int16_t* names = run.program.product_matrices + product.matrix;
  const ProductShape shape = product_shape(product, run.program.matrices[names[0]], run.dims);
  const int64_t units = range.end - range.begin;
  const T* const none = nullptr;
  const bool came_packed = run.came_packed(product);
  for (int16_t g = 0; g < product.count; ++g) {
    if (came_packed) {
      const MatrixInfo& info = run.program.matrices[names[g]];
      const int64_t rows = run.dim(info.rows), member = run.dim(info.row) / rows;
      const Packed<T> b = {const_cast<T*>(run.matrices[info.index]) + member * packed_elements<T>(rows, shape.depth),
                           rows, shape.depth};
      gemm(scratch + (product.first + g) * units - range.begin, scratch_row, a + operand, a_row, b, int64_t(0), entries,
           range.begin / panel_columns<T>, (range.end + panel_columns<T> - 1) / panel_columns<T>, none,
           product.accumulate);
      continue;
    }
    const T* matrix =
        run.matrix_data(names[g], shape.row_length) + tile_begin(shape, product.transposed, range, tiling, part);
    T* c = scratch + (product.first + g) * units;
    const bool accumulate = product.accumulate || part > 0;
    if (product.transposed)
      gemm_once<false>(c, scratch_row, a + operand, a_row, entries, matrix, shape.row_length, units, shape.depth, none,
                       accumulate, room);
    else if (entries <= direct_rows)
      gemm_direct(c, scratch_row, a + operand, a_row, entries, matrix, shape.row_length, units, shape.depth, none,
                  accumulate);
    else
      gemm_once<true>(c, scratch_row, a + operand, a_row, entries, matrix, shape.row_length, units, shape.depth, none,
                      accumulate, room);
  }
}

// Spreads the operands of those of a stage's products that are taken from lists, list_entries at a time. A single entry
// is not copied: products read it where it lies.
template <class T>
static void spread_operands(const Run<T>& run, const StageInfo& stage, const Frame<T>& frame, T* room,
                            const Range& entries) {
  for (int16_t p = stage.first_product; p < stage.first_product + stage.products; ++p) {
    const ListedProduct<T>& product = run.listed[p];
    if (!product.listed) continue;
    const int16_t slot = run.program.products[p].operand;
    for (int64_t entry = entries.begin; entry < entries.end; entry += list_entries<T>) {
      const int64_t left = entries.end - entry, count = left < list_entries<T> ? left : list_entries<T>;
      if (count == 1) continue;
      spread(room + product.spread + (entry - entries.begin) * product.rows, frame.at(slot, entry), frame.row[slot],
             count, product.rows);
    }
  }
}

// The most products that are summed in one go.
constexpr int most_terms = 16;

// How many products from `first` on are summed in one go: they are taken from lists and add to the same sums.
template <class T>
static int16_t joined_products(const Run<T>& run, const StageInfo& stage, int16_t first) {
  const ProductInfo* products = run.program.products;
  int16_t next = first + 1;
  while (next < stage.first_product + stage.products && next < first + most_terms && run.listed[next].listed &&
         products[next].accumulate && products[next].first == products[first].first &&
         products[next].count == products[first].count) {
    ++next;
  }
  return int16_t(next - first);
}

// Takes `count` products from `first` on for a tile's units and the batch entries `entries`. `room` has spread
// operands, of entry `begin` first.
template <class T>
static void multiply_listed(const Run<T>& run, int16_t first, int16_t count, const TileRange& range,
                            const Frame<T>& frame, const T* room, int64_t begin, const Range& entries, T* scratch,
                            int64_t scratch_row) {
  const ProductInfo& product = run.program.products[first];
  const int64_t units = range.end - range.begin;
  for (int64_t entry = entries.begin; entry < entries.end; entry += list_entries<T>) {
    const int64_t left = entries.end - entry, taken = left < list_entries<T> ? left : list_entries<T>;
    for (int16_t g = 0; g < product.count; ++g) {
      ListTerm<T> terms[most_terms];
      for (int16_t i = 0; i < count; ++i) {
        const ListedProduct<T>& listed = run.listed[first + i];
        const T* operand = taken == 1 ? frame.at(run.program.products[first + i].operand, entry)
                                      : room + listed.spread + (entry - begin) * listed.rows;
        terms[i] = {listed.lists, g * listed.units, operand};
      }
      multiply_lists(scratch + (entry - entries.begin) * scratch_row + (product.first + g) * units, scratch_row, terms,
                     count, range.begin, range.end, taken, product.accumulate);
    }
  }
}

// Runs tiles of a stage for batch entries `entries`: spread_entries at most, where products are taken from lists.
template <class T>
static void run_entries(const Run<T>& run, int16_t s, Frame<T>& frame, int64_t member, const Range& entries,
                        const Range& tiles) {
  const StageInfo& stage = run.program.stages[s];
  const Tiling& tiling = run.tilings[s];
  const Function<T> function = run.program.functions[stage.function];
  T* scratch = run.tile_scratch(member);
  T* room = run.spread_room(member);
  spread_operands(run, stage, frame, room, entries);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const TileRange range = tile_range(tiling, tile);
    const int64_t units = range.end - range.begin, scratch_row = stage.accumulators * units;
    for (int64_t entry = entries.begin; entry < entries.end; entry += tiling.entries) {
      const int64_t end = entry + tiling.entries < entries.end ? entry + tiling.entries : entries.end;
      const Pack<T>* pack = run.packs + run.first_pack[s] + tile * run.packs_per_tile[s];
      for (int16_t p = 0; p < stage.products; ++p) {
        if (run.listed[stage.first_product + p].listed) {
          const int16_t joined = joined_products(run, stage, int16_t(stage.first_product + p));
          multiply_listed(run, int16_t(stage.first_product + p), joined, range, frame, room, entries.begin,
                          Range{entry, end}, scratch, scratch_row);
          p = int16_t(p + joined - 1);
          continue;
        }
        const ProductInfo& product = run.program.products[stage.first_product + p];
        const MatrixInfo& matrix = run.program.matrices[run.program.product_matrices[product.matrix]];
        const int64_t parts = run.dim(matrix.blocks) == 1 ? 1 : product.parts;
        const int64_t a_row = frame.row[product.operand];
        const T* a = frame.p[product.operand] + entry * a_row;
        const bool in_place = !run.is_packed(product);
        for (int64_t part = 0; part < parts; ++part, ++pack) {
          if (in_place) {
            multiply_in_place(run, product, tiling, range, pack->operand, part, scratch, scratch_row, a, a_row,
                              end - entry, run.once_room(member));
            continue;
          }
          gemm(scratch + product.first * units, scratch_row, a + pack->operand, a_row, pack->b, int64_t(0), end - entry,
               int64_t(0), panel_count<T>(pack->b.n), static_cast<const T*>(nullptr), product.accumulate || part > 0);
        }
      }
      for (int16_t a = 0; a < stage.accumulators; ++a) {
        // The tile's first element then is that of entry `entry` and unit `range.begin`.
        frame.p[stage.first_accumulator + a] = scratch + a * units - entry * scratch_row - range.begin;
        frame.row[stage.first_accumulator + a] = scratch_row;
      }
      function(frame, entry, end, range.begin, range.end, range.head);
    }
  }
}

// The same for any number of entries.
template <class T>
static void run_tiles(const Run<T>& run, int16_t s, Frame<T>& frame, int64_t member, const Range& entries,
                      const Range& tiles) {
  if (!run.sharing.listed) return run_entries(run, s, frame, member, entries, tiles);
  for (int64_t entry = entries.begin; entry < entries.end; entry += spread_entries<T>) {
    const int64_t end = entry + spread_entries<T> < entries.end ? entry + spread_entries<T> : entries.end;
    run_entries(run, s, frame, member, Range{entry, end}, tiles);
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
