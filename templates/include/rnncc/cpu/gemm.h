// Matrix products for recurrent layers: C[m, n] = A[m, k] * B[k, n] (+ bias[n]) (+ C).
//
// B lies in panels (panels.h). The micro kernel has up to 6 rows of C in one panel in registers. This register blocking
// follows Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3), 2008.
//
// Threads belong to the caller: every function takes the range of rows or panels to compute. Each element of C is
// summed in the same order whatever the range, so results do not depend on the number of threads. The terms are summed
// one after the other in blocks of `k_block<T>`, and the sums of the blocks are added one after the other; then comes
// the bias, then the old C. On levels with FMA the products are fused into the sum, which needs -ffp-contract=fast,
// GCC's default for C++. Where B holds pairs, elements are summed as pairs.h says.
#pragma once

#include "pairs.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

constexpr int kernel_rows = 6;

// A block sum has so many terms at most, so that a panel's block and a few rows of A stay in the first-level cache.
template <class T>
constexpr int64_t k_block = 256 * 4 / int64_t(sizeof(T));

// So many rows of A go through all panels before the next rows do, so that they stay in the second-level cache.
constexpr int64_t row_block = 20 * kernel_rows;

// ---- micro kernel

// What one call of the micro kernel reads and writes besides its k terms.
template <class T>
struct Tile {
  const T* a;
  int64_t a_row, a_column;  // strides of A in elements
  const T* b;               // the panel at the first of the k terms
  int64_t b_panel;          // elements from this panel to the next
  T* c;
  int64_t c_row;    // stride of C's rows in elements
  const T* bias;    // at the first column, or null
  int64_t columns;  // how many columns of C there are
};

// Computes ROWS rows by PANELS panels of VECTORS vectors: C = sum over k (+ bias) (+ C). Two panels at once hide the
// latency of the sum where there is one row only.
template <class T, int ROWS, int VECTORS, int PANELS>
static __attribute__((noinline)) void micro_kernel(int64_t k, const Tile<T>& tile, bool accumulate) {
  constexpr int W = lanes<T>;
  constexpr int N = VECTORS * PANELS;
  Vec<T> sum[ROWS][N];
  RNNCC_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    RNNCC_UNROLL
    for (int j = 0; j < N; ++j) sum[i][j] = Vec<T>{};
  }
  const T* a = tile.a;
  const T* b = tile.b;
  const int64_t a_row = tile.a_row, a_column = tile.a_column, b_panel = tile.b_panel;
  for (int64_t term = 0; term < k; ++term) {
    Vec<T> column[N];
    RNNCC_UNROLL
    for (int j = 0; j < N; ++j) column[j] = load(b + (j / VECTORS) * b_panel + (j % VECTORS) * W);
    RNNCC_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      const Vec<T> factor = broadcast(a[i * a_row]);
      RNNCC_UNROLL
      for (int j = 0; j < N; ++j) sum[i][j] += factor * column[j];
    }
    a += a_column;
    b += VECTORS * W;
  }
  const bool whole = tile.columns >= N * W;
  RNNCC_UNROLL
  for (int j = 0; j < N; ++j) {
    const int64_t rest = whole ? W : tile.columns - j * W;
    if (rest <= 0) continue;
    const Vec<T> bias = tile.bias ? load_upto(tile.bias + j * W, rest) : Vec<T>{};
    RNNCC_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      T* c = tile.c + i * tile.c_row + j * W;
      Vec<T> r = sum[i][j] + bias;
      if (accumulate) r += load_upto(c, rest);
      store_upto(c, r, rest);
    }
  }
}

// Doubles are for checks: they have tiles of 1, 3 and 6 rows alone, which take less time to compile.
template <class T>
constexpr bool has_all_rows = sizeof(T) == 4;

