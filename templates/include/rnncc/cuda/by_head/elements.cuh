// The elements of a head's matrix: functions of them, and what they add up to.
#pragma once

#include "memory.cuh"

namespace rnncc {

// Combines a thread's numbers with those of the other threads whose numbers in the warp differ in the bits from FROM to
// below TO.
template <int FROM, int TO>
RNNCC_DEVICE float combine_lanes(RowOperator op, float value) {
#pragma unroll
  for (int offset = FROM; offset < TO; offset *= 2)
    value = combine(op, value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

template <class F, int k, class R>
RNNCC_DEVICE void put_row_sums(const R& run, int entry, int row, bool exists, const float* sums) {
  if constexpr (k < F::row_sums) {
    constexpr RowOperator op = F::rows_largest[k] ? RowOperator::max : RowOperator::sum;
    const float total = combine_lanes<1, R::Shape::LANES>(op, sums[k]);
    if (exists && threadIdx.x % R::Shape::LANES == 0) store<F::row_slots[k]>(run, entry, row, total);
    put_row_sums<F, k + 1>(run, entry, row, exists, sums);
  }
}

// Leaves what a warp's rows add up to in each column, in [column_sums, WARPS, columns] of `scratch`.
template <class F, int k, class R>
RNNCC_DEVICE void put_partial_columns(int columns, int column, const float* sums, float* scratch) {
  if constexpr (k < F::column_sums) {
    constexpr RowOperator op = F::columns_largest[k] ? RowOperator::max : RowOperator::sum;
    const float total = combine_lanes<R::Shape::LANES, 32>(op, sums[k]);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 < R::Shape::LANES && column < columns) scratch[(k * WARPS + warp) * columns + column] = total;
    put_partial_columns<F, k + 1, R>(columns, column, sums, scratch);
  }
}
template <class F, int k, class R>
RNNCC_DEVICE void put_columns(const R& run, int entry, int columns, const float* scratch) {
  if constexpr (k < F::column_sums) {
    constexpr RowOperator op = F::columns_largest[k] ? RowOperator::max : RowOperator::sum;
    for (int column = threadIdx.x; column < columns; column += THREADS) {
      const float* const from = scratch + k * WARPS * columns + column;
      float total = from[0];
#pragma unroll
      for (int warp = 1; warp < WARPS; ++warp) total = combine(op, total, from[warp * columns]);
      store<F::column_slots[k]>(run, entry, column, total);
    }
    put_columns<F, k + 1>(run, entry, columns, scratch);
  }
}

// A function of the elements of a matrix. `scratch`: what column sums need.
template <int stage, class F, class R>
RNNCC_DEVICE void head_elements(const R& run, HeldMatrices<typename R::Program, typename R::Shape>& held, int entry,
                                float* scratch) {
  using Shape = typename R::Shape;
  constexpr StageInfo info = R::Program::tables.stages[stage];
  const int rows = run.plan.dims[info.matrix_rows], columns = run.plan.dims[info.matrix_columns];
  typename F::Sums of_row[Shape::ROWS], of_column[Shape::COLUMNS];
#pragma unroll
  for (int c = 0; c < Shape::COLUMNS; ++c) of_column[c] = F::nothing();
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    of_row[r] = F::nothing();
#pragma unroll
    for (int c = 0; c < Shape::COLUMNS; ++c) {
      const bool exists = Shape::row(r) < rows && Shape::column(c) < columns;
      const int i = ::min(Shape::row(r), rows - 1), j = ::min(Shape::column(c), columns - 1);
      typename F::Sums sums = of_row[r];
#pragma unroll
      for (int k = 0; k < F::column_sums; ++k) sums.columns[k] = of_column[c].columns[k];
      F::template element<true>(HeadElement<R>{run, run.plan, held, r, c, exists}, Place{entry, 0, i, j, rows, columns},
                                sums);
#pragma unroll
      for (int k = 0; k < F::row_sums; ++k) of_row[r].rows[k] = exists ? sums.rows[k] : of_row[r].rows[k];
#pragma unroll
      for (int k = 0; k < F::column_sums; ++k)
        of_column[c].columns[k] = exists ? sums.columns[k] : of_column[c].columns[k];
    }
  }
  // After all elements: vectors that elements read may then stay in registers from row to row.
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const int i = Shape::row(r);
    put_row_sums<F, 0>(run, entry, i, i < rows, of_row[r].rows);
  }
  if constexpr (F::column_sums > 0) {
#pragma unroll
    for (int c = 0; c < Shape::COLUMNS; ++c)
      put_partial_columns<F, 0, R>(columns, Shape::column(c), of_column[c].columns, scratch);
    __syncthreads();
    put_columns<F, 0>(run, entry, columns, scratch);
  }
}

// The sum, the mean or the largest of all elements of a matrix that threads hold.
template <int target, int source, RowOperator op, int stage, class R>
RNNCC_DEVICE void reduce_held(const R& run, const HeldMatrices<typename R::Program, typename R::Shape>& held, int entry,
                              int rows, int columns, float* scratch) {
  using P = typename R::Program;
  using Shape = typename R::Shape;
  float total = op == RowOperator::max ? -infinity<float>() : 0.0f;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int c = 0; c < Shape::COLUMNS; ++c)
      if (Shape::row(r) < rows && Shape::column(c) < columns)
        total = combine(op, total, held.of[held_before<P, typename R::Shape>(source)][r][c]);
  total = reduce_threads(op, total, scratch);
  if (op == RowOperator::mean) total /= float(rows * columns);
  if (threadIdx.x == 0) store<target>(run, entry, 0, total);
}

// The rows and columns of a program's matrices, which all have the same.
template <class P>
constexpr StageInfo stage_of_elements() {
  for (int s = 0; s < P::tables.stage_count; ++s)
    if (P::tables.stages[s].row == RowOperator::elements) return P::tables.stages[s];
  return {};
}

}  // namespace rnncc
