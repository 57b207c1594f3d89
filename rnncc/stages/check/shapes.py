"""Widths by unification, and what is a matrix: `matrix @ vector`, `vector * vector`, numbers broadcast. `matrices` has
the shapes of operations on matrices.

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
    names,
    walk,
)
from rnncc.ir.typed import ParameterType, Shape
from rnncc.language.functions import OF_VECTORS_TOO, REDUCTIONS
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.stages.check.agree import Agreement, Side
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.grids import Grids
from rnncc.stages.check.matrices import Matrices
from rnncc.stages.check.resolve import Resolved
from rnncc.stages.check.solver import Solver, is_unknown
from rnncc.stages.check.split import Split, split_widths
from rnncc.stages.check.targets import Targets
from rnncc.stages.check.vectors import Vectors


@dataclass(frozen=True, slots=True)
class Shapes:
    """`values` by name; `solved`: the dims that follow from others; `constraints`, `divisible` and `input_dims` as in a
    typed cell. `equations`: in the order of the text."""

    equations: tuple[Equation, ...]

    values: dict[str, Shape]
    solved: dict[str, Dim]
    constraints: tuple[Constraint, ...]
    divisible: frozenset[tuple[Dim, Dim]]
    input_dims: frozenset[str]


class _Inference:
    def __init__(self, equations: tuple[Equation, ...], resolved: Resolved, symbols: Symbols, report: Report) -> None:
        self.report, self.symbols, self.resolved = report, symbols, resolved
        self.equations = equations
        # The equations whose targets are one number (per head) because their values are.
        self.narrow: dict[str, Equation] = {}
        # `n` for the instance n_1.
        self.bases = {equation.target: equation.written.partition("[")[0] for equation in equations}
        self.values: dict[str, Shape] = {}
        # Names that have no value, which was reported.
        self.wrong = resolved.wrong
        self.solved: dict[str, Dim] = {}
        # Values made of parameters and numbers only: matrices must be.
        numbers = {*symbols.constants, *resolved.numbers}
        self.from_parameters: set[str] = {*numbers, *symbols.params, *resolved.members}
        # Values of width 1 made of numbers, constants and sizes only: they have no units.
        self.numbers: set[str] = set(numbers)
        self.scalars = {*numbers, *(name for name, p in symbols.params.items() if p.type.kind == "scalar")}
        self.scalars |= {n for n, member in resolved.members.items() if symbols.groups[member.group].kind == "scalar"}
        free = frozenset(name for name, (default, _) in symbols.dims.items() if default is None)
        given = {"I"} | {n for value in symbols.inputs.values() for n in dims.names(value.width or ONE)}
        self.solver = Solver(free, frozenset(given - {"num_heads"}))
        self.agreement = Agreement(self.solver, self.values, symbols, report, self.narrow)
        self.matrices = Matrices(self.agreement, self.from_parameters)
        self.grids = Grids(self.agreement, self.bases)
        self.vectors = Vectors(self.agreement)
        self.input_dims = _input_dims(symbols)
        self.targets = Targets(self.agreement, self.grids, self.bases, self.scalars, self.input_dims)

    def run(self) -> Shapes:
        self.known_values()
        for equation in self.equations:
            self.equation(equation)
            self.older(equation.target)
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
        divisible = frozenset(self.solver.divisible)
        equations = self.vectors.of_vectors(self.resolved.equations)
        return Shapes(equations, values, solved, constraints, divisible, self.input_dims)

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
            self.older(name)
            if name == symbols.first and declared.width not in (None, INPUT_SIZE):
                self.solver.equal(INPUT_SIZE, values[name].width, declared.span, self.agreement.why(declared.span))
        for name, declared in symbols.states.items():
            values[name] = values[f"{name}__1"] = declared.shape
            if declared.columns and self.resolved.state_delays.get(name, 0) > 1:
                self.grids.no_past(name, declared.span, state=True)
            for step in range(1, self.resolved.state_delays.get(name, 0)):
                values[f"{name}__delay{step}"] = values[f"{name}__delay{step}__1"] = values[name]
        for name in self.numbers:
            values[name] = Shape(ONE)
        for name, param in symbols.params.items():
            values[name] = self.parameter(param.type, param.span)
        for name, member in self.resolved.members.items():
            values[name] = self.parameter(symbols.groups[member.group], member.span)

    def older(self, name: str) -> None:
        """The older values of an input or of a value that inputs make have its shape."""
        if name in self.resolved.value_delays and self.values[name].kind == "changing":
            span = next(each.target_span for each in self.equations if each.target == name)
            self.grids.no_past(self.bases[name], span, state=False)
        for step in range(1, self.resolved.value_delays.get(name, 0) + 1):
            self.values[f"{name}__{step}"] = self.values[name]

    def parameter(self, type_: ParameterType, span: Span) -> Shape:
        width = type_.width or self.solver.fresh()
        if not type_.is_matrix:
            return Shape(width)
        if type_.kind == "diag":
            return Shape(width, width, "diag")
        columns = type_.columns or self.solver.fresh()
        return Shape(width, columns, "matrix")

    def equation(self, equation: Equation) -> None:
        target, term = equation.target, equation.term
        if isinstance(term, Share):
            self.values.setdefault(target, Shape(HIDDEN_SIZE))
            self.share(equation, term)
            return
        shape = self.shape(term)
        if all(name in self.from_parameters for name in names(term)):
            self.from_parameters.add(target)
        declared = self.values.get(target) or self.targets.declared(equation)
        if shape.is_matrix:
            self.values[target] = self.targets.matrix(equation, shape, declared)
            return
        if shape.reported:
            # What is made of it is not wrong as well.
            self.values[target] = declared or shape
            return
        if declared is not None and declared.is_matrix:
            self.grids.filled(equation.written, term, declared)
            self.values[target] = declared
            return
        undeclared = declared is None
        if declared is None:
            declared = self.targets.undeclared(equation, shape)
        elif declared.width == ONE and shape.width == HEADS and target not in self.symbols.states:
            # One number per head is what a reduction leaves: `local m: 1` names it.
            declared = shape
        self.values[target] = declared
        if declared.width == ONE and self.is_number(term) and target not in self.symbols.states:
            self.numbers.add(target)
        if is_narrow(self.solver.resolve(shape.width)) and not is_unknown(shape.width):
            return
        written = Side(declared.width, equation.target_span, f"'{equation.written}'")
        side = Side(shape.width, term.span, "its value", term)
        wrong = self.agreement.same(written, side, self.targets.declaration(equation, shape))
        if wrong and undeclared:
            self.values[target] = self.agreement.unknown(wrong)

    def share(self, equation: Equation, term: Share) -> None:
        operand = self.shape(term.operand)
        target = self.values.get(equation.target)
        if target is not None and target.is_matrix:
            self.grids.filled(equation.written, term, target)
            return
        if operand.reported:
            # What is made of it is not wrong as well.
            if equation.target not in self.symbols.states and self.targets.declared(equation) is None:
                self.values[equation.target] = operand
            return
        if operand.is_matrix:
            self.matrices.misplaced(term.operand, "split")
            return
        whole = self.solver.resolve(operand.width)
        declared = {name: self.split_target(name) for name in term.targets}
        if dims.split_multiple(whole)[1] == HEADS:
            # Where v has a multiple of num_heads, `local m: 1` declares one number per head, as it does for a
            # reduction.
            declared = {name: HEADS if width == ONE else width for name, width in declared.items()}
        split = Split(term.targets, declared, whole, equation.written)
        width = split_widths(split, term.span, self.report)
        if isinstance(width, Reported):
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

    def shape(self, term: Term) -> Shape:
        """The shape of a term; reports what does not fit and goes on with something that does."""
        match term:
            case Num() | Argument():
                return Shape(ONE)
            case Val(name):
                return self.values.get(name) or self.agreement.unknown(self.wrong[name])
            case Bad(_, reported):
                return self.agreement.unknown(reported)
            case Op(_, arguments):
                return self.pointwise(term, tuple(self.shape(argument) for argument in arguments))
            case Surrogate(_, operand):
                return self.shape(operand)
            case Product():
                return self.product(term)
            case Row(function, arguments, times):
                return self.row(function, arguments, times, [self.shape(argument) for argument in arguments])
            case Transposed(matrix):
                return self.matrices.transposed(term, self.shape(matrix))
            case OfMatrix(function, operand, axis):
                shape = self.shape(operand)
                if term.fill and (wrong := self.wrong_fill(term.fill[0])):
                    return self.agreement.unknown(wrong)
                if function in OF_VECTORS_TOO and not axis and not shape.is_matrix:
                    self.vectors.taken.add(term)
                    return self.row(function, (operand,), 1, [shape])
                if function == "diag" and self.matrices.is_parameter(operand):
                    return self.matrices.function(term, shape)
                changing = None if shape.reported else self.grids.function(term, shape)
                return changing or self.matrices.function(term, shape)
            case Unflatten(operand):
                shape = self.shape(operand)
                return self.agreement.unknown(shape.reported) if shape.reported else self.grids.unflatten(term, shape)
            case Eye(dim):
                return Shape(dim, dim, "matrix")
            case Filled(_, dim):
                return Shape(dim)
            case PerHead(operand):
                return self.vectors.per_head(term, self.shape(operand))
            case Share(operand):
                return self.shape(operand)
            case _:
                assert_never(term)

    def product(self, term: Product) -> Shape:
        """`matrix @ operand`, in which `T(v)` may be that of a vector."""
        match term:
            case Product(Transposed(vector), operand) if not (shape := self.shape(vector)).is_matrix:
                right = self.shape(operand)
                wrong = shape.reported or right.reported or self.grids.transposed_vector(term, vector, right)
                return self.agreement.unknown(wrong)
            case Product(matrix, Transposed(operand) as flipped):
                left, inner = self.shape(matrix), self.shape(operand)
                if reported := left.reported or inner.reported:
                    return self.agreement.unknown(reported)
                if left.is_matrix or inner.is_matrix:
                    right = self.matrices.transposed(flipped, inner)
                else:
                    return self.grids.outer(term, left, inner)
            case Product(matrix, operand):
                left, right = self.shape(matrix), self.shape(operand)
        if not (left.reported or right.reported) and "changing" in (left.kind, right.kind):
            return self.grids.product(term, left, right)
        return self.matrices.product(term, left, right)

    def pointwise(self, term: Op, shapes: tuple[Shape, ...]) -> Shape:
        for shape in shapes:
            if shape.reported:
                return self.agreement.unknown(shape.reported)
        if any(shape.kind == "changing" for shape in shapes) or self.matrices.change(term, shapes):
            return self.grids.arithmetic(term, shapes)
        if any(shape.is_matrix for shape in shapes):
            return self.matrices.arithmetic(term, shapes)
        wide: list[Side] = []
        for argument, shape in zip(term.arguments, shapes, strict=True):
            width = self.solver.resolve(shape.width)
            if not is_narrow(width):
                wide.append(Side(width, argument.span, self.agreement.describe(argument), argument))
                if len(wide) > 1:
                    self.agreement.same(wide[0], wide[-1])
        return Shape(joint([self.solver.resolve(shape.width) for shape in shapes], self.input_dims))

    def is_number(self, term: Term) -> bool:
        # A function across the units of a number was reported.
        reported = any(isinstance(part, Row) for part in walk(term))
        return not reported and all(name in self.numbers for name in names(term))

    def wrong_fill(self, fill: Term) -> Reported | None:
        """An error where the fill of `roll` is no number."""
        is_number = self.is_number(fill) and self.solver.resolve(self.shape(fill).width) == ONE
        return self.vectors.wrong_fill(fill, is_number=is_number)

    def row(self, function: str, arguments: tuple[Term, ...], times: int, found: list[Shape]) -> Shape:
        """The shape of a function across the units of these arguments; `found` are their shapes."""
        shapes = []
        if function == "roll" and len(arguments) > 1:
            if wrong := self.wrong_fill(arguments[1]):
                return self.agreement.unknown(wrong)
            arguments, found = arguments[:1], found[:1]
        for argument, shape in zip(arguments, found, strict=True):
            if shape.kind == "changing" and function in REDUCTIONS:
                return Shape(HEADS)
            if shape.is_matrix:
                shape = self.agreement.unknown(self.matrices.misplaced(argument, function))
            elif self.solver.resolve(shape.width) == ONE and self.is_number(argument):
                message = (
                    f"'{function}' works on the units of a vector; {self.agreement.describe(argument)} is a number"
                )
                self.report.error("RNN204", message, argument.span, "a number")
            shapes.append(shape)
        for shape in shapes:
            if shape.reported:
                return self.agreement.unknown(shape.reported)
        first = shapes[0].width
        match function:
            case "sum" | "mean" | "max" | "min" | "norm" | "logsumexp":
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


def _input_dims(symbols: Symbols) -> frozenset[str]:
    """The dims that measure vectors given as inputs only: values of such a width are not laid out by heads. Beside a
    matrix that is given there is one head."""
    inputs = {"I"} | {name for value in symbols.inputs.values() for name in dims.names(value.width or ONE)}
    inside = [(value.width, value.columns) for value in (*symbols.states.values(), *symbols.locals.values())]
    inside += [grid.sides for grid in symbols.grids.values()]
    return frozenset(
        inputs - {"H", "num_heads"} - {name for sides in inside for side in sides for name in dims.names(side or ONE)}
    )


def infer(equations: tuple[Equation, ...], resolved: Resolved, symbols: Symbols, report: Report) -> Shapes:
    """Infer all shapes; see the module's docstring."""
    return _Inference(equations, resolved, symbols, report).run()
