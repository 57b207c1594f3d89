"""Matrices: sums, products and transposes of them, and where a matrix stands that must not, or is missing."""

from __future__ import annotations

from collections.abc import Container

from rnncc.ir import dim as dims
from rnncc.ir.dim import ONE
from rnncc.ir.term import Num, Op, Product, Term, Transposed, Val, names
from rnncc.ir.typed import Shape
from rnncc.stages.check.agree import Agreement, Side
from rnncc.stages.check.elsewhere import PAIRS
from rnncc.stages.check.solver import is_unknown


class Matrices:
    """The shapes of operations on matrices. `from_parameters`: the values made of parameters and numbers only."""

    def __init__(self, agreement: Agreement, from_parameters: Container[str]) -> None:
        self.agreement, self.from_parameters = agreement, from_parameters
        self.solver, self.report = agreement.solver, agreement.report

    def arithmetic(self, term: Op, shapes: tuple[Shape, ...]) -> Shape:
        """Arithmetic of whole matrices and numbers, all made of parameters."""
        pairs = tuple(zip(term.arguments, shapes, strict=True))
        first = next(shape for shape in shapes if shape.is_matrix)
        for argument, shape in pairs:
            if not shape.is_matrix and self.solver.resolve(shape.width) == ONE and self.is_parameter(argument):
                continue
            if shape.kind != "matrix":
                culprit = next((a for a, s in pairs if s.is_matrix), argument)
                self.elementwise(term, culprit, argument)
                return self.agreement.unknown()
            rows = self.solver.equal(first.width, shape.width, term.span, self.agreement.why(term.span))
            columns = self.solver.equal(
                first.columns or ONE, shape.columns or ONE, term.span, self.agreement.why(term.span)
            )
            if not (rows and columns):
                message = f"two matrices of different shape: {self.text(first)} and {self.text(shape)}"
                self.report.error("RNN214", message, term.span)
        return first

    def text(self, shape: Shape) -> str:
        width, columns = self.solver.resolve(shape.width), self.solver.resolve(shape.columns or ONE)
        return " x ".join("?" if is_unknown(side) else dims.show(side) for side in (width, columns))

    def is_parameter(self, term: Term) -> bool:
        return all(name in self.from_parameters for name in names(term))

    def elementwise(self, term: Op, matrix: Term, other: Term) -> None:
        name = self.report.text(matrix.span)
        if matrix is other or not isinstance(other, Val):
            help = f"write '{name}@x' for the product of the matrix with a vector"
        else:
            vector = self.report.text(other.span)
            help = f"write '{name}@{vector}' for the product, or declare a vector: 'weights u: vector'"
        if term.operator != "mul" or not isinstance(other, Val):
            help += f"; {PAIRS.what} outside the language"
        message = f"the matrix '{name}' is used element by element"
        self.report.error("RNN211", message, matrix.span, "a matrix", help)

    def product(self, term: Product, left: Shape, right: Shape) -> Shape:
        if left.kind == "unknown":
            return self.agreement.unknown()
        if not left.is_matrix:
            self.not_a_matrix(term, right)
            return self.agreement.unknown()
        if right.kind == "unknown":
            # A vector or a matrix.
            return right
        if right.is_matrix:
            if left.kind == "diag" or right.kind == "diag":
                message = "a diagonal matrix stands only left of '@' and before a vector"
                self.report.error("RNN213", message, term.span)
                return self.agreement.unknown()
            self.columns(term, left, right)
            return Shape(left.width, right.columns, "matrix")
        if isinstance(term.operand, Num) or (
            isinstance(term.operand, Val) and term.operand.name in self.agreement.symbols.constants
        ):
            message = "the right of '@' must be a vector, not a number"
            self.report.error("RNN213", message, term.operand.span, help="write '*' to scale")
            return Shape(left.width)
        self.columns(term, left, right)
        return Shape(left.width)

    def columns(self, term: Product, left: Shape, right: Shape) -> None:
        columns = left.columns or ONE
        if not self.solver.equal(columns, right.width, term.span, self.agreement.why(term.span)):
            left_side = Side(columns, term.matrix.span, f"the columns of {self.agreement.describe(term.matrix)}")
            self.agreement.mismatch(
                left_side, Side(right.width, term.operand.span, self.agreement.describe(term.operand))
            )

    def not_a_matrix(self, term: Product, right: Shape) -> None:
        text, other = self.report.text(term.matrix.span), self.report.text(term.operand.span)
        if right.is_matrix:
            help = f"the matrix stands on the left: '{other}@{text}'"
        else:
            help = f"write '{text}*{other}' to multiply element by element, or declare a matrix"
        message = f"the left of '@' must be a matrix; '{text}' is a vector"
        self.report.error("RNN212", message, term.matrix.span, "not a matrix", help)

    def transposed(self, term: Transposed, shape: Shape) -> Shape:
        if shape.kind == "unknown":
            return shape
        if shape.kind != "matrix":
            message = "T(M) transposes a matrix" if shape.kind == "vector" else "a diagonal matrix is its own transpose"
            self.report.error("RNN211" if shape.is_matrix else "RNN212", message, term.span)
            return Shape(self.solver.fresh(), self.solver.fresh(), "matrix")
        return Shape(shape.columns or ONE, shape.width, "matrix")
