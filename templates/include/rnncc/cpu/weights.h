// A call's weights in the compute type, and what is known of their zeros.
#pragma once

#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// Whether a weight's elements are counted before threads start.
template <class T>
static bool is_counted(const Run<T>& run, int16_t w) {
  for (int16_t m = 0; m < run.program.matrix_count; ++m)
    if (run.program.matrices[m].index == w && run.program.matrices[m].sparse) return true;
  return false;
}

// Whether the call has enough steps, and all matrices of a product may have many zeros. The matrix unit takes them all: a
// step has the bits that it has in a sequence.
template <class T>
static bool may_be_listed(const Run<T>& run, const ProductInfo& product) {
  for (int16_t g = 0; g < product.count; ++g) {
    const MatrixInfo& matrix = run.program.matrices[run.program.product_matrices[product.matrix + g]];
    if (!matrix.sparse || run.dim(product.transposed ? matrix.rows : matrix.columns) > most_list_rows) return false;
  }
  return !run.direct() && !run.in_pairs(product);
}

// Takes memory for weights in the compute type, and to count the elements of sparse ones. It is called twice: to count,
// and then to place.
template <class T>
static void take_weights(Run<T>& run, Arena& arena) {
  const Program<T>& program = run.program;
  run.matrices = arena.take<const T*>(program.weight_count + 1);
  for (int16_t w = 0; w < program.weight_count; ++w) {
    const rnncc_tensor& t = run.tensor(WEIGHTS, w);
    const int64_t count = run.weight_elements(w);
    T* copy = t.dtype == compute_dtype<T> ? nullptr : arena.take<T>(count);
    if (!run.matrices) continue;
    run.matrices[w] = copy ? copy : static_cast<const T*>(t.data);
    if (copy && is_counted(run, w)) read_row(copy, t, int64_t(0), count);
  }
  run.listed = arena.take<ListedProduct<T>>(program.product_count + 1);
  for (int16_t p = 0; p < program.product_count; ++p) {
    const ProductInfo& product = program.products[p];
    const MatrixInfo& first = program.matrices[program.product_matrices[product.matrix]];
    const int64_t units = run.dim(product.transposed ? first.columns : first.rows);
    const int64_t rows = run.dim(product.transposed ? first.rows : first.columns);
    int64_t* begin = may_be_listed(run, product) ? arena.take<int64_t>(product.count * units + 2) : nullptr;
    const int64_t all = product.count * units * (rows / run.dim(first.blocks));
    if (run.listed) run.listed[p] = {false, {begin, nullptr, nullptr}, units, 0, all, rows, 0};
  }
}

// Converts a thread's share of the other weights that have another dtype than the compute type. Returns whether there
// are any.
template <class T>
static bool convert_weights(const Run<T>& run, int64_t index, int64_t members) {
  bool any = false;
  for (int16_t w = 0; w < run.program.weight_count; ++w) {
    const rnncc_tensor& t = run.tensor(WEIGHTS, w);
    if (t.dtype == compute_dtype<T> || is_counted(run, w)) continue;
    any = true;
    const Range own = share(run.weight_elements(w), lanes<T>, index, members);
    read_row(const_cast<T*>(run.matrices[w]) + own.begin, t, own.begin, own.end - own.begin);
  }
  return any;
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
