"""Matrices that change with the step: what sums, products and functions of them are, and what never meets them.

They are made of blocks, one per head, and so is a matrix of parameters that meets one.
"""

from __future__ import annotations

from collections.abc import Mapping

from rnncc.analysis.widths import is_narrow
from rnncc.ir import dim as dims
from rnncc.ir.dim import HEADS, ONE, Grid
from rnncc.ir.term import OfMatrix, Op, Product, Term, Transposed, Unflatten, Val
from rnncc.ir.typed import Shape
from rnncc.language.functions import OF_GRIDS, REDUCTIONS
from rnncc.language.greek import in_ascii
from rnncc.language.report import Reported
from rnncc.language.source import Span
from rnncc.language.spelling import as_operand, inside
from rnncc.stages.check.agree import Agreement, Side
from rnncc.stages.check.elsewhere import SOLVED
from rnncc.stages.check.solver import is_unknown


class Grids:
    """The shapes of operations on matrices that change. `bases`: the targets, each with its name in the text."""

    def __init__(self, agreement: Agreement, bases: Mapping[str, str]) -> None:
        self.agreement, self.solver, self.report = agreement, agreement.solver, agreement.report
        self.bases = bases

    def text(self, shape: Shape) -> str:
        """Rows and columns, as a declaration has them."""
        sides = (self.solver.resolve(side) for side in (shape.width, shape.columns or ONE))
        return f"matrix({', '.join('?' if is_unknown(side) else dims.show(side) for side in sides)})"

    def same(self, left: Shape, right: Shape, term: Term, what: str = "two matrices") -> Reported | None:
        """Make two shapes one."""
        why = self.agreement.why(term.span)
        rows = self.solver.equal(left.width, right.width, term.span, why)
        if rows and self.solver.equal(left.columns or ONE, right.columns or ONE, term.span, why):
            return None
        message = f"{what} of different shape: {self.text(left)} and {self.text(right)}"
        help = (
            "T(M) swaps rows and columns; widths are compared by name, so that K is not H; a vector of another width "
            "than H is declared: 'local k: K'"
        )
        match term:
            case Op("mul", (first, second)) if _is_diagonal(first) or _is_diagonal(second):
                help = f"write '{self._operand(first)}@{self._operand(second)}' for the product of two matrices"
        return self.report.error("RNN214", message, term.span, "different shape", help)

    def no_past(self, name: str, span: Span, state: bool) -> Reported:
        """Report an older value of a matrix than that of the step before."""
        message = f"'{name}' is a matrix: it has no past" + (" but '[t-1]'" if state else "")
        help = f"write 'state {name}_old: matrix(H, K)', '{name}_old[t] = {name}[t-1]' and '{name}_old[t-1]'"
        help = help if state else "its vectors have one: 'v[t-1]@T(k[t-1])'"
        return self.report.error("RNN216", message, span, "a matrix", help)

    def arithmetic(self, term: Op, shapes: tuple[Shape, ...]) -> Shape:
        """Element by element: matrices of one shape, and numbers."""
        pairs = tuple(zip(term.arguments, shapes, strict=True))
        matrix, first = next(pair for pair in pairs if pair[1].kind in ("changing", "matrix"))
        for argument, shape in pairs:
            wrong: Reported | None = None
            if term.operator in ("add", "sub") and not shape.is_matrix and _is_input_size(argument):
                message = "'I' is the input size, a number, and not the identity matrix"
                square = dims.show(self.solver.resolve(first.width))
                wrong = self.report.error("RNN211", message, argument.span, "a number", f"write 'eye({square})'")
            elif shape.kind in ("changing", "matrix"):
                wrong = self.same(first, shape, term)
            elif shape.kind == "diag":
                text = self.report.text(argument.span)
                help = f"write 'diag({text})' of a vector: 'param {text}: vector'"
                wrong = self.report.error("RNN213", f"'{text}' stands before '@' only", argument.span, help=help)
            elif not is_narrow(self.solver.resolve(shape.width)):
                wrong = self.vector(term, matrix, argument)
            if wrong:
                return self.agreement.unknown(wrong)
        return Shape(first.width, first.columns, "changing")

    def vector(self, term: Op, matrix: Term, vector: Term) -> Reported:
        """Report a vector that meets a matrix element by element."""
        m, v = (self._operand(each) for each in (matrix, vector))
        within = inside(v)
        match term.operator, vector:
            case "mul", _:
                help = (
                    f"'diag({within})@{m}' scales its rows, '{m}@diag({within})' its columns, '{m}@{v}' is the product"
                )
                if name := self.undeclared(vector):
                    help += f"; 'local {name}: num_heads' makes it a number"
            case "div", _:
                help = f"'diag(1/{v})@{m}' divides its rows, '{m}@diag(1/{v})' its columns"
            case _, Op("mul", (left, right)):
                help = (
                    f"'{self.report.text(left.span)}@T({self.report.text(right.span)})' is the matrix of the products "
                )
                help += "of the units of two vectors"
            case _:
                help = (
                    f"'{v}@T(u)' is the matrix of all products of two units, 'diag({within})' a diagonal one, "
                    f"'unflatten({within}, P, Q)' that of a vector of P*Q/num_heads numbers"
                )
        message = f"the vector {self.agreement.describe(vector)} meets the matrix '{m}' element by element"
        return self.report.error("RNN211", message, vector.span, "a vector", help)

    def undeclared(self, term: Term) -> str:
        """The name of a vector whose width a 'local' could declare and none does; or nothing."""
        if not isinstance(term, Val) or self.agreement.shapes[term.name].is_matrix:
            return ""
        name = self.bases.get(term.name.partition("__")[0], "")
        return "" if in_ascii(name) in self.agreement.symbols.spans else name

    def _operand(self, term: Term) -> str:
        return as_operand(self.report.text(term.span))

    def product(self, term: Product, left: Shape, right: Shape) -> Shape:
        """`left @ right`, of which one is a matrix that changes."""
        matrix, operand = self._operand(term.matrix), self._operand(term.operand)
        if not left.is_matrix:
            message = f"the left of '@' must be a matrix; {self.agreement.describe(term.matrix)} is a vector"
            across = term.operand.matrix if isinstance(term.operand, Transposed) else None
            transposed = self._operand(across) if across else f"T({inside(operand)})"
            help = f"write '{transposed}@{matrix}' for the sum over its rows"
            return self.agreement.unknown(self.report.error("RNN212", message, term.matrix.span, "a vector", help))
        if not right.is_matrix and is_narrow(self.solver.resolve(right.width)):
            message = "the right of '@' is a vector or a matrix, not a number"
            help = f"write '{operand}*{matrix}' to scale, '{operand}*sum({matrix}, axis=rows)' for the sum of each row"
            return self.agreement.unknown(self.report.error("RNN213", message, term.operand.span, "a number", help))
        columns = left.columns or ONE
        if not self.solver.equal(columns, right.width, term.span, self.agreement.why(term.span)):
            side = Side(columns, term.matrix.span, f"the columns of {self.agreement.describe(term.matrix)}")
            name = self.agreement.describe(term.operand)
            other = Side(right.width, term.operand.span, f"the rows of {name}" if right.is_matrix else name)
            help = f"'T({matrix})' has the rows as columns" if left.kind == "changing" else ""
            for factor, width in ((term.operand, columns), (term.matrix, right.width)):
                diagonal = isinstance(factor, OfMatrix) and factor.function == "diag"
                if vector := self.undeclared(factor.operand if isinstance(factor, OfMatrix) else factor):
                    declares = f"'local {vector}: {dims.show(self.solver.resolve(width))}' declares another width"
                    help = declares if diagonal or not help else f"{declares}; {help}"
                    break
            return self.agreement.unknown(self.agreement.mismatch(side, other, help))
        return Shape(left.width, right.columns, "changing") if right.is_matrix else Shape(left.width)

    def outer(self, term: Product, left: Shape, right: Shape) -> Shape:
        """`left @ T(right)` of two vectors: the product of each unit with each."""
        for argument, shape in ((term.matrix, left), (term.operand, right)):
            if self.solver.resolve(shape.width) == ONE:
                message = f"{self.agreement.describe(argument)} is a number, which has no units"
                help = "'v@T(k)' is the matrix of the products of the units of two vectors"
                return self.agreement.unknown(self.report.error("RNN213", message, argument.span, "a number", help))
        return Shape(left.width, right.width, "changing")

    def transposed_vector(self, term: Product, vector: Term, right: Shape) -> Reported:
        """Report `T(u)@v` and `T(k)@S`."""
        u, v = self._operand(vector), self._operand(term.operand)
        help = f"write 'T({inside(v)})@{u}'" if right.is_matrix else f"write 'sum({u}*{v})'"
        message = "a vector has no transpose, but to the right of '@' after a vector"
        return self.report.error("RNN212", message, term.matrix.span, "of a vector", help)

    def function(self, term: OfMatrix, shape: Shape) -> Shape | None:
        """A function of a matrix that changes, or `diag` of a vector that does; None for what is neither."""
        if term.axis and not shape.is_matrix:
            text, places = self.report.text(term.operand.span), ", n" if term.function == "roll" else ""
            message = f"'{term.function}' along an axis takes a matrix; '{text}' is a vector"
            help = f"write '{term.function}({text}{places})': a vector has no axis"
            return self.agreement.unknown(self.report.error("RNN239", message, term.operand.span, "a vector", help))
        if term.function in REDUCTIONS:
            return Shape(shape.width if term.axis == "rows" else shape.columns or ONE)
        if term.function == "diag" and not shape.is_matrix and not is_narrow(self.solver.resolve(shape.width)):
            return Shape(shape.width, shape.width, "changing")
        if shape.kind != "changing":
            return None
        if term.function == "norm":
            return Shape(HEADS)
        if term.function == "diag":
            columns = shape.columns or ONE
            if self.solver.equal(shape.width, columns, term.span, self.agreement.why(term.span)):
                return Shape(shape.width)
            message = f"'diag' takes a square matrix or a vector; this is {self.text(shape)}"
            return self.agreement.unknown(self.report.error("RNN214", message, term.operand.span, "not square"))
        if term.axis:
            return shape
        text = self.report.text(term.operand.span)
        message = f"'{term.function}' takes a matrix that is made of parameters; '{text}' changes with the step"
        help = f"of such matrices there are {', '.join(OF_GRIDS)} and functions along an axis"
        help = SOLVED if term.function == "inv" else help
        return self.agreement.unknown(self.report.error("RNN239", message, term.operand.span, help=help))

    def unflatten(self, term: Unflatten, shape: Shape) -> Shape:
        """The matrix that a vector's units make."""
        grid = Grid(term.rows, term.columns)
        if shape.is_matrix:
            message = "'unflatten' takes a vector; this is a matrix"
            return self.agreement.unknown(self.report.error("RNN211", message, term.operand.span, "a matrix"))
        name = self.report.text(term.operand.span)
        given = Side(shape.width, term.operand.span, self.agreement.describe(term.operand), term.operand)
        help = f"declare 'local {name}: {self.written(grid)}'" if isinstance(term.operand, Val) else ""
        wrong = self.agreement.same(given, Side(grid.width, term.span, "the matrix, head by head,"), help)
        return self.agreement.unknown(wrong) if wrong else Shape(term.rows, term.columns, "changing")

    def written(self, grid: Grid) -> str:
        """The width of a matrix, as a declaration has it."""
        return f"{dims.show(dims.multiply(grid.rows, grid.columns))}//num_heads"

    def filled(self, target: str, term: Term, declared: Shape) -> Reported:
        """Report a vector or a number as the value of a matrix."""
        p, q = (dims.show(side) for side in (declared.width, declared.columns or ONE))
        message = f"'{target}' is a matrix, and its value is none"
        help = f"a vector becomes one by 'v@T(k)', 'diag(v)' or 'unflatten(v, {p}, {q})'"
        return self.report.error("RNN211", message, term.span, "no matrix", help)

    def unexpected(self, target: str, kind: str, term: Term, shape: Shape) -> Reported:
        """Report a matrix as the value of what is declared as a vector, or of what nothing declares as a matrix."""
        name = target.partition("[")[0]
        message = f"the value of '{target}' is a matrix, and '{name}' is declared as a vector"
        return self.report.error("RNN211", message, term.span, "a matrix", f"write '{kind} {name}: {self.text(shape)}'")


def _is_input_size(term: Term) -> bool:
    """Whether a number is I, or a multiple of it: what papers call I is no size."""
    match term:
        case Op("mul", arguments):
            return any(map(_is_input_size, arguments))
        case _:
            return isinstance(term, Val) and term.name == dims.number_of("I")


def _is_diagonal(term: Term) -> bool:
    return isinstance(term, OfMatrix) and term.function == "diag"
