// Makes the lists (lists.h) of a call's sparse matrices. They are made anew in every call, so a new mask takes effect
// at the next one.
#pragma once

#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A matrix as a product of a stage sees it: its units are those of the sums, whichever way it lies in memory.
template <class T>
struct ListSource {
  const T* data;
  ProductShape shape;
  bool transposed;
  int64_t units;
  int64_t unit_parts;  // units are laid out [unit_parts, blocks, ...]
};

// Calls f(unit, row, data, rows, units) for pieces of units [begin, end). Element [r, u] of a piece is what unit unit +
// u has for row row + r of the operand. It lies at data[r + u * row_length], or at data[r * row_length + u] where the
// product is transposed. A unit's rows come in ascending order.
template <class T, class F>
RNNCC_INLINE void for_pieces(const ListSource<T>& source, int64_t begin, int64_t end, const F& f) {
  const ProductShape& shape = source.shape;
  const int64_t unit_blocks = shape.blocks == 1 ? 1 : source.unit_parts * shape.blocks;
  const int64_t unit_depth = source.units / unit_blocks;
  for (int64_t unit = begin; unit < end;) {
    const int64_t block = unit / unit_depth, head = block % shape.blocks;
    const int64_t limit = (block + 1) * unit_depth, stop = limit < end ? limit : end;
    for (int64_t part = 0; part < shape.parts; ++part) {
      const int64_t row = (part * shape.blocks + head) * shape.depth;
      const int64_t column = block / shape.blocks * unit_depth + unit - block * unit_depth;
      const int64_t at =
          source.transposed ? row * shape.row_length + column : unit * shape.row_length + part * shape.depth;
      f(unit, row, source.data + at, shape.depth, stop - unit);
    }
    unit = stop;
  }
}

// How many of n elements are not zero.
template <class T>
RNNCC_INLINE int64_t count_row(const T* data, int64_t n) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += lanes<T>) found += __builtin_popcount(nonzero_bits(load_upto(data + i, n - i)));
  return found;
}

// Counts the elements of units [begin, end) of matrix `g` of a product.
template <class T>
static void count_elements(const ListedProduct<T>& product, const ListSource<T>& source, int64_t g, int64_t begin,
                           int64_t end) {
  int64_t* count = product.lists.begin + g * product.units + 2;
  const int64_t ld = source.shape.row_length;
  for (int64_t u = begin; u < end; ++u) count[u] = 0;
  for_pieces(source, begin, end, [&](int64_t unit, int64_t, const T* data, int64_t rows, int64_t units) {
    if (!source.transposed) {
      for (int64_t u = 0; u < units; ++u) count[unit + u] += count_row(data + u * ld, rows);
      return;
    }
    // So many vectors of a row at a time that memory is read in long pieces.
    constexpr int64_t most = 32;
    for (int64_t u = 0; u < units; u += most * lanes<T>) {
      const int64_t width = units - u < most * lanes<T> ? units - u : most * lanes<T>;
      Mask<T> found[most] = {};
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; i += lanes<T>)
          found[i / lanes<T>] -= load_upto(data + r * ld + u + i, width - i) != Vec<T>{};
      }
      for (int64_t i = 0; i < width; ++i) count[unit + u + i] += found[i / lanes<T>][i % lanes<T>];
    }
  });
}

// Makes of the counts where each unit's elements begin, and how many there are in all.
template <class T>
static void place_lists(ListedProduct<T>& product, int64_t matrices) {
  int64_t* begin = product.lists.begin;
  begin[0] = begin[1] = 0;
  for (int64_t u = 2; u < matrices * product.units + 2; ++u) begin[u] += begin[u - 1];
  product.elements = begin[matrices * product.units + 1];
}

// Fills the lists of units [begin, end) of matrix `g`. All units of a product must be filled before one is read.
template <class T>
static void fill_matrix(const ListedProduct<T>& product, const ListSource<T>& source, int64_t g, int64_t begin,
                        int64_t end) {
  int64_t* next = product.lists.begin + g * product.units + 1;
  const int64_t ld = source.shape.row_length;
  const auto put = [&](int64_t unit, int64_t row, T value) {
    product.lists.row[next[unit]] = uint16_t(row);
    product.lists.value[next[unit]++] = value;
  };
  for_pieces(source, begin, end, [&](int64_t unit, int64_t row, const T* data, int64_t rows, int64_t units) {
    const int64_t outer = source.transposed ? rows : units, inner = source.transposed ? units : rows;
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t first = 0; first < inner; first += lanes<T>) {
        const T* from = data + o * ld + first;
        for (uint32_t bits = nonzero_bits(load_upto(from, inner - first)); bits; bits &= bits - 1) {
          const int64_t i = __builtin_ctz(bits);
          if (source.transposed) {
            put(unit + first + i, row + o, from[i]);
          } else {
            put(unit + o, row + first + i, from[i]);
          }
        }
      }
    }
  });
}

