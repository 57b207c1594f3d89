"""Matrices: sums, products and transposes of them, and where a matrix stands that must not, or is missing."""

from __future__ import annotations

from collections.abc import Container

from rnncc.analysis.widths import is_narrow
from rnncc.ir import dim as dims
from rnncc.ir.dim import HEADS, ONE
from rnncc.ir.term import Num, OfMatrix, Op, Product, Term, Transposed, Val, names
from rnncc.ir.typed import Shape
from rnncc.language.functions import ALONG_AXIS, OF_SQUARE, REDUCTIONS
from rnncc.language.outside import pairs
from rnncc.language.report import Reported
from rnncc.language.spelling import as_operand, inside
from rnncc.stages.check.agree import Agreement, Side
from rnncc.stages.check.solver import is_unknown

# What a function of matrices says of a vector: {0} is the vector, {1} the same as an operand.
_OF_VECTORS = {
    "inv": "write '1/{1}' for the reciprocal of each unit",
    "expm": "write 'exp({0})' for the exponential of each unit",
    "diag": "multiply unit by unit: '{1}*v' is what 'diag({0})@v' would be",
}
# What papers call I is no size.
_INPUT_SIZE, _IDENTITY = dims.number_of("I"), "eye(H)"
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
            if term.operator in ("add", "sub") and isinstance(argument, Val) and argument.name == _INPUT_SIZE:
                message = "'I' is the input size, a number, and not the identity matrix"
                wrong = self.report.error("RNN211", message, argument.span, "a number", f"write '{_IDENTITY}'")
                return self.agreement.unknown(wrong)
            if not shape.is_matrix and is_narrow(self.solver.resolve(shape.width)):
                continue
            if shape.kind != "matrix":
                culprit = next((a for a, s in pairs if s.is_matrix), argument)
                scales = shape.kind == "vector" and self.is_parameter(argument)
                return self.agreement.unknown(self.elementwise(term, culprit, argument, scales=scales))
            rows = self.solver.equal(first.width, shape.width, term.span, self.agreement.why(term.span))
            columns = self.solver.equal(
                first.columns or ONE, shape.columns or ONE, term.span, self.agreement.why(term.span)
            )
            if not (rows and columns):
                message = f"two matrices of different shape: {self.text(first)} and {self.text(shape)}"
                self.report.error("RNN214", message, term.span, "different shape")
        return first

    def change(self, term: Op, shapes: tuple[Shape, ...]) -> bool:
        """Whether a matrix of parameters meets a number that changes with the step."""
        numbers = (
            argument
            for argument, shape in zip(term.arguments, shapes, strict=True)
            if not shape.is_matrix and is_narrow(self.solver.resolve(shape.width))
        )
        return any(shape.kind == "matrix" for shape in shapes) and not all(map(self.is_parameter, numbers))

    def text(self, shape: Shape) -> str:
        width, columns = self.solver.resolve(shape.width), self.solver.resolve(shape.columns or ONE)
        return " x ".join("?" if is_unknown(side) else dims.show(side) for side in (width, columns))

    def is_parameter(self, term: Term) -> bool:
        return all(name in self.from_parameters for name in names(term))

    def elementwise(self, term: Op, matrix: Term, other: Term, *, scales: bool) -> Reported:
        """Report arithmetic of a matrix with a vector. `scales`: of parameters."""
        name = self.report.text(matrix.span)
        vector = self.report.text(other.span)
        if term.operator == "mul" and other is not matrix and (scales or not isinstance(other, Val)):
            vector = inside(vector)
            help = f"write 'diag({vector})@{name}' to multiply its rows, '{name}@diag({vector})' its columns"
        elif matrix is other or not isinstance(other, Val):
            help = f"write '{name}@x' for the product of the matrix with a vector"
        else:
            help = f"write '{name}@{vector}' for the product, or declare a vector: 'weights u: vector'"
        if not scales and term.operator in ("add", "sub"):
            help += f"; {pairs(vector)}"
        message = f"the matrix '{name}' is used element by element"
        return self.report.error("RNN211", message, matrix.span, "a matrix", help)

    def misplaced(self, term: Term, function: str) -> Reported:
        """Report a matrix where a function takes a vector."""
        message = f"'{function}' works on vectors; this is a matrix"
        along = function in ALONG_AXIS or function in REDUCTIONS
        places = ", n" if function == "roll" else ""
        help = f"write '{function}({self.report.text(term.span)}{places}, axis=rows)'" if along else ""
        return self.report.error("RNN211", message, term.span, "a matrix", help)

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

    def columns(self, term: Product, left: Shape, right: Shape) -> None:
        columns = left.columns or ONE
        if not self.solver.equal(columns, right.width, term.span, self.agreement.why(term.span)):
            left_side = Side(columns, term.matrix.span, f"the columns of {self.agreement.describe(term.matrix)}")
            self.agreement.mismatch(
                left_side, Side(right.width, term.operand.span, self.agreement.describe(term.operand))
            )

    def not_a_matrix(self, term: Product, right: Shape) -> Reported:
        text, other = self.report.text(term.matrix.span), self.report.text(term.operand.span)
        read = set(names(term.matrix))
        if _INPUT_SIZE in read:
            help = f"'I' is the input size; the identity matrix is '{_IDENTITY}'"
        elif right.is_matrix:
            help = f"the matrix stands on the left: '{other}@{text}'"
        else:
            help = f"write '{text}*{other}' to multiply element by element, or declare a matrix"
        kind = "number" if _INPUT_SIZE in read and len(read) == 1 else "vector"
        message = f"the left of '@' must be a matrix; '{text}' is a {kind}"
        return self.report.error("RNN212", message, term.matrix.span, "not a matrix", help)

    def transposed(self, term: Transposed, shape: Shape) -> Shape:
        if shape.reported:
            return shape
        if shape.kind == "changing":
            return Shape(shape.columns or ONE, shape.width, "changing")
        if shape.kind != "matrix":
            if shape.is_matrix:
                wrong = self.report.error("RNN211", "a diagonal matrix is its own transpose", term.span)
            else:
                text = self.report.text(term.matrix.span)
                total = f"sum(v*{as_operand(text)})"
                message = "T(M) transposes a matrix; of a vector it stands directly right of '@' alone, after a vector"
                help = f"write 'v@T({text})' for the products of the units of two vectors, '{total}' for their sum"
                wrong = self.report.error("RNN212", message, term.span, "of a vector", help)
            return self.agreement.unknown(wrong)
        return Shape(shape.columns or ONE, shape.width, "matrix")

    def function(self, term: OfMatrix, shape: Shape) -> Shape:
        """`diag(v)` of a vector, `norm(M)`, and the functions that make a matrix of a matrix."""
        if shape.reported:
            return Shape(HEADS) if term.function == "norm" else shape
        if wrong := self.wrong_operand(term, shape):
            return self.agreement.unknown(wrong)
        if term.function == "norm":
            return Shape(HEADS)
        if term.operator == "normalize":
            help = "after 'normalize(M, axis=rows)' each row has the length 1; the other axis is 'columns'"
            return self.agreement.unknown(
                self.report.error("RNN204", "'normalize' of a matrix takes an axis", term.span, help=help)
            )
        if term.function == "diag":
            return Shape(shape.width, shape.width, "matrix")
        if dims.as_int(term.places) is None:
            message = f"a matrix of parameters moves by a number of places, and not by '{dims.show(term.places)}'"
            help = "declare 'const n = …' in place of the size; vectors and matrices that change move by formulas too"
            return self.agreement.unknown(self.report.error("RNN220", message, term.span, "not known", help))
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
