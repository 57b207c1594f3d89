"""The elementwise functions of a cell's programs, as the CPU's driver calls them.

Stages that differ in names alone run one function, which takes the numbers of their slots: the turns of a loop in the
text, several norms, what the forward and the backward both compute. So a compiler has less to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.dim import Dim
from rnncc.ir.step import Access, MatrixStage, TileStage
from rnncc.language.diagnostics import InternalError
from rnncc.stages.render.called import called
from rnncc.stages.render.cpp.expressions import expression_text
from rnncc.stages.render.cpp.nameless import nameless, slots_of
from rnncc.stages.render.cpp.names import slot_name
from rnncc.stages.render.cpp.tables import dims_of
from rnncc.stages.render.notation import listed
from rnncc.stages.render.programs import NamedProgram


@dataclass(frozen=True, slots=True)
class UnitFunction:
    """A function of units. The lines `constants` stand at its start, and `entries` at the start of the loop over batch
    entries. `lines` are the body of the loop over units. `called`: functions of the library that may be called."""

    name: str
    called: tuple[str, ...]
    constants: tuple[str, ...]
    entries: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatrixFunction:
    """A function of a matrix's elements. A few rows are worked on side by side. The lines `heads` stand where a block
    begins, `rows` where a few rows do. In the loop over columns, `columns` stand before the rows, `lines` are done for
    each of them, and `sums` follow; `totals` stand at the end of the rows. `rows_dim` and `columns_dim` say how many
    there are. `called` and `constants`: as a function of units has them."""

    name: str
    called: tuple[str, ...]
    rows_dim: str
    columns_dim: str
    constants: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    sums: tuple[str, ...]
    totals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace of functions: those that several stages share, or a program with the functions of one stage each.
    `called`: functions of the library that these call. `order`: what each stage of a program runs."""

    name: str
    is_shared: bool
    called: tuple[str, ...]
    units: tuple[UnitFunction, ...]
    matrices: tuple[MatrixFunction, ...]
    order: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """What stands above it."""
        return "// Functions of several stages, which pass the numbers of their slots.\n" * self.is_shared

    @property
    def attribute(self) -> str:
        """What stands above each function: a compiler would put copies of a shared one in its callers, and two files
        of a library may have it in common."""
        return "__attribute__((noinline))\n" if self.is_shared else "static "

    @property
    def parameter(self) -> str:
        """The last parameter of each function, if it is one that others have not."""
        return ", const int16_t* slots__" * self.is_shared

    @property
    def program(self) -> str:
        """The program in C++, if this is one."""
        return "" if self.is_shared else "{tables, functions<T>}" if self.order else "{tables, nullptr}"


def spaces_of(name: str, programs: Sequence[NamedProgram], source: str) -> tuple[list[Space], tuple[str, ...]]:
    """The elementwise functions of a cell's programs, of a text `source`, and the names of those that both plain and
    masked programs run: where both are compiled for one library, they are compiled once. The functions of several
    stages come first, those of plain and of masked programs in a namespace each; `name`: of the first."""
    drafts = {named.name: [*_drafts(named, source)] for named in programs}
    masked = {named.name: named.program.step.masked for named in programs}
    times = {
        kind: Counter(draft.shape for program, own in drafts.items() if masked[program] == kind for draft in own)
        for kind in (False, True)
    }
    shared: dict[bool, dict[UnitFunction | MatrixFunction, UnitFunction | MatrixFunction]] = {False: {}, True: {}}
    names = {False: name, True: f"{name.removesuffix('_shared')}_masked_shared"}
    made, both = [], []
    for program, own in drafts.items():
        functions, order = [], []
        for index, draft in enumerate(own):
            is_lent = all(draft.shape in times[kind] for kind in (False, True))
            kind = masked[program] and not is_lent
            if not is_lent and times[kind][draft.shape] == 1:
                functions.append(draft.function(f"function_{index}"))
                order.append(f"function_{index}<T>")
                continue
            known = shared[kind]
            if draft.shape not in known:
                known[draft.shape] = draft.shared(f"function_{len(known)}")
                both += [known[draft.shape].name] * is_lent
            function = f"{names[kind]}::{known[draft.shape].name}"
            order.append(listed(f"with_slots<T, {function}<T>, ", map(slot_name, draft.slots.values()), ">", 8))
        made.append(Space(program, False, *_by_kind(functions), tuple(order)))
    found = [Space(names[kind], True, *_by_kind(own.values())) for kind, own in shared.items() if own]
    return [*found, *made], tuple(both)


