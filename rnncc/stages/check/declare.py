"""Declarations: which names a cell has, and what they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.cell import Initialiser
from rnncc.ir.dim import HIDDEN_SIZE, INPUT_SIZE, Dim, Grid
from rnncc.ir.syntax import (
    Call,
    CellDecl,
    ConstDecl,
    DimDecl,
    EquationDecl,
    Expression,
    ForDecl,
    FunctionDecl,
    InitDecl,
    InputDecl,
    LocalDecl,
    Name,
    OutputDecl,
    ParamDecl,
    StateDecl,
    Statement,
    WeightsDecl,
)
from rnncc.ir.typed import ParameterType, Shape
from rnncc.language.diagnostics import Label
from rnncc.language.names import FUNCTIONS, instead_of_reserved, reserved
from rnncc.language.outside import OUTSIDE_TYPES
from rnncc.language.report import Report, Reported
from rnncc.language.source import NOWHERE, Span
from rnncc.language.spelling import article, closest
from rnncc.stages.check.elsewhere import report_outside
from rnncc.stages.check.first_input import first_input
from rnncc.stages.check.initialise import initialiser
from rnncc.stages.check.low_rank import LowRank, low_rank
from rnncc.stages.check.starts import Wanted, held, start
from rnncc.stages.check.static import NumberValue, Statics
from rnncc.stages.check.types import BUILT_IN, parameter_type


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared value: its width (None: the default), and where. A matrix has `columns`, and as many rows as it is
    wide."""

    width: Dim | None
    span: Span
    columns: Dim | None = None

    @property
    def shape(self) -> Shape:
        """The shape of a state or a local."""
        return Shape(self.width or HIDDEN_SIZE, self.columns, "changing" if self.columns else "vector")


@dataclass(frozen=True, slots=True)
class DeclaredParam:
    """A param, or a buffer (not `trained`)."""

    type: ParameterType
    initialiser: Initialiser
    span: Span
    trained: bool = True


@dataclass(frozen=True, slots=True)
class DeclaredConstant:
    value: NumberValue | str
    span: Span


@dataclass(slots=True)
class Symbols:
    """Every declaration of the cell `cell` by name. `kinds` says what each name is, `spans` where it stands."""

    cell: str
    statics: Statics
    inputs: dict[str, Declared] = field(default_factory=dict)
    first: str = "x"  # the input that every layer has
    defaults: dict[str, float] = field(default_factory=dict)  # of inputs
    per_sequence: set[str] = field(default_factory=set)  # inputs
    grids: dict[str, Grid] = field(default_factory=dict)  # of inputs that are matrices
    states: dict[str, Declared] = field(default_factory=dict)
    initial: dict[str, float | None] = field(default_factory=dict)
    diagonal: set[str] = field(default_factory=set)  # states that start at a multiple of the identity
    dims: dict[str, tuple[Dim | None, Span]] = field(default_factory=dict)
    constants: dict[str, DeclaredConstant] = field(default_factory=dict)
    locals: dict[str, Declared] = field(default_factory=dict)
    params: dict[str, DeclaredParam] = field(default_factory=dict)
    groups: dict[str, ParameterType] = field(default_factory=dict)
    low_rank: dict[str, LowRank] = field(default_factory=dict)  # groups that `groups` has as two, their factors
    inits: dict[str, tuple[Initialiser, Span]] = field(default_factory=dict)
    output: OutputDecl | None = None
    # Names whose declaration was reported, and as what: what depends on them stays quiet.
    ignored: dict[str, Reported] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)

    def reserved(self, name: str, kind: str = "") -> str:
        """Why a name may not be declared, or nothing. Another input in its place frees x."""
        free = name == "x" != self.first and kind not in ("input", "dim", "constant", "function")
        return "" if free else reserved(name, kind)


