"""What works across the units of one row of a value."""

from __future__ import annotations

from enum import Enum


class RowOperator(Enum):
    """What works across the units of one row. Reductions and running sums are over one head's (k, D)."""

    SUM = "sum"  # [k, N, D] -> [1, N, 1]
    MEAN = "mean"  # the same
    SPREAD = "spread"  # [1, N, 1] -> [k, N, D], each element / (k*D): the adjoint of mean
    MAX = "max"  # the same as sum; the largest elements share its gradient (torch.amax)
    SQUARES = "squares"  # of v and mean(v): the sum of (v - mean)², without cancellation; widths as of sum
    VARIANCE = "variance"  # of v and mean(v): the mean of these squares
    LAYERNORM = "layernorm"  # (v - mean) / sqrt(variance + epsilon)
    RMSNORM = "rmsnorm"  # v / sqrt(mean(v²) + the dtype's epsilon)
    SOFTMAX = "softmax"
    CUMSUM = "cumsum"
    CUMSUM_REVERSED = "cumsum_reversed"  # sum of the elements from here to the end: the adjoint of cumsum
    SLICE = "slice"  # units `offset` to `offset + width of the target` along the packed axis k
    CONCAT = "concat"  # along k
    REPEAT = "repeat"  # each unit `times` times in a row (repeat_interleave)
    SEGMENT_SUM = "segment_sum"  # sums of `times` neighbours: the adjoint of repeat
    PAD = "pad"  # zeros but for the operand at `offset`: the adjoint of slice
    ROLL = "roll"  # each head's units moved by `offset` places; what leaves comes in at the other end
    SHIFT = "shift"  # the same, but zeros come in
    ARANGE = "arange"  # of a value of any numbers: 0, 1, … in each head; of width num_heads, the number of the head
    PER_HEAD = "per_head"  # [g*D] without heads -> [k, N, D/k]: head n is a copy of group n // (N/g)
    # On matrices that change with the step, block by block: RowOp.grid is the shape of the matrix.
    BY_ROW = "by_row"  # a vector as a matrix: each element fills its row
    BY_COLUMN = "by_column"  # each fills its column
    ROW_SUMS = "row_sums"  # a matrix as a vector: the sum of each row; the adjoint of by_row
    COLUMN_SUMS = "column_sums"
    ROW_MAXIMA = "row_maxima"  # the largest element of each row; those that tie share its gradient
    COLUMN_MAXIMA = "column_maxima"
    TRANSPOSE = "transpose"  # `grid` is that of the operand
    MATMUL = "matmul"  # of two matrices; `grid` is that of the first
    ON_DIAGONAL = "on_diagonal"  # a vector on the diagonal of a square matrix, zeros beside it
    DIAGONAL = "diagonal"  # the diagonal of a square matrix: the adjoint of on_diagonal


# What makes matrices that change.
MATRICES = frozenset(
    (
        RowOperator.BY_ROW,
        RowOperator.BY_COLUMN,
        RowOperator.TRANSPOSE,
        RowOperator.MATMUL,
        RowOperator.ON_DIAGONAL,
    )
)


# Where RowOp.grid is the shape of a matrix that changes, these work within each of its rows.
WITHIN_ROWS = frozenset((RowOperator.CUMSUM, RowOperator.CUMSUM_REVERSED, RowOperator.ROLL, RowOperator.SHIFT))


# What loops do not have.
BATCHED_ONLY = frozenset({RowOperator.ARANGE})