def _by_kind(
    functions: Iterable[UnitFunction | MatrixFunction],
) -> tuple[tuple[str, ...], tuple[UnitFunction, ...], tuple[MatrixFunction, ...]]:
    """What functions call, those of units, and those of matrices."""
    found = tuple(functions)
    called_ones = tuple(dict.fromkeys(name for function in found for name in function.called))
    units = tuple(function for function in found if isinstance(function, UnitFunction))
    return called_ones, units, tuple(function for function in found if isinstance(function, MatrixFunction))


@dataclass(frozen=True, slots=True)
class _Draft:
    """A stage before its function is written. `slots`: those that the function reads and writes, by what the stage
    calls them. `shape`: the function without the stage's names."""

    stage: TileStage | MatrixStage
    text: _Text
    slots: Mapping[str, str]
    shape: UnitFunction | MatrixFunction

    def function(self, name: str) -> UnitFunction | MatrixFunction:
        """The function of this stage alone."""
        return _function(name, self.stage, self.text, {local: slot_name(slot) for local, slot in self.slots.items()})

    def shared(self, name: str) -> UnitFunction | MatrixFunction:
        """The function of all stages of this shape, with the names that this one has."""
        return _function(name, self.stage, self.text, _numbers(self.slots))


def _drafts(named: NamedProgram, source: str) -> Iterator[_Draft]:
    program = named.program
    calls = called(program)
    text = _Text(program.step.constants, source, calls.names, calls.forms, dims_of(program))
    for stage in program.step.elementwise:
        bare, names = nameless(stage)
        slots = slots_of(stage)
        ordered = {local: slots[local] for local in names if local in slots}
        shape = _function("", bare, text, _numbers(names[local] for local in ordered))
        yield _Draft(stage, text, ordered, shape)