template <class T, int VECTORS>
RNNCC_INLINE void micro_kernel_rows(int64_t rows, int64_t k, const Tile<T>& tile, bool accumulate) {
  if constexpr (has_all_rows<T>) {
    switch (rows) {
      case 2: return micro_kernel<T, 2, VECTORS, 1>(k, tile, accumulate);
      case 4: return micro_kernel<T, 4, VECTORS, 1>(k, tile, accumulate);
      case 5: return micro_kernel<T, 5, VECTORS, 1>(k, tile, accumulate);
      default: break;
    }
  }
  switch (rows) {
    case 1: return micro_kernel<T, 1, VECTORS, 1>(k, tile, accumulate);
    case 3: return micro_kernel<T, 3, VECTORS, 1>(k, tile, accumulate);
    default: return micro_kernel<T, 6, VECTORS, 1>(k, tile, accumulate);
  }
}

// How many rows the next tile has when `left` are left: 6, but 7 and 8 are halved where T has all tiles, since one of 1
// or 2 rows waits for its sums.
template <class T>
RNNCC_INLINE int64_t tile_rows(int64_t left) {
  if constexpr (!has_all_rows<T>) return left >= kernel_rows ? kernel_rows : left >= 3 ? 3 : 1;
  return left <= kernel_rows ? left : left <= 8 ? (left + 1) / 2 : kernel_rows;
}

// Multiplies a block of at most row_block rows and k terms by panels [panel_begin, panel_end). `term` is B's first row.
template <class T>
static void multiply_block(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t a_column, int64_t rows,
                           const Packed<T>& b, int64_t term, int64_t k, int64_t panel_begin, int64_t panel_end,
                           const T* bias, bool accumulate) {
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const int64_t first = p * panel_columns<T>;
    const int64_t width = panel_width(b, p);
    // clang-format off
    Tile<T> tile = {a,         a_row, a_column, panel_data(b, p) + term * width, panel_columns<T> * b.k,
                    c + first, c_row, bias ? bias + first : nullptr, b.n - first};
    // clang-format on
    if (rows == 1 && (p + 2) * panel_columns<T> <= b.n && p + 2 <= panel_end) {
      tile.columns = 2 * panel_columns<T>;
      micro_kernel<T, 1, panel_vectors, 2>(k, tile, accumulate);
      ++p;
      continue;
    }
    if (tile.columns > width) tile.columns = width;
    for (int64_t row = 0; row < rows;) {
      const int64_t step = tile_rows<T>(rows - row);
      if (width == panel_columns<T>) {
        micro_kernel_rows<T, panel_vectors>(step, k, tile, accumulate);
      } else {
        micro_kernel_rows<T, 1>(step, k, tile, accumulate);
      }
      row += step;
      tile.a += step * a_row;
      tile.c += step * c_row;
    }
  }
}

// ---- products

// Computes rows [row_begin, row_end) and panels [panel_begin, panel_end) of C[m, b.n] = A[m, b.k] * B (+ bias) (+ C if
// accumulate). c, a and bias point to row 0 and column 0 of the whole product. c_row and a_row are strides in elements;
// rows are contiguous. bias (b.n elements) may be null. C may not overlap A, B or bias.
template <class T>
static void gemm(T* c, int64_t c_row, const T* a, int64_t a_row, const Packed<T>& b, int64_t row_begin, int64_t row_end,
                 int64_t panel_begin, int64_t panel_end, const T* bias, bool accumulate) {
  if constexpr (sizeof(T) == 4) {
    if (b.pairs) return gemm_pairs(c, c_row, a, a_row, b, row_begin, row_end, panel_begin, panel_end, bias, accumulate);
  }
  for (int64_t row = row_begin; row < row_end; row += row_block) {
    const int64_t rows = row_end - row < row_block ? row_end - row : row_block;
    int64_t term = 0;
    do {
      const int64_t k = b.k - term < k_block<T> ? b.k - term : k_block<T>;
      multiply_block(c + row * c_row, c_row, a + row * a_row + term, a_row, int64_t(1), rows, b, term, k, panel_begin,
                     panel_end, term == 0 ? bias : nullptr, accumulate || term > 0);
      term += k;
    } while (term < b.k);
  }
}

// Up to so many rows of A, a product that is taken once is faster from B as it lies than from a packed B.
constexpr int64_t direct_rows = 4;

