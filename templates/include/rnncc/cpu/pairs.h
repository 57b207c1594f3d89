// Products whose factors are rounded to bfloat16 and whose sums are float, by the processor's matrix unit (amx.h).
//
// gemm and gemm_tn (gemm.h) take them where B's panels hold pairs. An element is summed 32 terms at a time, from the
// first to the last, after the bias and the old C; so its bits depend neither on the number of threads nor on what is
// computed beside it.
#pragma once

#include "panels.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// So many rows and terms of A are rounded at a time.
constexpr int64_t rounded_rows = 4 * amx_size, rounded_terms = 512;

struct RoundedRows {
  alignas(64) uint16_t data[rounded_rows * rounded_terms];
  int64_t row;  // elements from row to row
};

// Rounds rows of a, and fills them up with zeros to a multiple of amx_terms.
static inline void round_rows(RoundedRows& out, const float* a, int64_t a_row, int64_t rows, int64_t terms) {
  out.row = stored_terms(terms);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < out.row; t += 2 * lanes<float>)
      store(reinterpret_cast<float*>(out.data + r * out.row + t), rounded_upto(a + r * a_row + t, terms - t));
  }
}

// The same for a matrix whose columns are the rows wanted.
static inline void round_columns(RoundedRows& out, const float* a, int64_t a_row, int64_t rows, int64_t terms) {
  constexpr int L = lanes<float>;
  out.row = stored_terms(terms);
  float* pairs = reinterpret_cast<float*>(out.data);
  for (int64_t t = 0; t < out.row; t += 2 * L) {
    for (int64_t r = 0; r < rows; r += L) {
      Vec<float> block[L];
      RNNCC_UNROLL
      for (int i = 0; i < L; ++i) block[i] = pair_of_rows(a + r, a_row, t + 2 * i, terms, rows - r);
      transpose<float>(block);
      for (int i = 0; i < L && r + i < rows; ++i) store(pairs + ((r + i) * out.row + t) / 2, block[i]);
    }
  }
}

// Tiles of sums that are made together: where they lie, and the rows of A and B that they need.
struct PairProduct {
  const uint16_t* a;
  int64_t a_bytes;  // from row to row, as below
  const float* b;
  int64_t b_bytes;
  float* c;
  int64_t c_bytes;
  int64_t terms;
};

template <int SUM>
RNNCC_INLINE void begin_sum(const PairProduct& product, int64_t row, int64_t column, bool accumulate) {
  if (accumulate)
    amx_load<SUM>(product.c + row * (product.c_bytes / 4) + column, product.c_bytes);
  else
    amx_zero<SUM>();
}

template <int SUM>
RNNCC_INLINE void end_sum(const PairProduct& product, int64_t row, int64_t column) {
  amx_store<SUM>(product.c + row * (product.c_bytes / 4) + column, product.c_bytes);
}

// Up to 16 rows by COLUMNS tiles. A sum takes four times as long to be known as to be started, so four wait together.
template <int COLUMNS>
static __attribute__((noinline)) void pair_kernel_1(const PairProduct& product, bool accumulate) {
  begin_sum<0>(product, 0, 0, accumulate);
  if constexpr (COLUMNS > 1) begin_sum<1>(product, 0, amx_size, accumulate);
  if constexpr (COLUMNS > 2) begin_sum<2>(product, 0, 2 * amx_size, accumulate);
  if constexpr (COLUMNS > 3) begin_sum<3>(product, 0, 3 * amx_size, accumulate);
  const float* b = product.b;
  for (int64_t term = 0; term < product.terms; term += amx_terms) {
    amx_load<4>(product.a + term, product.a_bytes);
    amx_load<5>(b, product.b_bytes);
    amx_multiply<0, 4, 5>();
    if constexpr (COLUMNS > 1) {
      amx_load<6>(b + amx_size, product.b_bytes);
      amx_multiply<1, 4, 6>();
    }
    if constexpr (COLUMNS > 2) {
      amx_load<7>(b + 2 * amx_size, product.b_bytes);
      amx_multiply<2, 4, 7>();
    }
    if constexpr (COLUMNS > 3) {
      amx_load<5>(b + 3 * amx_size, product.b_bytes);
      amx_multiply<3, 4, 5>();
    }
    b += amx_terms / 2 * (product.b_bytes / 4);
  }
  end_sum<0>(product, 0, 0);
  if constexpr (COLUMNS > 1) end_sum<1>(product, 0, amx_size);
  if constexpr (COLUMNS > 2) end_sum<2>(product, 0, 2 * amx_size);
  if constexpr (COLUMNS > 3) end_sum<3>(product, 0, 3 * amx_size);
}

// 17 to 32 rows by COLUMNS tiles.
template <int COLUMNS>
static __attribute__((noinline)) void pair_kernel_2(const PairProduct& product, bool accumulate) {
  begin_sum<0>(product, 0, 0, accumulate);
  begin_sum<1>(product, amx_size, 0, accumulate);
  if constexpr (COLUMNS > 1) begin_sum<2>(product, 0, amx_size, accumulate);
  if constexpr (COLUMNS > 1) begin_sum<3>(product, amx_size, amx_size, accumulate);
  const float* b = product.b;
  for (int64_t term = 0; term < product.terms; term += amx_terms) {
    amx_load<4>(product.a + term, product.a_bytes);
    amx_load<6>(b, product.b_bytes);
    amx_multiply<0, 4, 6>();
    amx_load<5>(product.a + term + amx_size * (product.a_bytes / 2), product.a_bytes);
    amx_multiply<1, 5, 6>();
    if constexpr (COLUMNS > 1) {
      amx_load<7>(b + amx_size, product.b_bytes);
      amx_multiply<2, 4, 7>();
      amx_multiply<3, 5, 7>();
    }
    b += amx_terms / 2 * (product.b_bytes / 4);
  }
  end_sum<0>(product, 0, 0);
  end_sum<1>(product, amx_size, 0);
  if constexpr (COLUMNS > 1) end_sum<2>(product, 0, amx_size);
  if constexpr (COLUMNS > 1) end_sum<3>(product, amx_size, amx_size);
}