class _Declarer:
    def __init__(self, decl: CellDecl, shaping: Mapping[str, int | float | str], report: Report) -> None:
        self.report = report
        self.shaping = shaping
        self.symbols = Symbols(decl.name, Statics(report))
        self.symbols.groups.update(BUILT_IN)
        self.decl = decl

    def run(self) -> Symbols:
        statements = self.decl.statements
        self.symbols.first = first_input(statements, self.report)
        # Widths may name dims and constants that stand further down.
        for statement in statements:
            match statement:
                case DimDecl():
                    self._dim(statement)
                case ConstDecl():
                    self._constant(statement)
        for statement in statements:
            if isinstance(statement, DimDecl) and statement.value is not None:
                self._dim_default(statement.name, statement.value)
        for name in self.shaping:
            if name not in self.symbols.constants:
                self.report.error(
                    "RNN235",
                    f"'{name}' is not a constant of cell {self.decl.name}",
                    self.decl.name_span,
                    help=closest(name, self.symbols.constants) or self._constants(),
                )
        for statement in statements:
            self._declare(statement)
        self.symbols.statics.changing.update(_changing(statements, self.symbols.kinds))
        # x is the layer's first argument wherever it is declared.
        first = self.symbols.first
        given = self.symbols.inputs.pop(first, None)
        self.symbols.inputs = {first: given or Declared(INPUT_SIZE, NOWHERE), **self.symbols.inputs}
        if given is None:
            # A state x was reported: its equation is not wrong as well.
            self.symbols.kinds.setdefault(first, "input")
        if not self.symbols.states:
            self.report.error(
                "RNN231",
                f"cell {self.decl.name} has no state",
                self.decl.name_span,
                help="declare one, 'state h', and write 'h[t] = …'",
            )
        return self.symbols

    def _take(self, name: str, kind: str, span: Span, allowed: frozenset[str] = frozenset()) -> bool:
        """Enter a name; False (and an error) where it is taken. A reserved one is entered all the same: what uses it
        is not wrong as well."""
        why = self.symbols.reserved(name, kind)
        if why and name not in allowed:
            help = instead_of_reserved(name, kind)
            self.report.error("RNN217", f"'{name}' is {why}", span, "a reserved name", help)
        if name in self.symbols.kinds:
            self.report.error(
                "RNN218",
                f"'{name}' is declared twice: it is already {article(self.symbols.kinds[name])}",
                span,
                notes=(Label(self.symbols.spans[name], "first declared here"),),
            )
            return False
        self.symbols.kinds[name] = kind
        self.symbols.spans[name] = span
        return True

    def _dim(self, statement: DimDecl) -> None:
        if self._take(statement.name, "dim", statement.span):
            self.symbols.dims[statement.name] = (None, statement.span)
            self.symbols.statics.dims.add(statement.name)

    def _dim_default(self, name: str, written: Expression) -> None:
        """What a dim is where nobody gives it. It may read constants that stand further down."""
        default = self.symbols.statics.default(written, f"the size of '{name}'")
        if name in self.symbols.dims and not isinstance(default, Reported):
            self.symbols.dims[name] = (default, self.symbols.dims[name][1])

    def _constant(self, statement: ConstDecl) -> None:
        name, written = statement.name, statement.value
        value: NumberValue | str | Reported
        if isinstance(written, Name) and written.name in FUNCTIONS:
            value = written.name
        else:
            # An earlier constant that this one reads becomes shaping: another value of it means another build.
            help = (
                closest(written.name, FUNCTIONS | self.symbols.statics.constants.keys())
                if isinstance(written, Name)
                else ""
            )
            help = help or "a number, or the name of a function"
            value = self.symbols.statics.number(written, {}, f"the constant '{name}'", "RNN226", help)
            if isinstance(value, float) and math.isnan(value):
                value = self.report.error("RNN226", f"the constant '{name}' is not a number", written.span)
        if name in self.shaping and not isinstance(value, Reported):
            value = self._override(statement, value)
        if self._take(name, "constant", statement.span):
            # After an error any number does: it keeps what depends on the name quiet.
            value = 1 if isinstance(value, Reported) else value
            self.symbols.constants[name] = DeclaredConstant(value, statement.span)
            if isinstance(value, str):
                self.symbols.statics.shaping.add(name)
            else:
                self.symbols.statics.constants[name] = value

    def _constants(self) -> str:
        """Which constants there are."""
        names = ", ".join(f"'{name}'" for name in self.symbols.constants)
        return f"it has {names}" if names else "it has no constants"

    def _override(self, statement: ConstDecl, value: NumberValue | str) -> NumberValue | str:
        given = self.shaping[statement.name]
        if isinstance(value, str):
            if isinstance(given, str) and given in FUNCTIONS:
                return given
            expected = "the name of a function"
        else:
            if isinstance(given, (int, float)) and not isinstance(given, bool) and not math.isnan(_as_float(given)):
                return given
            expected = "a number"
        is_long = isinstance(given, int) and abs(given) >> 64  # Python may refuse to write it out
        shown = "an integer beyond every float" if is_long else repr(given)
        message = f"the constant '{statement.name}' must be {expected}, not {shown}"
        help = closest(str(given), FUNCTIONS) if isinstance(value, str) else ""
        self.report.error("RNN235", message, statement.span, help=help)
        return value

    def _declare(self, statement: Statement) -> None:
        symbols = self.symbols
        match statement:
            case InputDecl(name, width, default, per_sequence):
                given, columns = self._shape(width, name)
                grid = None if given is None or columns is None else Grid(given, columns)
                if grid is not None and not per_sequence:
                    self._matrix_at_steps(name, grid, statement.span)
                if self._take(name, "input", statement.span, frozenset({symbols.first})):
                    symbols.inputs[name] = Declared(grid.width if grid else given or INPUT_SIZE, statement.span)
                    if grid is not None:
                        symbols.grids[name] = grid
                    if default is not None:
                        symbols.defaults[name] = self._default(name, default)
                    if per_sequence:
                        self._per_sequence(name, statement.span)
            case StateDecl(name, width, initial):
                given, columns = self._shape(width, name)
                if self._take(name, "state", statement.span):
                    symbols.states[name] = Declared(given or HIDDEN_SIZE, statement.span, columns)
                    symbols.initial[name] = self._initial(name, initial)
            case LocalDecl(name, width):
                given, columns = self._shape(width, name)
                if self._take(name, "local", statement.span):
                    symbols.locals[name] = Declared(given, statement.span, columns)
            case ParamDecl(name, written, initial, trained):
                kind = "param" if trained else "buffer"
                type_ = parameter_type(written, symbols.statics, self.report)
                start = Initialiser() if initial is None else initialiser(initial, symbols.statics, self.report)
                if isinstance(type_, ParameterType) and type_.rank is not None:
                    message = f"'lowrank' is a type of weights, not of a {kind}"
                    help = f"write 'weights {name}: lowrank(…)'"
                    type_ = self.report.error("RNN227", message, written.span, help=help)
                if not self._take(name, kind, statement.span):
                    return
                if isinstance(type_, Reported):
                    symbols.ignored[name] = type_
                else:
                    symbols.params[name] = DeclaredParam(type_, start, statement.span, trained)
            case WeightsDecl():
                self._weights(statement)
            case FunctionDecl(name):
                self._take(name, "function", statement.span)
            case OutputDecl():
                if symbols.output is not None:
                    first = Label(symbols.output.span, "the first output")
                    message = "a cell has one output"
                    self.report.error("RNN232", message, statement.span, notes=(first,))
                else:
                    symbols.output = statement
            case InitDecl(name, value):
                start = initialiser(value, symbols.statics, self.report)
                if name in symbols.inits:
                    first = Label(symbols.inits[name][1], "first here")
                    self.report.error("RNN224", f"'{name}' is initialised twice", statement.span, notes=(first,))
                else:
                    symbols.inits[name] = (start, statement.span)
            case DimDecl() | ConstDecl() | EquationDecl() | ForDecl():
                pass
            case _:
                assert_never(statement)

    def _weights(self, statement: WeightsDecl) -> None:
        name, written = statement.name, statement.type
        type_ = parameter_type(written, self.symbols.statics, self.report)
        if name in BUILT_IN and isinstance(type_, ParameterType) and type_.is_matrix != BUILT_IN[name].is_matrix:
            kind = "matrix" if BUILT_IN[name].is_matrix else "vector"
            message = f"'{name}' is a {kind} and cannot become '{written.name}'"
            self.report.error("RNN227", message, written.span, help="declare a group of another name")
        elif self._take(name, "group", statement.span, frozenset(BUILT_IN)):
            if isinstance(type_, Reported):
                self.symbols.ignored[name] = type_
            else:
                self._group(name, type_)

    def _group(self, name: str, type_: ParameterType) -> None:
        if type_.rank is None:
            self.symbols.groups[name] = type_
            return
        made = self.symbols.low_rank[name] = low_rank(name, type_)
        self.symbols.groups.pop(name, None)
        self.symbols.groups[made.left], self.symbols.groups[made.right] = made.types

    def _shape(self, written: Expression | None, name: str) -> tuple[Dim | None, Dim | None]:
        """The width of a state or local, and its columns where it is a `matrix(rows, columns)`."""
        called = written.name if isinstance(written, Name) else getattr(written, "function", None)
        if written is None or called != "matrix" or called in self.symbols.kinds:
            return self._width(written, f"the width of '{name}'"), None
        if not isinstance(written, Call) or len(written.arguments) != 2 or written.keywords:
            help = f"write '{name}: matrix(H, K)' with a size 'dim K = H'"
            self.report.error("RNN227", "a matrix has rows and columns", written.span, "no size", help)
            return HIDDEN_SIZE, HIDDEN_SIZE
        sides = zip(written.arguments, ("rows", "columns"), strict=True)
        rows, columns = (self._width(side, f"the number of {what} of '{name}'") or HIDDEN_SIZE for side, what in sides)
        return rows, columns

    def _width(self, expression: Expression | None, what: str) -> Dim | None:
        """A width; the default after an error."""
        if expression is None:
            return None
        named = expression.name if isinstance(expression, Name) else getattr(expression, "function", None)
        if named in OUTSIDE_TYPES and named not in self.symbols.kinds:
            report_outside(OUTSIDE_TYPES[named], expression.span, self.report)
            return None
        found = self.symbols.statics.dim(expression, what)
        return None if isinstance(found, Reported) else found

    def _initial(self, name: str, expression: Expression | None) -> float | None:
        initial, diagonal = start(name, self.symbols.states[name].shape, expression, self.symbols.statics)
        if diagonal:
            self.symbols.diagonal.add(name)
        return initial

    def _default(self, name: str, expression: Expression) -> float:
        if name == self.symbols.first:
            message = f"'{name}' has no default: it gives the number of steps and the batch size"
            self.report.error("RNN238", message, expression.span, "every call gives it")
        wanted = Wanted(f"the default of '{name}'", "RNN238", "a number", "no such number")
        return held(expression, wanted, self.symbols.statics)

    def _matrix_at_steps(self, name: str, grid: Grid, span: Span) -> None:
        rows, columns = map(dims.show, grid.sides)
        message = f"a matrix is given per sequence: '{name}' would have {rows} x {columns} numbers at every step"
        vector = f"declare a vector and write 'unflatten({name}, {rows}, {columns})' in equations"
        matrix = f"write 'input {name}: matrix({rows}, {columns}) per sequence', or "
        help = vector if name == self.symbols.first else matrix + vector
        self.report.error("RNN238", message, span, "a matrix at every step", help)

    def _per_sequence(self, name: str, span: Span) -> None:
        if name == self.symbols.first:
            message = f"'{name}' is given at every step: it says how many steps there are"
            help = "declare another input: 'input c: 64 per sequence'"
            self.report.error("RNN238", message, span, "not per sequence", help)
        else:
            self.symbols.per_sequence.add(name)


def _changing(statements: tuple[Statement, ...], kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The names that have values at run time, and what each is."""
    yield from ((name, kind) for name, kind in kinds.items() if kind in ("input", "state", "param", "buffer", "group"))
    for statement in statements:
        match statement:
            case EquationDecl(targets):
                yield from ((target.name, kinds.get(target.name, "value")) for target in targets)
            case ForDecl(_, _, _, body):
                yield from _changing(body, {})


def _as_float(given: float) -> float:
    """The number, or NaN for an integer that no float holds."""
    try:
        return float(given)
    except OverflowError:
        return math.nan


def declare(decl: CellDecl, shaping: Mapping[str, int | float | str], report: Report) -> Symbols:
    """Read the declarations; see the module's docstring. `shaping` overrides constants."""
    return _Declarer(decl, shaping, report).run()