template <class T>
static ListSource<T> list_source(const Run<T>& run, const StageInfo& stage, const ProductInfo& product, int16_t g) {
  const int16_t name = run.program.product_matrices[product.matrix + g];
  const ProductShape shape = product_shape(product, run.program.matrices[name], run.dims);
  return {run.matrix_data(name, shape.row_length), shape, product.transposed, run.dim(stage.width), stage.parts};
}

// About how many elements of a product's matrices are not zero, by some of their rows.
template <class T>
static int64_t estimate_elements(const Run<T>& run, const ProductInfo& product, int64_t all) {
  constexpr int64_t every = 16;
  int64_t found = 0, read = 0;
  for (int16_t g = 0; g < product.count; ++g) {
    const int16_t name = run.program.product_matrices[product.matrix + g];
    const MatrixInfo& matrix = run.program.matrices[name];
    const int64_t row_length = run.dim(matrix.columns) / run.dim(matrix.blocks);
    const T* data = run.matrix_data(name, row_length);
    for (int64_t row = 0; row < run.dim(matrix.rows); row += every) {
      found += count_row(data + row * row_length, row_length);
      read += row_length;
    }
  }
  return read > 0 ? int64_t(double(found) / double(read) * double(all)) : 0;
}

// Decides whether a product of a stage is taken from lists, and counts their elements. Returns torch's error code.
template <class T>
static int32_t choose_list(const Run<T>& run, const StageInfo& stage, int16_t p, const CallSizes& sizes) {
  const ProductInfo& product = run.program.products[p];
  ListedProduct<T>& listed = run.listed[p];
  // Where lists would be slower with half of the estimated elements, the matrices are clearly too dense, and their
  // other rows are not read.
  if (!lists_are_faster(listed, estimate_elements(run, product, listed.all) / 2, product.transposed, sizes)) return 0;
  // The fewest elements for which another thread is worth while.
  constexpr int64_t least = 1 << 16;
  const int64_t grain = least / (listed.all / listed.units + 1) + 1;
  const int32_t failed = parallel_ranges(listed.units, grain, [&](int64_t begin, int64_t end) {
    for (int16_t g = 0; g < product.count; ++g) {
      count_elements(listed, list_source(run, stage, product, g), g, begin, end);
    }
  });
  if (failed) return failed;
  place_lists(listed, product.count);
  listed.listed = lists_are_faster(listed, listed.elements, product.transposed, sizes);
  return 0;
}

// The same for all products.
template <class T>
static int32_t choose_lists(const Run<T>& run) {
  CallSizes sizes = {run.call.steps, run.mean_entries(), 0};
  for (int16_t p = 0; p < run.program.product_count; ++p) sizes.step_elements += run.listed[p].all;
  for (int16_t s = 0; s < run.program.stage_count; ++s) {
    const StageInfo& stage = run.program.stages[s];
    for (int16_t p = stage.first_product; p < stage.first_product + stage.products; ++p) {
      if (!run.listed[p].lists.begin) continue;
      if (const int32_t failed = choose_list(run, stage, p, sizes)) return failed;
    }
  }
  return 0;
}

// Fills a thread's share of a stage's lists.
template <class T>
static void fill_lists(const Run<T>& run, int16_t s, int64_t index, int64_t members) {
  const StageInfo& stage = run.program.stages[s];
  for (int16_t p = stage.first_product; p < stage.first_product + stage.products; ++p) {
    const ListedProduct<T>& listed = run.listed[p];
    if (!listed.listed) continue;
    const ProductInfo& product = run.program.products[p];
    const Range own = share(listed.units, lanes<T>, index, members);
    for (int16_t g = 0; g < product.count; ++g) {
      fill_matrix(listed, list_source(run, stage, product, g), g, own.begin, own.end);
    }
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
