"""The elementwise functions of a program, as the CPU's driver calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.dim import Dim
from rnncc.ir.step import Access, MatrixStage, TileStage
from rnncc.language.diagnostics import InternalError
from rnncc.stages.render.called import called
from rnncc.stages.render.cpp.expressions import expression_text
from rnncc.stages.render.cpp.names import slot_name
from rnncc.stages.render.cpp.tables import dims_of
from rnncc.stages.render.programs import NamedProgram


@dataclass(frozen=True, slots=True)
class StageFunction:
    """An elementwise function. The lines `constants` stand at its start, and `entries` at the start of the loop over
    batch entries. `lines` are the body of the loop over units."""

    name: str
    constants: tuple[str, ...]
    entries: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatrixFunction:
    """A function of a matrix's elements. A few rows are worked on side by side. The lines `heads` stand where a block
    begins, `rows` where a few rows do. In the loop over columns, `columns` stand before the rows, `lines` are done for
    each of them, and `sums` follow; `totals` stand at the end of the rows. `rows_dim` and `columns_dim` say how many
    there are."""

    name: str
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
class ProgramFunctions:
    """A program's functions: those of units, those of matrices, and the names of both in the order of their stages.
    `called` are the library's functions that these call."""

    name: str
    called: tuple[str, ...]
    functions: tuple[StageFunction, ...]
    matrices: tuple[MatrixFunction, ...]
    order: tuple[str, ...]


def program_functions(named: NamedProgram, source: str) -> ProgramFunctions:
    """The elementwise functions of a program."""
    program = named.program
    calls = called(program)
    text = _Text(program.step.constants, source, calls.forms, dims_of(program))
    names = [f"function_{index}" for index in range(len(program.step.elementwise))]
    units, matrices = [], []
    for name, stage in zip(names, program.step.elementwise, strict=True):
        match stage:
            case TileStage():
                units.append(_function(name, stage, text))
            case MatrixStage():
                matrices.append(_matrix_function(name, stage, text))
            case _:
                assert_never(stage)
    return ProgramFunctions(named.name, calls.names, tuple(units), tuple(matrices), tuple(names))


@dataclass(frozen=True, slots=True)
class _Text:
    """What the functions of a program have in common: its constants, the name of the text, the forms of operators that
    are called, and the places of dims."""

    constants: Sequence[str]
    source: str
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


def _matrix_function(name: str, stage: MatrixStage, text: _Text) -> MatrixFunction:
    """The statements of a stage as a function of batch entries and heads."""
    heads, rows, columns, lines, sums, totals = [], [], [], [], [], []
    steps = {Access.UNIT: "rows__ * columns__", Access.ROW: "rows__", Access.COLUMN: "columns__"}
    for load in stage.loads:
        start, local = _row_of(load.name), load.local
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
    heads += [f"T* const {stored}__to = {_row_of(stored)} + h__ * rows__ * columns__;" for stored in stage.stored]
    lines += text.statements(stage, "at__")
    for reduction in stage.reductions:
        target, largest = reduction.target, str(reduction.largest).lower()
        heads.append(f"T* const {target}__to = {_row_of(target)} + h__ * {steps[reduction.axis]};")
        if reduction.axis is Access.ROW:
            rows.append(f"auto {target}__all = rnncc::no_rows<T, R__, {largest}>();")
            lines.append(f"rnncc::join<W__, {largest}>({target}__all.row[r__], {reduction.source}, n__);")
            totals.append(f"rnncc::put_rows<{largest}>({target}__to + i__, {target}__all);")
        else:
            columns.append(f"rnncc::Vec<T> {target}__all = rnncc::nothing<T, {largest}>();")
            lines.append(f"{target}__all = rnncc::joined<{largest}>({target}__all, {reduction.source});")
            sums.append(f"rnncc::join_row<W__, {largest}>({target}__to, u__, {target}__all, n__, i__ == 0);")
    rows_dim, columns_dim = (str(text.dims[side]) for side in stage.grid.sides)
    constants = text.of_constants(stage.constants)
    return MatrixFunction(
        name, rows_dim, columns_dim, constants, *(map(tuple, (heads, rows, columns, lines, sums, totals)))
    )


def _function(name: str, stage: TileStage, text: _Text) -> StageFunction:
    """The statements of a stage as a function of batch entries and units."""
    entries, lines = [], []
    for load in stage.loads:
        start = _row_of(load.name)
        match load.access:
            case Access.UNIT:
                entries.append(f"const T* const {load.name}__p = {start};")
            case Access.HEAD:
                entries.append(f"const rnncc::Vec<T> {load.name} = rnncc::broadcast({start}[head__]);")
            case Access.ONE:
                entries.append(f"const rnncc::Vec<T> {load.name} = rnncc::broadcast(*{start});")
            case _:
                raise InternalError(f"{load.name} is read by {load.access.value} in a stage of units")
    entries += [f"T* const {name}__to = {_row_of(name)};" for name in stage.stored]
    lines += [
        f"const rnncc::Vec<T> {load.name} = rnncc::take<W__>({load.name}__p, u__, n__);"
        for load in stage.loads
        if load.access is Access.UNIT
    ]
    lines += text.statements(stage, "u__")
    return StageFunction(name, text.of_constants(stage.constants), tuple(entries), tuple(lines))


def _row_of(slot: str) -> str:
    """Where the batch entry's row of a slot starts."""
    return f"frame__.at({slot_name(slot)}, b__)"