// Computes ROWS rows by one vector of columns of C = A * W^T (+ bias) (+ C), where C has the first `columns` of the
// vector. Blocks of W are transposed in registers to what a panel would hold, so that every element is summed exactly
// as by the micro kernel.
template <class T, int ROWS>
static __attribute__((noinline)) void direct_kernel(T* c, int64_t c_row, const T* a, int64_t a_row, const T* w,
                                                    int64_t ld, int64_t columns, int64_t k, const T* bias,
                                                    bool accumulate) {
  constexpr int L = lanes<T>;
  const T* row[L];
  for (int j = 0; j < L; ++j) row[j] = w + (j < columns ? j : columns - 1) * ld;
  int64_t begin = 0;
  do {
    const int64_t end = k - begin < k_block<T> ? k : begin + k_block<T>;
    Vec<T> sum[ROWS] = {};
    Vec<T> block[L];
    int64_t term = begin;
    for (; term + L <= end; term += L) {
      RNNCC_UNROLL
      for (int j = 0; j < L; ++j) block[j] = load(row[j] + term);
      transpose<T>(block);
      RNNCC_UNROLL
      for (int t = 0; t < L; ++t) {
        RNNCC_UNROLL
        for (int i = 0; i < ROWS; ++i) sum[i] += broadcast(a[i * a_row + term + t]) * block[t];
      }
    }
    if (term < end) {
      RNNCC_UNROLL
      for (int j = 0; j < L; ++j) block[j] = load_partial(row[j] + term, end - term);
      transpose<T>(block);
      RNNCC_UNROLL
      for (int t = 0; t < L; ++t) {
        if (term + t >= end) break;
        RNNCC_UNROLL
        for (int i = 0; i < ROWS; ++i) sum[i] += broadcast(a[i * a_row + term + t]) * block[t];
      }
    }
    const Vec<T> first = bias && begin == 0 ? load_upto(bias, columns) : Vec<T>{};
    RNNCC_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      Vec<T> r = sum[i] + first;
      if (accumulate || begin > 0) r += load_upto(c + i * c_row, columns);
      store_upto(c + i * c_row, r, columns);
    }
    begin = end;
  } while (begin < k);
}

template <class T, int ROWS>
static void direct_rows_of(T* c, int64_t c_row, const T* a, int64_t a_row, const T* w, int64_t ld, int64_t n, int64_t k,
                           const T* bias, bool accumulate) {
  for (int64_t j = 0; j < n; j += lanes<T>) {
    const int64_t columns = n - j < lanes<T> ? n - j : lanes<T>;
    direct_kernel<T, ROWS>(c + j, c_row, a, a_row, w + j * ld, ld, columns, k, bias ? bias + j : nullptr, accumulate);
  }
}

// Computes C[rows, n] = A[rows, k] * W[n, k]^T (+ bias) (+ C), rows <= direct_rows, from W's rows as they lie, ld
// elements apart. A single step calls this, because it would pack W only to read it once. The result has the bits of
// gemm with W packed.
template <class T>
static void gemm_direct(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t rows, const T* w, int64_t ld, int64_t n,
                        int64_t k, const T* bias, bool accumulate) {
  switch (rows) {
    case 1: return direct_rows_of<T, 1>(c, c_row, a, a_row, w, ld, n, k, bias, accumulate);
    case 2: return direct_rows_of<T, 2>(c, c_row, a, a_row, w, ld, n, k, bias, accumulate);
    case 3: return direct_rows_of<T, 3>(c, c_row, a, a_row, w, ld, n, k, bias, accumulate);
    case 4: return direct_rows_of<T, 4>(c, c_row, a, a_row, w, ld, n, k, bias, accumulate);
    default: return;
  }
}

// How many elements of scratch gemm_once needs.
template <class T>
constexpr int64_t once_scratch_elements = panel_columns<T> * k_block<T>;

// To pack a matrix that is used once takes about as long as so many rows' products with it.
constexpr int64_t once_packing = 3;

