// Operators of matrices that change with the step: those of rnncc/ir/cell.py's RowOperator that have a grid.
#pragma once

#include "rows.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A matrix has a block of rows x columns for each head. The blocks lie one after the other, each row by row. A vector
// has one number for each row (or column) of all blocks, laid out as a row is.
struct BlockShape {
  int64_t heads, rows, columns;

  int64_t elements() const { return rows * columns; }
};

// An element of a vector that meets row (or column) `i` of a head's block: one number per head, or for all heads, fills
// the block.
RNNCC_INLINE int64_t element_at(const RowLayout& vector, int64_t head, int64_t i) {
  if (vector.heads == 1 && vector.head_width() == 1) return 0;
  return vector.head_width() == 1 ? head : vector.at(head, i);
}

template <class T>
RNNCC_INLINE void fill(T* out, T value, int64_t n) {
  const Vec<T> same = broadcast(value);
  for (int64_t i = 0; i < n; i += lanes<T>) store_upto(out + i, same, n - i);
}

template <class T>
static void by_column(T* out, const T* in, const RowLayout& from, int64_t head, const BlockShape& shape) {
  for (int64_t j = 0; j < shape.columns; ++j) out[j] = in[element_at(from, head, j)];
  for (int64_t i = 1; i < shape.rows; ++i) {
    __builtin_memcpy(out + i * shape.columns, out, size_t(shape.columns) * sizeof(T));
  }
}

template <class T>
static void of_rows(RowOperator op, T* out, const RowLayout& to, const T* block, int64_t head,
                    const BlockShape& shape) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    const T* row = block + i * shape.columns;
    out[element_at(to, head, i)] = op == RowOperator::row_maxima ? largest_of(row, shape.columns, -T(__builtin_inf()))
                                                                 : sum_of(row, shape.columns);
  }
}

template <class T>
static void of_columns(RowOperator op, T* out, const RowLayout& to, const T* block, int64_t head,
                       const BlockShape& shape) {
  const bool largest = op == RowOperator::column_maxima;
  for (int64_t j = 0; j < shape.columns; j += lanes<T>) {
    const int64_t n = shape.columns - j;
    Vec<T> total = largest ? broadcast(-T(__builtin_inf())) : Vec<T>{};
    for (int64_t i = 0; i < shape.rows; ++i) {
      const Vec<T> row = load_upto(block + i * shape.columns + j, n);
      total = largest ? select((total > row) | (total != total), total, row) : total + row;
    }
    for (int64_t k = 0; k < n && k < lanes<T>; ++k) out[element_at(to, head, j + k)] = total[k];
  }
}

// [rows, inner] @ [inner, columns].
template <class T>
static void multiply(T* out, const T* left, const T* right, int64_t rows, int64_t inner, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; j += lanes<T>) {
      const int64_t n = columns - j;
      Vec<T> total = {};
      for (int64_t k = 0; k < inner; ++k) total += left[i * inner + k] * load_upto(right + k * columns + j, n);
      store_upto(out + i * columns + j, total, n);
    }
  }
}

// `second`: the right operand of a product. `shape`: of the matrix that the operator takes or makes; of a product's left
// operand, or of what is transposed. `times`: by how many places elements move.
template <class T>
static void matrix_operation(RowOperator op, T* out, const RowLayout& to, const T* in, const RowLayout& from,
                             const T* second, const BlockShape& shape, int64_t times) {
  for (int64_t h = 0; h < shape.heads; ++h) {
    const T* block = in + h * shape.elements();
    T* made = out + h * shape.elements();
    switch (op) {
      case RowOperator::by_row:
        for (int64_t i = 0; i < shape.rows; ++i)
          fill(made + i * shape.columns, in[element_at(from, h, i)], shape.columns);
        break;
      case RowOperator::by_column: by_column(made, in, from, h, shape); break;
      case RowOperator::row_sums:
      case RowOperator::row_maxima: of_rows(op, out, to, block, h, shape); break;
      case RowOperator::column_sums:
      case RowOperator::column_maxima: of_columns(op, out, to, block, h, shape); break;
      case RowOperator::transpose:
        for (int64_t i = 0; i < shape.rows; ++i) {
          for (int64_t j = 0; j < shape.columns; ++j) made[j * shape.rows + i] = block[i * shape.columns + j];
        }
        break;
      case RowOperator::matmul: {
        const int64_t columns = to.head_width() / shape.rows;
        multiply(out + h * shape.rows * columns, block, second + h * shape.columns * columns, shape.rows, shape.columns,
                 columns);
        break;
      }
      case RowOperator::on_diagonal:
        __builtin_memset(made, 0, size_t(shape.elements()) * sizeof(T));
        for (int64_t i = 0; i < shape.rows; ++i) made[i * (shape.columns + 1)] = in[element_at(from, h, i)];
        break;
      case RowOperator::diagonal:
        for (int64_t i = 0; i < shape.rows; ++i) out[element_at(to, h, i)] = block[i * (shape.columns + 1)];
        break;
      case RowOperator::cumsum:
      case RowOperator::cumsum_reversed:
      case RowOperator::roll:
      case RowOperator::shift: {
        const RowLayout row = {1, 1, shape.columns};
        for (int64_t i = 0; i < shape.elements(); i += shape.columns)
          row_operation(op, made + i, row, block + i, row, static_cast<const T*>(nullptr), int64_t(0), times);
        break;
      }
      default: return;
    }
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
