// Operators of matrices that change with the step (rnncc/ir/cell.py, RowOperator). One CTA works on one batch entry.
#pragma once

#include "stages.cuh"

namespace rnncc {

constexpr bool is_of_matrices(RowOperator op) { return op >= RowOperator::by_row; }

// An element of a vector that meets row (or column) `i` of a head's block: one number per head, or for all heads, fills
// the block.
RNNCC_DEVICE int64_t element_at(const RowLayout& vector, int64_t head, int64_t i) {
  if (vector.heads == 1 && vector.units() == 1) return 0;
  return vector.units() == 1 ? head : vector.at(head, i);
}

// Element (i, j) of a head's block of the matrix that the operator makes. `rows`, `columns`: of the blocks that it takes
// or makes; of a product's left operand, or of what is transposed.
template <RowOperator op, int source, int second, class R>
RNNCC_DEVICE float element_of(const R& run, const RowLayout& from, int entry, int64_t head, int64_t at, int64_t rows,
                              int64_t columns, int64_t made_columns) {
  const int64_t i = at / made_columns, j = at % made_columns, block = head * rows * columns;
  if constexpr (op == RowOperator::by_row) return load<source>(run, entry, element_at(from, head, i));
  if constexpr (op == RowOperator::by_column) return load<source>(run, entry, element_at(from, head, j));
  if constexpr (op == RowOperator::transpose) return load<source>(run, entry, block + j * columns + i);
  if constexpr (op == RowOperator::on_diagonal)
    return i == j ? load<source>(run, entry, element_at(from, head, i)) : 0.0f;
  float total = 0.0f;
  if constexpr (op == RowOperator::matmul) {
    const int64_t right = head * columns * made_columns;
    for (int64_t k = 0; k < columns; ++k)
      total +=
          load<source>(run, entry, block + i * columns + k) * load<second>(run, entry, right + k * made_columns + j);
  }
  return total;
}

// The number that the operator leaves for row (or column) `i` of a head's block.
template <RowOperator op, int source, class R>
RNNCC_DEVICE float reduced_of(const R& run, int entry, int64_t head, int64_t i, int64_t rows, int64_t columns) {
  constexpr bool by_row = op == RowOperator::row_sums || op == RowOperator::row_maxima;
  constexpr bool largest = op == RowOperator::row_maxima || op == RowOperator::column_maxima;
  const int64_t block = head * rows * columns;
  if constexpr (op == RowOperator::diagonal) return load<source>(run, entry, block + i * (columns + 1));
  const int64_t count = by_row ? columns : rows, step = by_row ? 1 : columns,
                first = block + (by_row ? i * columns : i);
  float total = largest ? -__int_as_float(0x7f800000) : 0.0f;
  for (int64_t k = 0; k < count; ++k)
    total = combine(largest ? RowOperator::max : RowOperator::sum, total, load<source>(run, entry, first + k * step));
  return total;
}

template <int stage, class R>
RNNCC_DEVICE void matrix_operation(const R& run, int entry) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  constexpr int target = R::Program::tables.stage_slots[info.first_stored],
                source = R::Program::tables.stage_slots[info.first_operand],
                second = R::Program::tables.stage_slots[info.first_operand + info.operands - 1];
  constexpr RowOperator op = info.row;
  constexpr bool makes_vector = op == RowOperator::row_sums || op == RowOperator::column_sums ||
                                op == RowOperator::row_maxima || op == RowOperator::column_maxima ||
                                op == RowOperator::diagonal;
  const RowLayout to = layout_of<target>(run), from = layout_of<source>(run);
  const int64_t heads = run.plan.heads, rows = run.plan.dims[info.matrix_rows] / heads,
                columns = run.plan.dims[info.matrix_columns] / heads;
  if constexpr (makes_vector) {
    constexpr bool by_column = op == RowOperator::column_sums || op == RowOperator::column_maxima;
    const int64_t count = by_column ? columns : rows;
    for (int64_t u = threadIdx.x; u < heads * count; u += THREADS) {
      const int64_t head = u / count, i = u % count;
      store<target>(run, entry, element_at(to, head, i), reduced_of<op, source>(run, entry, head, i, rows, columns));
    }
  } else {
    const int64_t made_rows = op == RowOperator::transpose ? columns : rows, of_head = to.width() / heads,
                  made_columns = of_head / made_rows;
    for (int64_t u = threadIdx.x; u < to.width(); u += THREADS) {
      const int64_t head = u / of_head;
      const float value =
          element_of<op, source, second>(run, from, entry, head, u % of_head, rows, columns, made_columns);
      store<target>(run, entry, u, value);
    }
  }
}

// Puts what each line of a head's block adds up to: one warp has a line, the lanes have its elements.
template <class F, int k, class R>
RNNCC_DEVICE void put_sums(const R& run, int entry, int64_t at, const typename F::Sums& sums, bool writes) {
  if constexpr (k < F::row_sums) {
    float total = sums.rows[k];
    constexpr RowOperator op = F::rows_largest[k] ? RowOperator::max : RowOperator::sum;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      total = combine(op, total, __shfl_xor_sync(0xffffffffu, total, offset));
    if (writes) store<F::row_slots[k]>(run, entry, at, total);
    put_sums<F, k + 1>(run, entry, at, sums, writes);
  }
}

template <class F, int k, class R>
RNNCC_DEVICE void put_column(const R& run, int entry, int64_t at, const typename F::Sums& sums) {
  if constexpr (k < F::column_sums) {
    store<F::column_slots[k]>(run, entry, at, sums.columns[k]);
    put_column<F, k + 1>(run, entry, at, sums);
  }
}

// A function of the elements of a matrix: `F` is its struct. Warps take rows. Where columns add up to something, threads
// then take columns, and compute what they add up once more.
template <int stage, class F, class R>
RNNCC_DEVICE void elements_stage(const R& run, int entry) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  const int64_t heads = run.plan.heads, rows = run.plan.dims[info.matrix_rows] / heads,
                columns = run.plan.dims[info.matrix_columns] / heads;
  const int lane = threadIdx.x % 32;
  for (int64_t line = threadIdx.x / 32; line < heads * rows; line += WARPS) {
    typename F::Sums sums = F::nothing();
    const Place at = {entry, line / rows, line % rows, 0, rows, columns};
    for (int64_t j = lane; j < columns; j += 32) F::template element<true>(run, at.column(j), sums);
    put_sums<F, 0>(run, entry, line, sums, lane == 0);
  }
  if constexpr (F::column_sums > 0) {
    for (int64_t line = threadIdx.x; line < heads * columns; line += THREADS) {
      typename F::Sums sums = F::nothing();
      for (int64_t i = 0; i < rows; ++i)
        F::template element<false>(run, {entry, line / columns, i, line % columns, rows, columns}, sums);
      put_column<F, 0>(run, entry, line, sums);
    }
  }
}

template <int stage, class R>
RNNCC_DEVICE void row_or_elements(const R& run, int entry, float* scratch) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  if constexpr (info.row == RowOperator::elements) {
    elements_stage<stage, stage_of<typename R::Program, stage>>(run, entry);
  } else if constexpr (is_of_matrices(info.row)) {
    matrix_operation<stage>(run, entry);
  } else {
    row_operation<stage>(run, entry, scratch);
  }
}

}  // namespace rnncc