// Computes C[rows, n] = A[rows, k] * B (+ bias) (+ C) where B is used once: it is packed block by block into `scratch`,
// which has once_scratch_elements<T>, so that it need not go to memory and back. B is W^T for W[n, k] (BY_OUTPUT), or
// lies as B[k, n]; its rows are ld elements apart. The result has the bits of gemm.
template <bool BY_OUTPUT, class T>
static void gemm_once(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t rows, const T* b, int64_t ld, int64_t n,
                      int64_t k, const T* bias, bool accumulate, T* scratch) {
  for (int64_t first = 0; first < n; first += panel_columns<T>) {
    const int64_t columns = n - first < panel_columns<T> ? n - first : panel_columns<T>;
    int64_t term = 0;
    do {
      const int64_t terms = k - term < k_block<T> ? k - term : k_block<T>;
      const Packed<T> block = {scratch, columns, terms};
      if (BY_OUTPUT)
        pack_nk(block, b + first * ld + term, ld, int64_t(0), columns);
      else
        pack_kn(block, b + term * ld + first, ld, int64_t(0), columns);
      for (int64_t row = 0; row < rows; row += row_block) {
        multiply_block(c + row * c_row + first, c_row, a + row * a_row + term, a_row, int64_t(1),
                       rows - row < row_block ? rows - row : row_block, block, int64_t(0), terms, int64_t(0),
                       panel_count<T>(columns), bias && term == 0 ? bias + first : nullptr, accumulate || term > 0);
      }
      term += terms;
    } while (term < k);
  }
}

// Up to so many bytes of a packed X, gemm_tn writes C a few rows at a time, from the first column to the last: then C,
// which may be new memory, is touched as it lies. Else many rows go through a panel, which stays in the first-level cache.
constexpr int64_t row_by_row_bytes = int64_t(128) << 10;

// How many elements of scratch gemm_tn needs for n columns.
template <class T>
RNNCC_INLINE int64_t gemm_tn_scratch_elements(int64_t n) {
  return (padded_columns<T>(n) + row_block) * k_block<T>;
}

// Computes rows [row_begin, row_end) of C[m, n] = A^T * X (+ C if accumulate) with A[k, m] and X[k, n], which have
// contiguous rows. A weight's gradient is such a product, dW[out, in] = dG[T*B, out]^T * X[T*B, in]. a_row, x_row and
// c_row are strides in elements. `scratch` belongs to this thread and has gemm_tn_scratch_elements<T>(n) elements, best
// aligned to 64 bytes. `pairs`: both factors are rounded to bfloat16 (pairs.h).
template <class T>
static void gemm_tn(T* c, int64_t c_row, const T* a, int64_t a_row, const T* x, int64_t x_row, int64_t n, int64_t k,
                    int64_t row_begin, int64_t row_end, bool accumulate, T* scratch, bool pairs) {
  if constexpr (sizeof(T) == 4) {
    if (pairs) return gemm_tn_pairs(c, c_row, a, a_row, x, x_row, n, k, row_begin, row_end, accumulate, scratch);
  }
  T* packed_a = scratch + padded_columns<T>(n) * k_block<T>;
  int64_t term = 0;
  do {
    const int64_t terms = k - term < k_block<T> ? k - term : k_block<T>;
    const Packed<T> b = {scratch, n, terms};
    pack_kn(b, x + term * x_row, x_row, int64_t(0), n);
    const bool row_by_row = packed_elements<T>(n, terms) * int64_t(sizeof(T)) <= row_by_row_bytes;
    for (int64_t row = row_begin; row < row_end; row += row_block) {
      const int64_t rows = row_end - row < row_block ? row_end - row : row_block;
      for (int64_t t = 0; t < terms; ++t) {
        const T* in = a + (term + t) * a_row + row;
        for (int64_t i = 0; i < rows; i += lanes<T>) {
          store_upto(packed_a + t * row_block + i, load_upto(in + i, rows - i), rows - i);
        }
      }
      const int64_t step = row_by_row ? kernel_rows : row_block;
      for (int64_t r = 0; r < rows; r += step) {
        multiply_block(c + (row + r) * c_row, c_row, packed_a + r, int64_t(1), row_block,
                       rows - r < step ? rows - r : step, b, int64_t(0), terms, int64_t(0), panel_count<T>(n),
                       static_cast<const T*>(nullptr), accumulate || term > 0);
      }
    }
    term += terms;
  } while (term < k);
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
