// The parameter of the kernel that makes products of a few rows or terms: the host writes it (step_products.h), and the
// device reads it (small_products.cuh). Plain data.
#pragma once

#include "../core/integers.h"

namespace rnncc {

constexpr int SMALL_THREADS = 256, SMALL_WARPS = SMALL_THREADS / 32;
constexpr int SMALL_COLUMNS = 32, SMALL_ROWS = 16, SMALL_FEW_ROWS = 4;  // of a warp's tile
constexpr int SMALL_SHARED_BYTES = SMALL_WARPS * SMALL_ROWS * SMALL_COLUMNS * 4;

constexpr int MOST_ADDED = 2;

// What a product multiplies, and adds up over k.
enum class SmallForm : int32_t {
  rows,    // out[m][n] = a[m][k] b[n][k]
  across,  // out[m][n] = a[m][k] b[k][n]; without data a is ones
  outer,   // out[m][n] = a[k][m] b[k][n]
};

// A product of a few rows, or of a few terms.
struct SmallProduct {
  const void *a, *b;
  void* out;
  int64_t a_row, b_row, out_row;  // elements from a row to the next
  int32_t m, n, k;
  SmallForm form;
  const void* biases[MOST_ADDED];  // each [n], which is added to every row of `out`; null: none
  bool is_float;                   // whether `out` has floats; else it has the operands' type
  bool adds;                       // whether the product is added to what `out` has
  bool in_fours;  // whether four elements of a row may be loaded at once: of b, or in the form `outer` of a
  int32_t ctas;
};

// The rows of a CTA's tile.
constexpr int rows_of_tile(const SmallProduct& p) {
  if (p.form == SmallForm::outer) return SMALL_ROWS * SMALL_WARPS;
  return p.m > SMALL_FEW_ROWS ? SMALL_ROWS : SMALL_FEW_ROWS;
}

constexpr int MOST_SMALL_PRODUCTS = 16;  // of a launch
struct SmallProductsCall {
  SmallProduct products[MOST_SMALL_PRODUCTS];
  int64_t count;
};

}  // namespace rnncc
