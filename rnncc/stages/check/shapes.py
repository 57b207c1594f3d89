"""Widths by unification, and what is a matrix: `matrix @ vector`, `vector * vector`, numbers broadcast.

Input: equations in order of dependence. Output: the shape of every target, member and param, the sizes that the
constraints solve, and the constraints left for construction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from rnncc.analysis.widths import by_quotients, is_narrow, joint, reduced
from rnncc.ir import dim as dims
from rnncc.ir.cell import Constraint
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, INPUT_SIZE, ONE, Dim
from rnncc.ir.term import (
    Argument,
    Bad,
    Equation,
    Eye,
    Num,
    Op,
    Product,
    Row,
    Share,
    Surrogate,
    Term,
    Transposed,
    Val,
    names,
    walk,
)
from rnncc.ir.typed import ParameterType, Shape
from rnncc.language.report import Report
from rnncc.language.source import Span
from rnncc.stages.check.agree import Agreement, Side
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.elsewhere import PAIRS
from rnncc.stages.check.resolve import Resolved
from rnncc.stages.check.solver import Solver, is_unknown
from rnncc.stages.check.split import Split, split_widths


@dataclass(frozen=True, slots=True)
class Shapes:
    """`values` by name; `solved`: the dims that follow from others; `constraints`, `divisible` and `input_dims` as in a
    typed cell."""

    values: dict[str, Shape]
    solved: dict[str, Dim]
    constraints: tuple[Constraint, ...]
    divisible: frozenset[tuple[Dim, Dim]]
    input_dims: frozenset[str]


class _Inference:
    def __init__(self, equations: tuple[Equation, ...], resolved: Resolved, symbols: Symbols, report: Report) -> None:
        self.report, self.symbols, self.resolved = report, symbols, resolved
        self.equations = equations
        # `n` for the instance n_1.
        self.bases = {equation.target: equation.written.partition("[")[0] for equation in equations}
        self.values: dict[str, Shape] = {}
        self.solved: dict[str, Dim] = {}
        # Values made of parameters and numbers only: matrices must be.
        self.from_parameters: set[str] = {*symbols.constants, *symbols.params, *resolved.members}
        # Values of width 1 made of numbers and constants only: they have no units.
        self.numbers: set[str] = set(symbols.constants)
        free = frozenset(name for name, (default, _) in symbols.dims.items() if default is None)
        given = {"I"} | {n for value in symbols.inputs.values() for n in dims.names(value.width or ONE)}
        self.solver = Solver(free, frozenset(given - {"num_heads"}))
        self.agreement = Agreement(self.solver, self.values, symbols, report)
        self.input_dims = _input_dims(symbols)

    def run(self) -> Shapes:
        self.known_values()
        for equation in self.equations:
            self.equation(equation)
        found = self.solver.finish(HIDDEN_SIZE)
        self.solved = {
            name: self.solver.resolve(dims.named(name)) for name in self.symbols.dims if name in self.solver.bound
        }
        values = {name: self.final(shape) for name, shape in self.values.items()}
        constraints = tuple(replace(each, left=self.named(each.left), right=self.named(each.right)) for each in found)
        solved = self.solved
        for name, value in solved.items():
            number = dims.as_int(value)
            if number is not None and number < 1:
                self.report.error("RNN223", f"the size '{name}' would be {number}", self.symbols.dims[name][1])
        return Shapes(values, solved, constraints, frozenset(self.solver.divisible), self.input_dims)

    def final(self, shape: Shape) -> Shape:
        columns = None if shape.columns is None else self.named(shape.columns)
        return replace(shape, width=self.named(shape.width), columns=columns)

    def named(self, width: Dim) -> Dim:
        """The width without unknowns."""
        return by_quotients(self.solver.resolve(width), self.solved)

    def known_values(self) -> None:
        symbols, values = self.symbols, self.values
        for name, declared in symbols.inputs.items():
            values[name] = Shape(declared.width or INPUT_SIZE)
            for step in range(1, self.resolved.input_delays.get(name, 0) + 1):
                values[f"{name}__{step}"] = values[name]
            if name == "x" and declared.width not in (None, INPUT_SIZE):
                self.solver.equal(INPUT_SIZE, values[name].width, declared.span, self.why(declared.span))
        for name, declared in symbols.states.items():
            values[name] = values[f"{name}__1"] = Shape(declared.width or HIDDEN_SIZE)
            for step in range(1, self.resolved.state_delays.get(name, 0)):
                values[f"{name}__delay{step}"] = values[f"{name}__delay{step}__1"] = values[name]
        for name in symbols.constants:
            values[name] = Shape(ONE)
        for name, param in symbols.params.items():
            values[name] = self.parameter(param.type, param.span)
        for name, member in self.resolved.members.items():
            values[name] = self.parameter(symbols.groups[member.group], member.span)

    def parameter(self, type_: ParameterType, span: Span) -> Shape:
        width = type_.width or self.solver.fresh()
        if not type_.is_matrix:
            return Shape(width)
        if type_.kind == "diag":
            return Shape(width, width, "diag")
        columns = type_.columns or self.solver.fresh()
        return Shape(width, columns, "matrix")

    def why(self, span: Span) -> str:
        return f"line {self.report.line(span)}"

    def equation(self, equation: Equation) -> None:
        target, term = equation.target, equation.term
        if isinstance(term, Share):
            self.values.setdefault(target, Shape(HIDDEN_SIZE))
            self.share(equation, term)
            return
        shape = self.shape(term)
        if all(name in self.from_parameters for name in names(term)):
            self.from_parameters.add(target)
        declared = self.values.get(target) or self.declared(equation)
        if shape.is_matrix:
            self.matrix_target(equation, shape)
            return
        if shape.kind == "unknown":
            # What is made of it is not wrong as well.
            self.values[target] = declared or shape
            return
        if declared is None:
            declared = Shape(HIDDEN_SIZE)
        elif declared.width == ONE and shape.width == HEADS and target not in self.symbols.states:
            # One number per head is what a reduction leaves: `local m: 1` names it.
            declared = shape
        self.values[target] = declared
        if declared.width == ONE and self.is_number(term) and target not in self.symbols.states:
            self.numbers.add(target)
        if is_narrow(self.solver.resolve(shape.width)) and not is_unknown(shape.width):
            return
        written = Side(declared.width, equation.target_span, f"'{equation.written}'")
        self.agreement.same(written, Side(shape.width, term.span, "its value", term))

    def declared(self, equation: Equation) -> Shape | None:
        found = self.symbols.locals.get(self.bases[equation.target])
        return Shape(found.width) if found is not None and found.width is not None else None

    def matrix_target(self, equation: Equation, shape: Shape) -> None:
        term = equation.term
        state = equation.target in self.symbols.states
        if state or isinstance(term, Val) or shape.kind == "diag":
            what = "a state is a vector" if state else "it must stand before '@'"
            message = f"the value of '{equation.written}' is a matrix: {what}"
            self.report.error("RNN211", message, term.span, help="write 'W@x' for a product")
            self.values[equation.target] = self.values.get(equation.target, Shape(HIDDEN_SIZE))
            return
        self.values[equation.target] = shape

    def share(self, equation: Equation, term: Share) -> None:
        operand = self.shape(term.operand)
        if operand.kind == "unknown":
            return
        if operand.is_matrix:
            self.misplaced(term.operand, "split")
            return
        whole = self.solver.resolve(operand.width)
        declared = {name: self.split_target(name) for name in term.targets}
        if dims.split_multiple(whole)[1] == HEADS:
            # Where v has a multiple of num_heads, `local m: 1` declares one number per head, as it does for a
            # reduction.
            declared = {name: HEADS if width == ONE else width for name, width in declared.items()}
        split = Split(term.targets, declared, whole, equation.written)
        width = split_widths(split, term.span, self.report)
        if width is None:
            self.values[equation.target] = Shape(declared[equation.target] or HIDDEN_SIZE)
            return
        self.values[equation.target] = Shape(width[equation.target])
        total = dims.constant(0)
        for each in width.values():
            total = dims.add(total, each)
        taken = Side(total, equation.target_span, "what the targets take")
        self.agreement.same(taken, Side(operand.width, term.operand.span, "the value split"))

    def split_target(self, name: str) -> Dim | None:
        """The declared width of a target of a split."""
        if name in self.symbols.states:
            return self.symbols.states[name].width
        found = self.symbols.locals.get(self.bases[name])
        return found.width if found is not None else None

    def unknown(self) -> Shape:
        """The shape of what an error left behind. It fits everywhere."""
        return Shape(self.solver.fresh(), kind="unknown")

    def shape(self, term: Term) -> Shape:
        """The shape of a term; reports what does not fit and goes on with something that does."""
        match term:
            case Num() | Argument():
                return Shape(ONE)
            case Val(name):
                return self.values.get(name) or self.unknown()
            case Bad():
                return self.unknown()
            case Op(_, arguments):
                return self.pointwise(term, tuple(self.shape(argument) for argument in arguments))
            case Surrogate(_, operand):
                return self.shape(operand)
            case Product(matrix, operand):
                return self.product(term, self.shape(matrix), self.shape(operand))
            case Row(function, arguments, times):
                return self.row(function, arguments, times)
            case Transposed(matrix):
                return self.transposed(term, self.shape(matrix))
            case Eye(dim):
                return Shape(dim, dim, "matrix")
            case Share(operand):
                return self.shape(operand)
            case _:
                assert_never(term)

    def pointwise(self, term: Op, shapes: tuple[Shape, ...]) -> Shape:
        if any(shape.kind == "unknown" for shape in shapes):
            return self.unknown()
        if any(shape.is_matrix for shape in shapes):
            return self.matrix_arithmetic(term, shapes)
        wide: list[Side] = []
        for argument, shape in zip(term.arguments, shapes, strict=True):
            width = self.solver.resolve(shape.width)
            if not is_narrow(width):
                wide.append(Side(width, argument.span, self.describe(argument), argument))
                if len(wide) > 1:
                    self.agreement.same(wide[0], wide[-1])
        return Shape(joint([self.solver.resolve(shape.width) for shape in shapes], self.input_dims))

    def matrix_arithmetic(self, term: Op, shapes: tuple[Shape, ...]) -> Shape:
        """Arithmetic of whole matrices and numbers, all made of parameters."""
        pairs = tuple(zip(term.arguments, shapes, strict=True))
        first = next(shape for shape in shapes if shape.is_matrix)
        for argument, shape in pairs:
            if not shape.is_matrix and self.solver.resolve(shape.width) == ONE and self.is_parameter(argument):
                continue
            if shape.kind != "matrix":
                culprit = next((a for a, s in pairs if s.is_matrix), argument)
                self.elementwise(term, culprit, argument)
                return self.unknown()
            rows = self.solver.equal(first.width, shape.width, term.span, self.why(term.span))
            columns = self.solver.equal(first.columns or ONE, shape.columns or ONE, term.span, self.why(term.span))
            if not (rows and columns):
                message = f"two matrices of different shape: {self.matrix_text(first)} and {self.matrix_text(shape)}"
                self.report.error("RNN214", message, term.span)
        return first

    def matrix_text(self, shape: Shape) -> str:
        width, columns = self.solver.resolve(shape.width), self.solver.resolve(shape.columns or ONE)
        return " x ".join("?" if is_unknown(side) else dims.show(side) for side in (width, columns))

    def is_parameter(self, term: Term) -> bool:
        return all(name in self.from_parameters for name in names(term))

    def is_number(self, term: Term) -> bool:
        # A function across the units of a number was reported.
        reported = any(isinstance(part, Row) for part in walk(term))
        return not reported and all(name in self.numbers for name in names(term))

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

    def describe(self, term: Term) -> str:
        text = self.report.text(term.span)
        return f"'{text}'" if len(text) <= 30 else "this"

    def misplaced(self, term: Term, function: str) -> None:
        message = f"'{function}' works on vectors; this is a matrix"
        self.report.error("RNN211", message, term.span, "a matrix")

    def product(self, term: Product, left: Shape, right: Shape) -> Shape:
        if left.kind == "unknown":
            return self.unknown()
        if not left.is_matrix:
            self.not_a_matrix(term, right)
            return self.unknown()
        if right.kind == "unknown":
            # A vector or a matrix.
            return right
        if right.is_matrix:
            if left.kind == "diag" or right.kind == "diag":
                message = "a diagonal matrix stands only left of '@' and before a vector"
                self.report.error("RNN213", message, term.span)
                return self.unknown()
            self.columns(term, left, right)
            return Shape(left.width, right.columns, "matrix")
        if isinstance(term.operand, Num) or (
            isinstance(term.operand, Val) and term.operand.name in self.symbols.constants
        ):
            message = "the right of '@' must be a vector, not a number"
            self.report.error("RNN213", message, term.operand.span, help="write '*' to scale")
            return Shape(left.width)
        self.columns(term, left, right)
        return Shape(left.width)

    def columns(self, term: Product, left: Shape, right: Shape) -> None:
        columns = left.columns or ONE
        if not self.solver.equal(columns, right.width, term.span, self.why(term.span)):
            left_side = Side(columns, term.matrix.span, f"the columns of {self.describe(term.matrix)}")
            self.agreement.mismatch(left_side, Side(right.width, term.operand.span, self.describe(term.operand)))

    def not_a_matrix(self, term: Product, right: Shape) -> None:
        text, other = self.report.text(term.matrix.span), self.report.text(term.operand.span)
        if right.is_matrix:
            help = f"the matrix stands on the left: '{other}@{text}'"
        else:
            help = f"write '{text}*{other}' to multiply element by element, or declare a matrix"
        message = f"the left of '@' must be a matrix; '{text}' is a vector"
        self.report.error("RNN212", message, term.matrix.span, "not a matrix", help)

    def row(self, function: str, arguments: tuple[Term, ...], times: int) -> Shape:
        shapes = []
        for argument in arguments:
            shape = self.shape(argument)
            if shape.is_matrix:
                self.misplaced(argument, function)
                shape = self.unknown()
            elif self.solver.resolve(shape.width) == ONE and self.is_number(argument):
                message = f"'{function}' works on the units of a vector; {self.describe(argument)} is a number"
                self.report.error("RNN204", message, argument.span, "a number")
            shapes.append(shape)
        if any(shape.kind == "unknown" for shape in shapes):
            return self.unknown()
        first = shapes[0].width
        match function:
            case "sum" | "mean":
                return Shape(reduced(self.solver.resolve(first), self.input_dims))
            case "repeat":
                return Shape(dims.scale(self.solver.resolve(first), times))
            case "concat":
                total = dims.constant(0)
                for shape in shapes:
                    total = dims.add(total, self.solver.resolve(shape.width))
                return Shape(total)
            case _:
                return shapes[0]

    def transposed(self, term: Transposed, shape: Shape) -> Shape:
        if shape.kind == "unknown":
            return shape
        if shape.kind != "matrix":
            message = "T(M) transposes a matrix" if shape.kind == "vector" else "a diagonal matrix is its own transpose"
            self.report.error("RNN211" if shape.is_matrix else "RNN212", message, term.span)
            return Shape(self.solver.fresh(), self.solver.fresh(), "matrix")
        return Shape(shape.columns or ONE, shape.width, "matrix")


def _input_dims(symbols: Symbols) -> frozenset[str]:
    """The dims that measure inputs only: values of such a width are not laid out by heads."""
    inputs = {"I"} | {name for value in symbols.inputs.values() for name in dims.names(value.width or ONE)}
    inside = [*symbols.states.values(), *symbols.locals.values()]
    return frozenset(
        inputs - {"H", "num_heads"} - {name for value in inside for name in dims.names(value.width or ONE)}
    )


def infer(equations: tuple[Equation, ...], resolved: Resolved, symbols: Symbols, report: Report) -> Shapes:
    """Infer all shapes; see the module's docstring."""
    return _Inference(equations, resolved, symbols, report).run()
