"""The reverse of operators of matrices that change."""

from __future__ import annotations

from collections.abc import Container

from rnncc.ir.cell import RowOp
from rnncc.ir.dim import Dim, Grid, scale
from rnncc.ir.expr import Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.stages.differentiate.cotangents import Cotangents

# Each operator of matrices with one operand, and that of its reverse.
_REVERSE = {
    RowOperator.BY_ROW: RowOperator.ROW_SUMS,
    RowOperator.BY_COLUMN: RowOperator.COLUMN_SUMS,
    RowOperator.ROW_SUMS: RowOperator.BY_ROW,
    RowOperator.COLUMN_SUMS: RowOperator.BY_COLUMN,
    RowOperator.TRANSPOSE: RowOperator.TRANSPOSE,
    RowOperator.ON_DIAGONAL: RowOperator.DIAGONAL,
    RowOperator.DIAGONAL: RowOperator.ON_DIAGONAL,
    RowOperator.CUMSUM: RowOperator.CUMSUM_REVERSED,
    RowOperator.CUMSUM_REVERSED: RowOperator.CUMSUM,
    RowOperator.ROLL: RowOperator.ROLL,
    RowOperator.SHIFT: RowOperator.SHIFT,
}


def reverse_of_matrices(made: Cotangents, node: RowOp, grid: Grid, d: str, differentiable: Container[str]) -> None:
    """The reverse of an operator of matrices that change. `differentiable`: the values that a gradient may reach."""
    target, span, operator = node.target, node.span, node.operator
    first = node.operands[0]
    if operator is RowOperator.MATMUL:
        _reverse_matmul(made, node, grid, d, differentiable)
        return
    if operator in (RowOperator.ROW_MAXIMA, RowOperator.COLUMN_MAXIMA):
        made.give(first, _share_along(made, node, grid, d), grid.width, span)
        return
    of = grid.transposed if operator is RowOperator.TRANSPOSE else grid
    back = scale(node.offset, -1)  # what a roll moves
    row = RowOp(f"d_{first}__from_{target}", _REVERSE[operator], (d,), back, node.times, span=span, grid=of)
    width = made.values[first].width
    made.give(first, Ref(made.row(width, row)), width, span)


def _reverse_matmul(made: Cotangents, node: RowOp, grid: Grid, d: str, differentiable: Container[str]) -> None:
    """Where the node is `left @ right`, left gets d @ T(right), and right gets T(left) @ d."""
    (left, right), span = node.operands, node.span
    columns = made.columns_of(right)
    result, other = Grid(grid.rows, columns), Grid(grid.columns, columns)

    def transposed(name: str, of: Grid) -> str:
        row = RowOp(f"{name}__transposed", RowOperator.TRANSPOSE, (name,), span=span, grid=of)
        return made.row(of.width, row)

    for name, factors, of in (
        (left, (d, transposed(right, other)) if left in differentiable else (), result),
        (right, (transposed(left, grid), d) if right in differentiable else (), grid.transposed),
    ):
        if factors:
            wish = f"d_{name}__from_{node.target}"
            width = made.values[name].width
            product = made.row(width, RowOp(wish, RowOperator.MATMUL, factors, span=span, grid=of))
            made.give(name, Ref(product), width, span)


def _share_along(made: Cotangents, node: RowOp, grid: Grid, d: str) -> Expr:
    """What each element gets of the cotangent of its row's, or column's, maximum: see `_share_of_largest`."""
    (name,) = node.operands
    along = node.operator is RowOperator.ROW_MAXIMA
    spread = RowOperator.BY_ROW if along else RowOperator.BY_COLUMN
    sums = RowOperator.ROW_SUMS if along else RowOperator.COLUMN_SUMS
    side, span = made.values[node.target].width, node.span

    def row(wish: str, operator: RowOperator, operand: str, width: Dim) -> Ref:
        return Ref(made.row(width, RowOp(wish, operator, (operand,), span=span, grid=grid)))

    again = row(f"{node.target}__again", node.operator, name, side)
    wide = row(f"{node.target}__wide", spread, again.name, grid.width)
    is_largest = made.pointwise(f"d_{name}__is_largest", grid.width, apply("eq", Ref(name), wide), span)
    count = row(f"d_{name}__count", sums, is_largest, side)
    share = made.pointwise(f"d_{name}__share", side, apply("div", Ref(d), count), span)
    return apply("mul", Ref(is_largest), row(f"d_{name}__shares", spread, share, grid.width))