static inline void pair_kernel(const PairProduct& product, int64_t rows, int64_t tiles, bool accumulate) {
  if (rows > amx_size) return tiles > 1 ? pair_kernel_2<2>(product, accumulate) : pair_kernel_2<1>(product, accumulate);
  switch (tiles) {
    case 1: return pair_kernel_1<1>(product, accumulate);
    case 2: return pair_kernel_1<2>(product, accumulate);
    case 3: return pair_kernel_1<3>(product, accumulate);
    default: return pair_kernel_1<4>(product, accumulate);
  }
}

// The shapes of tiles for `rows` rows and tiles of `columns` columns, as the kernels use them.
static inline AmxShapes shapes_for(int64_t rows, int64_t columns) {
  const bool two = rows > amx_size;
  const int64_t first = two ? amx_size : rows, second = two ? rows - amx_size : rows;
  AmxShapes shapes;
  for (int sum = 0; sum < 4; ++sum) shapes.set(sum, sum % 2 ? second : first, 4 * columns);
  shapes.set(4, first, 2 * amx_terms);
  for (int b = two ? 6 : 5; b < 8; ++b) shapes.set(b, amx_terms / 2, 4 * columns);
  if (two) shapes.set(5, second, 2 * amx_terms);
  return shapes;
}

// Multiplies up to rounded_rows rows of A by panels [panel_begin, panel_end). `term`: B's first row, which is even.
static inline void multiply_rounded(float* c, int64_t c_row, const RoundedRows& a, int64_t rows, const Packed<float>& b,
                                    int64_t term, int64_t panel_begin, int64_t panel_end, bool accumulate) {
  int64_t shaped = 0;
  const int64_t most = rows > amx_size ? 2 : 4;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const int64_t first = p * panel_columns<float>, width = panel_width(b, p);
    const int64_t columns = b.n - first < width ? b.n - first : width;
    const float* panel = panel_data(b, p) + term / 2 * width;
    for (int64_t column = 0; column < columns;) {
      const int64_t left = columns - column, whole = left / amx_size;
      const int64_t tiles = whole > most ? most : whole > 0 ? whole : 1, tile_width = whole > 0 ? amx_size : left;
      for (int64_t row = 0; row < rows; row += 2 * amx_size) {
        const int64_t some = rows - row < 2 * amx_size ? rows - row : 2 * amx_size;
        const int64_t shape = some * amx_size + tile_width;
        if (shaped != shape) amx_begin(shapes_for(some, tile_width));
        shaped = shape;
        const PairProduct product = {a.data + row * a.row,
                                     2 * a.row,
                                     panel + column,
                                     4 * width,
                                     c + row * c_row + first + column,
                                     4 * c_row,
                                     a.row};
        pair_kernel(product, some, tiles, accumulate);
      }
      column += tiles * tile_width;
    }
  }
  amx_end();
}

// gemm for a B of pairs.
static inline void gemm_pairs(float* c, int64_t c_row, const float* a, int64_t a_row, const Packed<float>& b,
                              int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                              const float* bias, bool accumulate) {
  const int64_t begin = panel_begin * panel_columns<float>, limit = panel_end * panel_columns<float>;
  const int64_t end = limit < b.n ? limit : b.n;
  RoundedRows rounded;
  for (int64_t row = row_begin; row < row_end; row += rounded_rows) {
    const int64_t rows = row_end - row < rounded_rows ? row_end - row : rounded_rows;
    float* to = c + row * c_row;
    for (int64_t r = 0; bias && r < rows; ++r) {
      for (int64_t j = begin; j < end; j += lanes<float>) {
        const Vec<float> old = accumulate ? load_upto(to + r * c_row + j, end - j) : Vec<float>{};
        store_upto(to + r * c_row + j, load_upto(bias + j, end - j) + old, end - j);
      }
    }
    int64_t term = 0;
    do {
      const int64_t terms = b.k - term < rounded_terms ? b.k - term : rounded_terms;
      round_rows(rounded, a + row * a_row + term, a_row, rows, terms);
      multiply_rounded(to, c_row, rounded, rows, b, term, panel_begin, panel_end, accumulate || bias || term > 0);
      term += terms;
    } while (term < b.k);
  }
}

// gemm_tn with rounded factors.
static inline void gemm_tn_pairs(float* c, int64_t c_row, const float* a, int64_t a_row, const float* x, int64_t x_row,
                                 int64_t n, int64_t k, int64_t row_begin, int64_t row_end, bool accumulate,
                                 float* scratch) {
  RoundedRows rounded;
  int64_t term = 0;
  do {
    const int64_t terms = k - term < rounded_terms ? k - term : rounded_terms;
    const Packed<float> b = {scratch, n, terms, true};
    pack_kn(b, x + term * x_row, x_row, int64_t(0), n);
    for (int64_t row = row_begin; row < row_end; row += rounded_rows) {
      const int64_t rows = row_end - row < rounded_rows ? row_end - row : rounded_rows;
      round_columns(rounded, a + term * a_row + row, a_row, rows, terms);
      multiply_rounded(c + row * c_row, c_row, rounded, rows, b, int64_t(0), int64_t(0), panel_count<float>(n),
                       accumulate || term > 0);
    }
    term += terms;
  } while (term < k);
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