def _numbers(names: Iterable[str]) -> dict[str, str]:
    """The slots of a function that takes their numbers."""
    return {name: f"slots__[{index}]" for index, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class _Text:
    """What the functions of a program have in common: its constants, the name of the text, the library's functions and
    the forms of operators that are called, and the places of dims."""

    constants: Sequence[str]
    source: str
    called: tuple[str, ...]
    forms: Mapping[str, str]
    dims: Mapping[Dim, int]

    def of_constants(self, names: Sequence[str]) -> tuple[str, ...]:
        """Lines that take over constants."""
        return tuple(
            # A surrogate's factor is read in the backward alone.
            f"[[maybe_unused]] const rnncc::Vec<T> {constant} = "
            f"rnncc::broadcast(frame__.constants[{self.constants.index(constant)}]);"
            for constant in names
        )

    def statements(self, stage: TileStage | MatrixStage, at: str) -> Iterator[str]:
        """Lines that compute the statements for a vector of units, and store what is stored, at a place."""
        for statement in stage.statements:
            origin = f"  // {self.source}:{statement.line}" if statement.line else ""
            text = expression_text(statement.expr, self.forms)
            yield f"const rnncc::Vec<T> {statement.target} = {text};{origin}"
            if statement.target in stage.stored:
                yield f"rnncc::put<W__>({statement.target}__to, {at}, {statement.target}, n__);"


def _function(
    name: str, stage: TileStage | MatrixStage, text: _Text, slots: Mapping[str, str]
) -> UnitFunction | MatrixFunction:
    """A stage as a function. `slots`: the numbers of those that it reads and writes, as C++."""
    match stage:
        case TileStage():
            return _unit_function(name, stage, text, slots)
        case MatrixStage():
            return _matrix_function(name, stage, text, slots)
        case _:
            assert_never(stage)


def _matrix_function(name: str, stage: MatrixStage, text: _Text, slots: Mapping[str, str]) -> MatrixFunction:
    """The statements of a stage as a function of batch entries and heads. `slots`: as `_function` has them."""
    heads, rows, columns, lines, sums, totals = [], [], [], [], [], []
    starts = {local: f"frame__.at({slot}, b__)" for local, slot in slots.items()}
    steps = {Access.UNIT: "rows__ * columns__", Access.ROW: "rows__", Access.COLUMN: "columns__"}
    for load in stage.loads:
        start, local = starts[load.local], load.local
        match load.access:
            case Access.HEAD:
                heads.append(f"const rnncc::Vec<T> {local} = rnncc::broadcast({start}[h__]);")
            case Access.ONE:
                heads.append(f"const rnncc::Vec<T> {local} = rnncc::broadcast(*{start});")
            case Access.UNIT | Access.ROW | Access.COLUMN:
                heads.append(f"const T* const {local}__p = {start} + h__ * {steps[load.access]};")
            case _:
                assert_never(load.access)
        match load.access:
            case Access.ROW:
                rows.append(f"const auto {local}__rows = rnncc::broadcast_rows<R__>({local}__p + i__);")
                lines.append(f"const rnncc::Vec<T> {local} = {local}__rows.row[r__];")
            case Access.COLUMN:
                columns.append(f"const rnncc::Vec<T> {local} = rnncc::take<W__>({local}__p, u__, n__);")
            case Access.UNIT:
                lines.append(f"const rnncc::Vec<T> {local} = rnncc::take<W__>({local}__p, at__, n__);")
    heads += [f"T* const {stored}__to = {starts[stored]} + h__ * rows__ * columns__;" for stored in stage.stored]
    lines += text.statements(stage, "at__")
    number = 0  # of vectors of columns
    for reduction in stage.reductions:
        target, largest = reduction.target, str(reduction.largest).lower()
        if reduction.axis is Access.ROW:
            heads.append(f"T* const {target}__to = {starts[target]} + h__ * rows__;")
            rows.append(f"auto {target}__all = rnncc::no_rows<T, R__, {largest}>();")
            lines.append(f"rnncc::join<W__, {largest}>({target}__all.row[r__], {reduction.source}, n__);")
            totals.append(f"rnncc::put_rows<{largest}>({target}__to + i__, {target}__all);")
        else:
            start = f"frame__.columns_at({slots[target]}, b__, {number})"
            number += 1
            heads.append(f"T* const {target}__to = {start} + h__ * columns__;")
            columns.append(f"rnncc::Vec<T> {target}__all = rnncc::nothing<T, {largest}>();")
            lines.append(f"{target}__all = rnncc::joined<{largest}>({target}__all, {reduction.source});")
            sums.append(
                f"rnncc::join_row<W__, {largest}>({target}__to, u__, {target}__all, n__, i__ == frame__.first_row);"
            )
    rows_dim, columns_dim = (str(text.dims[side]) for side in stage.grid.sides)
    constants = text.of_constants(stage.constants)
    return MatrixFunction(
        name, text.called, rows_dim, columns_dim, constants, *(map(tuple, (heads, rows, columns, lines, sums, totals)))
    )


def _unit_function(name: str, stage: TileStage, text: _Text, slots: Mapping[str, str]) -> UnitFunction:
    """The statements of a stage as a function of batch entries and units. `slots`: as `_function` has them."""
    entries, lines = [], []
    starts = {local: f"frame__.at({slot}, b__)" for local, slot in slots.items()}
    for load in stage.loads:
        start = starts[load.local]
        match load.access:
            case Access.UNIT:
                entries.append(f"const T* const {load.name}__p = {start};")
            case Access.HEAD:
                entries.append(f"const rnncc::Vec<T> {load.name} = rnncc::broadcast({start}[head__]);")
            case Access.ONE:
                entries.append(f"const rnncc::Vec<T> {load.name} = rnncc::broadcast(*{start});")
            case _:
                raise InternalError(f"{load.name} is read by {load.access.value} in a stage of units")
    entries += [f"T* const {name}__to = {starts[name]};" for name in stage.stored]
    lines += [
        f"const rnncc::Vec<T> {load.name} = rnncc::take<W__>({load.name}__p, u__, n__);"
        for load in stage.loads
        if load.access is Access.UNIT
    ]
    lines += text.statements(stage, "u__")
    return UnitFunction(name, text.called, text.of_constants(stage.constants), tuple(entries), tuple(lines))
