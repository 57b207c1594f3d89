"""Functions of matrices that change, along their rows or columns, as expressions of elements."""

from __future__ import annotations

import math
from typing import Protocol

from rnncc.ir.dim import HEADS, ZERO, Dim, Grid
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.term import Filled, Num, OfMatrix, Row, Term
from rnncc.ir.typed import Shape
from rnncc.language.diagnostics import InternalError
from rnncc.stages.partition.nodes import Nodes

_REDUCTIONS = {
    ("sum", "rows"): RowOperator.ROW_SUMS,
    ("sum", "columns"): RowOperator.COLUMN_SUMS,
    ("sum", ""): RowOperator.SUM,
    ("max", "rows"): RowOperator.ROW_MAXIMA,
    ("max", "columns"): RowOperator.COLUMN_MAXIMA,
    ("max", ""): RowOperator.MAX,
}
_LEAST_LENGTH = Const(1e-12)


class Maker(Protocol):
    """What makes the nodes of matrices: `Grids`."""

    nodes: Nodes

    def expression(self, term: Term) -> Expr:
        """Turn a term into an expression of elements."""

    def name_of(self, expr: Expr, grid: Grid) -> str:
        """The name of a matrix."""

    def row(
        self,
        operator: RowOperator,
        operands: tuple[str, ...],
        grid: Grid | None,
        shape: Shape,
        offset: Dim = ZERO,
    ) -> Ref:
        """The value of an operator."""

    def turned(self, expr: Expr, grid: Grid) -> Ref:
        """The transpose of a matrix."""


class Along:
    """Makes these expressions. A matrix is an expression and a shape; an axis is `rows`, `columns`, or nothing where a
    function takes a whole block."""

    def __init__(self, grids: Maker) -> None:
        self.grids, self.nodes = grids, grids.nodes

    def matrix(self, term: OfMatrix, expr: Expr, grid: Grid) -> Expr:
        """A function that leaves a matrix."""
        match term.function, term.axis:
            case "softmax", axis:
                whole = Ref(self.grids.name_of(expr, grid))
                largest = self.reduced("max", whole, grid, axis)
                moved = self.wide(apply("detach", largest), grid, axis)
                powers = Ref(self.grids.name_of(apply("exp", apply("sub", whole, moved)), grid))
                return apply("div", powers, self.wide(self.reduced("sum", powers, grid, axis), grid, axis))
            case "normalize", axis:
                squares = self.reduced("sum", apply("mul", expr, expr), grid, axis)
                return apply("div", expr, self.wide(apply("max", self.root(squares), _LEAST_LENGTH), grid, axis))
            case "cumsum" | "roll", "rows":
                return self.moved(term, expr, grid)
            case "cumsum" | "roll", "columns":
                turned = self.moved(term, self.grids.turned(expr, grid), grid.transposed)
                return self.filled(term, self.grids.turned(turned, grid.transposed), grid)
            case function, _:
                raise InternalError(f"the function {function} of a matrix")

    def moved(self, term: OfMatrix, expr: Expr, grid: Grid) -> Expr:
        """`cumsum` or `roll` within each row; zeros come in where there is a fill."""
        name, shape = self.grids.name_of(expr, grid), Shape(grid.width, grid=grid)
        if term.function == "cumsum":
            return self.grids.row(RowOperator.CUMSUM, (name,), grid, shape)
        if not term.places.terms:
            return Ref(name)
        operator = RowOperator.SHIFT if term.fill else RowOperator.ROLL
        made = self.grids.row(operator, (name,), grid, shape, term.places)
        return self.filled(term, made, grid) if term.axis == "rows" else made

    def filled(self, term: OfMatrix, expr: Expr, grid: Grid) -> Expr:
        """The matrix, with the fill in place of the zeros that came in."""
        if not term.fill or not term.places.terms or term.fill == (Num(0.0),):
            return expr
        # Zeros that come into a vector of ones are in the same places.
        side = grid.columns if term.axis == "rows" else grid.rows
        ones = Row("roll", (Filled("ones", side), Num(0.0)), places=term.places)
        across = RowOperator.BY_COLUMN if term.axis == "rows" else RowOperator.BY_ROW
        inside = self.spread(across, self.grids.expression(ones), grid)
        return apply("where", inside, expr, self.grids.expression(term.fill[0]))

    def reduction(self, function: str, expr: Expr, grid: Grid, axis: str) -> Expr:
        """A function that leaves one number for each row, column or block."""
        match function:
            case "mean":
                ones = Ref(self.nodes.constant(1.0, Shape(grid.width, grid=grid)))
                return apply("div", self.reduced("sum", expr, grid, axis), self.reduced("sum", ones, grid, axis))
            case "min":
                return apply("neg", self.reduced("max", apply("neg", expr), grid, axis))
            case "norm":
                return self.root(self.reduced("sum", apply("mul", expr, expr), grid, axis))
            case "logsumexp":
                return self.logsumexp(expr, grid, axis)
            case _:
                return self.reduced(function, expr, grid, axis)

    def logsumexp(self, expr: Expr, grid: Grid, axis: str) -> Expr:
        """The logarithm of the sum of the exponentials. The largest is taken out, so that none overflows; it is not
        where it is infinite, because infinity minus infinity is no number."""
        whole = Ref(self.grids.name_of(expr, grid))
        largest = self.reduced("max", whole, grid, axis)
        is_finite = apply("lt", apply("abs", largest), Const(math.inf))
        moved = Ref(self.nodes.named(apply("where", is_finite, apply("detach", largest), Const(0.0))))
        powers = apply("exp", apply("sub", whole, self.wide(moved, grid, axis)))
        return apply("add", apply("log", self.reduced("sum", powers, grid, axis)), moved)

    def reduced(self, function: str, expr: Expr, grid: Grid, axis: str) -> Ref:
        """The sum, or the largest element, of each row, column or block."""
        sides = {"rows": grid.rows, "columns": grid.columns, "": HEADS}
        name = self.grids.name_of(expr, grid)
        return self.grids.row(_REDUCTIONS[function, axis], (name,), grid if axis else None, Shape(sides[axis]))

    def wide(self, vector: Expr, grid: Grid, axis: str) -> Expr:
        """What each row, column or block has one number of, as it meets the elements."""
        if not axis:
            return vector
        return self.spread(RowOperator.BY_ROW if axis == "rows" else RowOperator.BY_COLUMN, vector, grid)

    def spread(self, operator: RowOperator, vector: Expr, grid: Grid) -> Ref:
        """A vector along rows or columns."""
        return self.grids.row(operator, (self.nodes.named(vector),), grid, Shape(grid.width, grid=grid))

    def root(self, squares: Expr) -> Expr:
        """The root of a sum of squares, with the derivative 0 at 0."""
        value = Ref(self.nodes.named(squares))
        positive = apply("gt", value, Const(0.0))
        root = apply("sqrt", apply("where", positive, value, Const(1.0)))
        return apply("where", positive, root, Const(0.0))
