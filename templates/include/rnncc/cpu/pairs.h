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

// Rows of A in bfloat16, `row` elements apart. Each has whole pieces of amx_terms terms.
struct PairRows {
  const uint16_t* data;
  int64_t row, terms;
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

// Tiles of sums that are made together: where they lie, what they begin with, and the rows of A and B that they need.
struct PairProduct {
  const uint16_t* a;
  int64_t a_bytes;  // from row to row, as below
  const float* b;
  int64_t b_bytes;
  float* c;
  int64_t c_bytes;
  const float* begin;   // null: zeros
  int64_t begin_bytes;  // 0 where all rows begin with the same numbers
  int64_t terms;
};

template <int SUM>
RNNCC_INLINE void begin_sum(const PairProduct& product, int64_t row, int64_t column) {
  if (product.begin)
    amx_load<SUM>(product.begin + row * (product.begin_bytes / 4) + column, product.begin_bytes);
  else
    amx_zero<SUM>();
}

template <int SUM>
RNNCC_INLINE void end_sum(const PairProduct& product, int64_t row, int64_t column) {
  amx_store<SUM>(product.c + row * (product.c_bytes / 4) + column, product.c_bytes);
}

// Up to 16 rows by COLUMNS tiles. A sum takes four times as long to be known as to be started, so four wait together.
template <int COLUMNS>
static __attribute__((noinline)) void pair_kernel_1(const PairProduct& product) {
  begin_sum<0>(product, 0, 0);
  if constexpr (COLUMNS > 1) begin_sum<1>(product, 0, amx_size);
  if constexpr (COLUMNS > 2) begin_sum<2>(product, 0, 2 * amx_size);
  if constexpr (COLUMNS > 3) begin_sum<3>(product, 0, 3 * amx_size);
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
static __attribute__((noinline)) void pair_kernel_2(const PairProduct& product) {
  begin_sum<0>(product, 0, 0);
  begin_sum<1>(product, amx_size, 0);
  if constexpr (COLUMNS > 1) begin_sum<2>(product, 0, amx_size);
  if constexpr (COLUMNS > 1) begin_sum<3>(product, amx_size, amx_size);
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

static inline void pair_kernel(const PairProduct& product, int64_t rows, int64_t tiles) {
  if (rows > amx_size) return tiles > 1 ? pair_kernel_2<2>(product) : pair_kernel_2<1>(product);
  switch (tiles) {
    case 1: return pair_kernel_1<1>(product);
    case 2: return pair_kernel_1<2>(product);
    case 3: return pair_kernel_1<3>(product);
    default: return pair_kernel_1<4>(product);
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

// To set shapes takes as long as many products, and so does to release them. A thread that is within a loop keeps them
// from product to product, since nothing else there uses the unit; `shape` is 0 where none are set.
struct SetShapes {
  bool are_kept;
  int64_t shape;
};
static __thread SetShapes set_shapes;

RNNCC_INLINE void set(SetShapes& shapes, int64_t rows, int64_t columns) {
  const int64_t wanted = rows * 2 * amx_size + columns;
  if (shapes.shape != wanted) amx_begin(shapes_for(rows, columns));
  shapes.shape = wanted;
}
RNNCC_INLINE void release(SetShapes& shapes) {
  if (shapes.shape) amx_end();
  shapes.shape = 0;
}

// Every file that is compiled has a `set_shapes` of its own, so these are parts of their callers.
class KeepsShapes {
 public:
  __attribute__((always_inline)) KeepsShapes() { set_shapes.are_kept = true; }
  __attribute__((always_inline)) ~KeepsShapes() {
    release(set_shapes);
    set_shapes.are_kept = false;
  }
};

// Multiplies up to rounded_rows rows of A by panels [panel_begin, panel_end). `term`: B's first row, which is even.
// Sums begin with C where they `accumulate`, else with the bias, which may be null.
static inline void multiply_pairs(float* c, int64_t c_row, const PairRows& a, int64_t rows, const Packed<float>& b,
                                  int64_t term, int64_t panel_begin, int64_t panel_end, const float* bias,
                                  bool accumulate) {
  SetShapes shapes = set_shapes;  // a copy: to find the thread's own takes a call
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
        set(shapes, some, tile_width);
        float* const sums = c + row * c_row + first + column;
        const PairProduct product = {a.data + row * a.row,
                                     2 * a.row,
                                     panel + column,
                                     4 * width,
                                     sums,
                                     4 * c_row,
                                     accumulate ? sums
                                     : bias     ? bias + first + column
                                                : nullptr,
                                     accumulate ? 4 * c_row : 0,
                                     a.terms};
        pair_kernel(product, some, tiles);
      }
      column += tiles * tile_width;
    }
  }
  if (!shapes.are_kept) release(shapes);
  set_shapes = shapes;
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
    for (int64_t r = 0; bias && accumulate && r < rows; ++r) {
      for (int64_t j = begin; j < end; j += lanes<float>)
        store_upto(to + r * c_row + j, load_upto(bias + j, end - j) + load_upto(to + r * c_row + j, end - j), end - j);
    }
    int64_t term = 0;
    do {
      const int64_t terms = b.k - term < rounded_terms ? b.k - term : rounded_terms;
      round_rows(rounded, a + row * a_row + term, a_row, rows, terms);
      multiply_pairs(to, c_row, {rounded.data, rounded.row, rounded.row}, rows, b, term, panel_begin, panel_end, bias,
                     accumulate || term > 0);
      term += terms;
    } while (term < b.k);
  }
}

// Whether rows of A in bfloat16 can be multiplied where they lie.
RNNCC_INLINE bool are_whole_pairs(const Packed<float>& b) { return b.pairs && b.k % amx_terms == 0 && b.k > 0; }

// gemm for such rows: C = A * B (+ bias).
static inline void gemm_of_pairs(float* c, int64_t c_row, const uint16_t* a, int64_t a_row, const Packed<float>& b,
                                 int64_t rows, int64_t panel_begin, int64_t panel_end, const float* bias) {
  for (int64_t row = 0; row < rows; row += rounded_rows) {
    const int64_t some = rows - row < rounded_rows ? rows - row : rounded_rows;
    multiply_pairs(c + row * c_row, c_row, {a + row * a_row, a_row, b.k}, some, b, int64_t(0), panel_begin, panel_end,
                   bias, false);
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
      multiply_pairs(c + row * c_row, c_row, {rounded.data, rounded.row, rounded.row}, rows, b, int64_t(0), int64_t(0),
                     panel_count<float>(n), nullptr, accumulate || term > 0);
    }
    term += terms;
  } while (term < k);
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
