"""Terms of matrices that change with the step, as expressions of their elements.

Nothing is multiplied out that need not be: a product with `diag(v)` scales, one with `u@T(v)` is two products with
vectors, and `@` is associative, so that `S@(eye(K) - k@T(k))` is `S - (S@k)@T(k)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, assert_never

from rnncc.ir.cell import RowOp
from rnncc.ir.dim import ONE, ZERO, Dim, Grid
from rnncc.ir.expr import Apply, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.term import (
    Argument,
    Bad,
    Eye,
    Filled,
    Num,
    OfMatrix,
    Op,
    PerHead,
    Product,
    Row,
    Share,
    Surrogate,
    Term,
    Transposed,
    Unflatten,
    Val,
)
from rnncc.ir.typed import Shape
from rnncc.language.diagnostics import InternalError
from rnncc.language.functions import REDUCTIONS
from rnncc.language.source import Span
from rnncc.stages.partition.along import Along
from rnncc.stages.partition.nodes import Nodes


class Terms(Protocol):
    """What `flatten` makes of terms."""

    nodes: Nodes

    def expression(self, term: Term) -> Expr:
        """Turn a vector into an expression of its units."""

    def operand(self, term: Term) -> str:
        """The name of a vector."""

    def matrix(self, term: Term) -> str:
        """The name of a matrix of parameters."""

    def matrix_shape(self, term: Term) -> Shape:
        """Return the shape of a matrix of parameters, and a number's for any other term."""

    def diagonal(self, term: Term) -> Term | None:
        """The vector on the diagonal of a diagonal matrix."""

    def shape_of(self, name: str) -> Shape:
        """Return the shape of a named value."""

    def of_parameters(self, term: Term) -> bool:
        """Whether parameters and numbers alone make it."""

    def surrogate(self, term: Surrogate, operand: Expr, shape: Shape) -> Apply:
        """A step function with a derivative of its own."""


