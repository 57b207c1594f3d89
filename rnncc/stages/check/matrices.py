"""Matrices: sums, products and transposes of them, and where a matrix stands that must not, or is missing."""

from __future__ import annotations

from collections.abc import Container

from rnncc.analysis.widths import is_narrow
from rnncc.ir import dim as dims
from rnncc.ir.dim import HEADS, ONE
from rnncc.ir.term import Num, OfMatrix, Op, Product, Term, Transposed, Val, names
from rnncc.ir.typed import Shape
from rnncc.language.functions import OF_SQUARE
from rnncc.language.outside import MATRIX_STATE, PAIRS
from rnncc.language.report import Reported
from rnncc.stages.check.agree import Agreement, Side
from rnncc.stages.check.solver import is_unknown

# What a function of matrices says of a vector: {0} is the vector, {1} the same as an operand.
_OF_VECTORS = {
    "norm": "the length of a vector is 'sqrt(sum({1}*{1}))'",
    "normalize": "write '{1}/sqrt(sum({1}*{1}))'",
    "softmax": "write 'softmax({0})': a vector has no axis",
    "inv": "write '1/{1}' for the reciprocal of each unit",
    "expm": "write 'exp({0})' for the exponential of each unit",
    "diag": "multiply unit by unit: '{1}*v' is what 'diag({0})@v' would be",
}
_KINDS = {"diag": "diagonal matrix"}


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
            if not shape.is_matrix and is_narrow(self.solver.resolve(shape.width)) and self.is_parameter(argument):
                continue
            if shape.kind != "matrix":
                culprit = next((a for a, s in pairs if s.is_matrix), argument)
                scales = shape.kind == "vector" and self.is_parameter(argument)
                number = shape.kind == "vector" and is_narrow(self.solver.resolve(shape.width))
                wrong = self.elementwise(term, culprit, argument, scales=scales, number=number)
                return self.agreement.unknown(wrong)
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

    def elementwise(self, term: Op, matrix: Term, other: Term, *, scales: bool, number: bool) -> Reported:
        """Report arithmetic of a matrix with something else. `scales`: with a vector of parameters; `number`: with one
        number (per head)."""
        name = self.report.text(matrix.span)
        if term.operator == "mul" and number:
            scale = self.report.text(other.span)
            scale = scale if isinstance(other, Val) or scale.startswith("(") else f"({scale})"
            message = f"the matrix '{name}' is scaled by a number that changes from step to step"
            help = f"scale the product: '{scale}*({name}@v)' is '({scale}*{name})@v'"
            return self.report.error("RNN211", message, matrix.span, "a matrix", help)
        if term.operator == "mul" and scales:
            vector = self.report.text(other.span)
            help = f"write 'diag({vector})@{name}' to multiply its rows, '{name}@diag({vector})' its columns"
        elif matrix is other or not isinstance(other, Val):
            help = f"write '{name}@x' for the product of the matrix with a vector"
        else:
            vector = self.report.text(other.span)
            help = f"write '{name}@{vector}' for the product, or declare a vector: 'weights u: vector'"
        if not scales and (term.operator != "mul" or not isinstance(other, Val)):
            help += f"; {PAIRS.in_help}"
        message = f"the matrix '{name}' is used element by element"
        return self.report.error("RNN211", message, matrix.span, "a matrix", help)

    def product(self, term: Product, left: Shape, right: Shape) -> Shape:
        if left.reported:
            return self.agreement.unknown(left.reported)
        if not left.is_matrix:
            return self.agreement.unknown(self.not_a_matrix(term, right))
        if right.reported:
            # A vector or a matrix.
            return right
        if right.is_matrix:
            if left.kind == "diag" or right.kind == "diag":
                message = "a diagonal matrix stands only left of '@' and before a vector"
                help = "declare a vector, 'param v: vector': 'diag(v)' meets matrices"
                return self.agreement.unknown(self.report.error("RNN213", message, term.span, help=help))
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

    def product_with_transposed(self, term: Product, left: Shape, operand: Shape) -> Shape:
        """`M@T(operand)`; of two vectors it would make a matrix."""
        assert isinstance(term.operand, Transposed)
        if not (left.is_matrix or left.reported or operand.is_matrix or operand.reported):
            return self.agreement.unknown(
                self.report.error("RNN229", MATRIX_STATE.message, term.span, help=MATRIX_STATE.help)
            )
        return self.product(term, left, self.transposed(term.operand, operand))

    def columns(self, term: Product, left: Shape, right: Shape) -> None:
        columns = left.columns or ONE
        if not self.solver.equal(columns, right.width, term.span, self.agreement.why(term.span)):
            left_side = Side(columns, term.matrix.span, f"the columns of {self.agreement.describe(term.matrix)}")
            self.agreement.mismatch(
                left_side, Side(right.width, term.operand.span, self.agreement.describe(term.operand))
            )

    def not_a_matrix(self, term: Product, right: Shape) -> Reported:
        text, other = self.report.text(term.matrix.span), self.report.text(term.operand.span)
        if right.is_matrix:
            help = f"the matrix stands on the left: '{other}@{text}'"
        else:
            help = f"write '{text}*{other}' to multiply element by element, or declare a matrix"
        message = f"the left of '@' must be a matrix; '{text}' is a vector"
        return self.report.error("RNN212", message, term.matrix.span, "not a matrix", help)

    def transposed(self, term: Transposed, shape: Shape) -> Shape:
        if shape.reported:
            return shape
        if shape.kind != "matrix":
            message = "T(M) transposes a matrix" if shape.kind == "vector" else "a diagonal matrix is its own transpose"
            self.report.error("RNN211" if shape.is_matrix else "RNN212", message, term.span)
            return Shape(self.solver.fresh(), self.solver.fresh(), "matrix")
        return Shape(shape.columns or ONE, shape.width, "matrix")

    def function(self, term: OfMatrix, shape: Shape) -> Shape:
        """`diag(v)` of a vector, `norm(M)`, and the functions that make a matrix of a matrix."""
        if shape.reported:
            return Shape(HEADS) if term.function == "norm" else shape
        if wrong := self.wrong_operand(term, shape):
            return self.agreement.unknown(wrong)
        if term.function == "norm":
            return Shape(HEADS)
        if term.function == "diag":
            return Shape(shape.width, shape.width, "matrix")
        columns = shape.columns or ONE
        square = term.function not in OF_SQUARE or self.solver.equal(
            shape.width, columns, term.span, self.agreement.why(term.span)
        )
        if not square:
            text = self.report.text(term.operand.span)
            message = f"'{term.function}' takes a square matrix; '{text}' is {self.text(shape)}"
            return self.agreement.unknown(self.report.error("RNN214", message, term.operand.span, "not square"))
        return shape

    def wrong_operand(self, term: OfMatrix, shape: Shape) -> Reported | None:
        """An error where the operand is not what the function takes."""
        text, name = self.report.text(term.operand.span), term.function
        wanted = "vector" if name == "diag" else "matrix"
        kind = "number" if not shape.is_matrix and is_narrow(self.solver.resolve(shape.width)) else shape.kind
        if kind == wanted and self.is_parameter(term.operand):
            return None
        shown = text if isinstance(term.operand, Val | Num) else f"({text})"
        match wanted, kind:
            case "vector", "number":
                help = f"write '{shown}*eye(H)' for a multiple of the identity"
            case "vector", "matrix":
                help = "a vector is declared by 'param v: vector'"
            case _, "diag":
                help = "declare a vector, 'param v: vector': 'diag(v)' is a matrix"
            case _, "vector" if name in _OF_VECTORS:
                help = _OF_VECTORS[name].format(text, shown)
            case _:
                help = f"write '{name}(M)@v' with a matrix M of parameters"
        found = f", which '{text}' is not" if kind == wanted else f"; '{text}' is a {_KINDS.get(kind, kind)}"
        message = f"'{name}' takes a {wanted} that is made of parameters{found}"
        return self.report.error("RNN239", message, term.operand.span, help=help)