class Grids:
    """Makes expressions of matrices that change, and nodes for what they need."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.nodes = terms, terms.nodes
        self.rows: dict[RowOp, str] = {}  # without their targets
        self.along = Along(self)

    # What a term is.

    def is_grid(self, term: Term) -> bool:
        """Whether a term is a matrix that changes with the step."""
        match term:
            case Val(name):
                return self.terms.shape_of(name).grid is not None
            case Op(_, arguments):
                # A matrix of parameters that meets a number which changes does so too.
                return any(map(self.is_grid, arguments)) or (
                    self.terms.matrix_shape(term).is_matrix and not self.terms.of_parameters(term)
                )
            case Product(matrix, operand):
                outer = isinstance(operand, Transposed) and not self.is_matrix(operand.matrix)
                return outer or (self.is_matrix(operand) and (self.is_grid(matrix) or self.is_grid(operand)))
            case OfMatrix("diag", vector):
                return not (self.is_matrix(vector) or self.terms.of_parameters(vector))
            case OfMatrix(_, operand, axis):
                return bool(axis) and self.is_grid(operand) and not self.is_reduction(term)
            case Surrogate(_, operand) | Transposed(operand):
                return self.is_grid(operand)
            case Unflatten():
                return True
            case Num() | Argument() | Row() | Share() | Eye() | Filled() | PerHead() | Bad():
                return False
            case _:
                assert_never(term)

    def is_matrix(self, term: Term) -> bool:
        """Whether a term is a matrix of any kind."""
        return self.is_grid(term) or self.terms.matrix_shape(term).is_matrix

    def is_reduction(self, term: Term) -> bool:
        """Whether a term has one number for each row or column of a matrix."""
        return isinstance(term, OfMatrix) and term.axis != "" and term.function in REDUCTIONS

    def grid(self, term: Term) -> Grid:
        """The shape of a matrix."""
        match term:
            case Val(name) if found := self.terms.shape_of(name).grid:
                return found
            case Op(_, arguments):
                return self.grid(next(filter(self.is_matrix, arguments)))
            case Product(matrix, Transposed(vector)) if not self.is_matrix(vector):
                return Grid(self.width(matrix), self.width(vector))
            case Product(matrix, operand):
                return Grid(self.grid(matrix).rows, self.grid(operand).columns)
            case Transposed(matrix):
                return self.grid(matrix).transposed
            case OfMatrix("diag", vector):
                return Grid(self.width(vector), self.width(vector))
            case OfMatrix(_, operand) | Surrogate(_, operand):
                return self.grid(operand)
            case Unflatten(_, rows, columns):
                return Grid(rows, columns)
            case _:
                shape = self.terms.matrix_shape(term)
                return Grid(shape.width, shape.columns or ONE)

    def width(self, vector: Term) -> Dim:
        return self.terms.shape_of(self.terms.operand(vector)).width

    # Nodes.

    def named(self, term: Term) -> str:
        """The name of a matrix."""
        return self.name_of(self.expression(term), self.grid(term))

    def name_of(self, expr: Expr, grid: Grid) -> str:
        return self.nodes.named(expr, Shape(grid.width, grid=grid))

    def row(
        self,
        operator: RowOperator,
        operands: tuple[str, ...],
        grid: Grid | None,
        shape: Shape,
        offset: Dim = ZERO,
    ) -> Ref:
        """The value of an operator; equal ones are one."""
        node = RowOp("", operator, operands, offset, grid=grid, span=self.nodes.span)
        if node not in self.rows:
            target = self.nodes.name(f"{operands[0].rpartition('__')[2]}_{operator.value}" if grid else "")
            self.rows[node] = self.nodes.temporary(replace(node, target=target), shape)
        return Ref(self.rows[node])

    def by(self, operator: RowOperator, vector: Term, grid: Grid) -> Expr:
        """A vector as a matrix, along rows or columns. A number is the same in all of it."""
        expr = self.terms.expression(vector)
        name = self.nodes.named(expr)
        return self.row(operator, (name,), grid, Shape(grid.width, grid=grid))

    def entries(self, term: Term) -> Expr:
        """A matrix of parameters, laid out as those that change are."""
        if isinstance(term, Eye):
            return self.on_diagonal(self.nodes.constant(1.0, Shape(term.dim)), Grid(term.dim, term.dim))
        grid = self.grid(term)
        return Ref(self.name_of(apply("entries", Ref(self.terms.matrix(term))), grid))

    def on_diagonal(self, vector: str, grid: Grid) -> Expr:
        return self.row(RowOperator.ON_DIAGONAL, (vector,), grid, Shape(grid.width, grid=grid))

    # Matrices.

    def expression(self, term: Term) -> Expr:
        """A matrix, or a number that meets one, as an expression of elements."""
        if not self.is_matrix(term):
            return self.terms.expression(term)
        match term:
            case Op(operator, arguments):
                # Also of parameters: `eye(K)` has no other matrix beside it then.
                return Apply(operator, tuple(map(self.expression, arguments)))
            case _ if not self.is_grid(term):
                return self.entries(term)
            case Val():
                return self.terms.expression(term)
            case Surrogate(_, operand):
                grid = self.grid(operand)
                return self.terms.surrogate(term, self.expression(operand), Shape(grid.width, grid=grid))
            case Product(left, Transposed(vector)) if not self.is_matrix(vector):
                return self.outer(left, vector)
            case Product(left, right):
                return self.product(left, right)
            case Transposed(matrix):
                return self.transposed(matrix)
            case OfMatrix("diag", vector):
                return self.on_diagonal(self.terms.operand(vector), self.grid(term))
            case OfMatrix(_, operand):
                return self.along.matrix(term, self.expression(operand), self.grid(operand))
            case Unflatten(vector):
                # By a name: products of the step go into a pass over a vector's units, not over elements.
                return Ref(self.terms.operand(vector))
            case _:
                raise InternalError(f"a {type(term).__name__} is no matrix that changes")

    def outer(self, left: Term, right: Term) -> Expr:
        grid = Grid(self.width(left), self.width(right))
        return apply("mul", self.by(RowOperator.BY_ROW, left, grid), self.by(RowOperator.BY_COLUMN, right, grid))

    def product(self, left: Term, right: Term) -> Expr:
        """`left @ right` of two matrices."""
        grid = Grid(self.grid(left).rows, self.grid(right).columns)
        if isinstance(left, Eye):
            return self.expression(right)
        if isinstance(right, Eye):
            return self.expression(left)
        if (vector := self.diagonal(left)) is not None:
            return apply("mul", self.by(RowOperator.BY_ROW, vector, grid), self.expression(right))
        if (vector := self.diagonal(right)) is not None:
            return apply("mul", self.expression(left), self.by(RowOperator.BY_COLUMN, vector, grid))
        match left, right:
            case _, Product(first, Transposed(second)) if not self.is_matrix(second):
                return self.outer(self.vector(left, first), second)
            case Product(first, Transposed(second)), _ if not self.is_matrix(second):
                return self.outer(first, self.vector(_turned(right), second))
            case _, Op() if parts := self.parts(right):
                return self.by_parts(right, parts, lambda part: self.product(left, part))
            case Op(), _ if parts := self.parts(left):
                return self.by_parts(left, parts, lambda part: self.product(part, right))
        operands = (self.name_of(self.expression(each), self.grid(each)) for each in (left, right))
        shape = Shape(grid.width, grid=grid)
        return self.row(RowOperator.MATMUL, tuple(operands), self.grid(left), shape)

    def diagonal(self, term: Term) -> Term | None:
        """The vector on the diagonal of a diagonal matrix."""
        match term:
            case OfMatrix("diag", vector) if not self.is_matrix(vector):
                return vector
            case _:
                return self.terms.diagonal(term)

    def parts(self, term: Op) -> tuple[Term, ...]:
        """The arguments of a sum, or of a multiple, that is multiplied part by part; none where it is multiplied as a
        whole."""
        match term:
            case Op("add" | "sub", arguments) if all(map(self.is_matrix, arguments)):
                return arguments if any(map(self.is_structured, arguments)) else ()
            case Op("neg", arguments):
                return arguments
            case Op("mul", arguments) if sum(map(self.is_matrix, arguments)) == 1:
                return arguments
            case Op("div", arguments) if self.is_matrix(arguments[0]) and not self.is_matrix(arguments[1]):
                return arguments
            case _:
                return ()

    def by_parts(self, term: Op, parts: tuple[Term, ...], multiplied: Callable[[Term], Expr]) -> Expr:
        """A sum or a multiple in which each matrix is multiplied; a number stays as it is."""
        made = (multiplied(part) if self.is_matrix(part) else self.terms.expression(part) for part in parts)
        return Apply(term.operator, tuple(made))

    def vector(self, matrix: Term, vector: Term) -> Val:
        """`matrix @ vector` by a name."""
        return Val(self.nodes.named(self.times_vector(matrix, vector)))

    def is_structured(self, term: Term) -> bool:
        """Whether a matrix is multiplied in fewer steps than its elements take."""
        if isinstance(term, Eye) or self.diagonal(term) is not None:
            return True
        match term:
            case Product(_, Transposed(vector)):
                return not self.is_matrix(vector)
            case Op("add" | "sub" | "neg" | "mul" | "div", arguments):
                return any(self.is_structured(each) for each in arguments if self.is_matrix(each))
            case _:
                return False

    def transposed(self, matrix: Term) -> Expr:
        turned = _turned(matrix)
        if not isinstance(turned, Transposed):
            return self.expression(turned)
        return self.turned(self.expression(matrix), self.grid(matrix))

    def turned(self, expr: Expr, grid: Grid) -> Ref:
        """The transpose of a matrix."""
        shape = Shape(grid.width, grid=grid.transposed)
        return self.row(RowOperator.TRANSPOSE, (self.name_of(expr, grid),), grid, shape)

    # Vectors.

    def times_vector(self, matrix: Term, vector: Term) -> Expr:
        """`matrix @ vector`, as an expression of its units."""
        if isinstance(matrix, Eye):
            return self.terms.expression(vector)
        if (on_diagonal := self.diagonal(matrix)) is not None:
            return apply("mul", self.terms.expression(on_diagonal), self.terms.expression(vector))
        match matrix:
            case Product(first, Transposed(second)) if not self.is_matrix(second):
                return apply("mul", self.terms.expression(first), self.terms.expression(_dot(second, vector)))
            case Product(first, second):
                return self.times_vector(first, self.vector(second, vector))
            case Op() if parts := self.parts(matrix):
                return self.by_parts(matrix, parts, lambda part: self.times_vector(part, vector))
            case Transposed(inner) if isinstance(_turned(inner), Transposed):
                grid = self.grid(inner)
                wide = self.by(RowOperator.BY_ROW, vector, grid)
                return self.along.reduced("sum", apply("mul", self.expression(inner), wide), grid, "columns")
            case Transposed(inner):
                return self.times_vector(_turned(inner), vector)
        grid = self.grid(matrix)
        wide = self.by(RowOperator.BY_COLUMN, vector, grid)
        return self.along.reduced("sum", apply("mul", self.expression(matrix), wide), grid, "rows")

    def reduction(self, function: str, matrix: Term, axis: str = "") -> Expr:
        """`sum(M, axis=rows)` and the like; without an axis one number per head."""
        return self.along.reduction(function, self.expression(matrix), self.grid(matrix), axis)

    def diagonal_of(self, matrix: Term, span: Span) -> Expr:
        """`diag(M)` of a matrix that changes."""
        grid = self.grid(matrix)
        return self.row(RowOperator.DIAGONAL, (self.named(matrix),), grid, Shape(grid.rows))


def _turned(matrix: Term) -> Term:
    """The transpose of a matrix."""
    match matrix:
        case Transposed(inner):
            return inner
        case Eye() | OfMatrix("diag"):
            return matrix
        case Product(left, Transposed(right), span) if not isinstance(left, Transposed):
            return Product(right, Transposed(left, span), span)
        case _:
            return Transposed(matrix, matrix.span)


def _dot(left: Term, right: Term) -> Term:
    """The sum of the products of the units of two vectors, per head."""
    return Row("sum", (Op("mul", (left, right), left.span),), span=left.span)
