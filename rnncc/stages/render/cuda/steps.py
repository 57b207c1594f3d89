"""The `Step` of a loop as CUDA text: what templates/include/rnncc/cuda/fused/step.cuh asks of a fused one, and
…/scan/lanes.cuh of one without products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rnncc.ir.expr import references
from rnncc.ir.fused import FusedLoop, FusedStatement, FusedWrite
from rnncc.ir.kernel import Table
from rnncc.ir.scan import ScanLoop, entries, row_values, slopes
from rnncc.language.operators import OPERATORS
from rnncc.stages.render.cpp.expressions import expression_text

# The forms of fast.cuh, of which a kernel chooses by its dtype.
_FAST = {name: f"fast__::{row.fast}" for name, row in OPERATORS.items() if row.fast}


@dataclass(frozen=True, slots=True)
class StepConstant:
    """A constant of the struct."""

    type: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class StepFunction:
    """`start` or `finish`."""

    name: str
    parameters: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepStruct:
    """What the template of a step prints."""

    name: str
    numbers: tuple[StepConstant, ...]
    functions: tuple[StepFunction, ...]


def fused_step(name: str, loop: FusedLoop, writes: Sequence[FusedWrite], source: str) -> StepStruct:
    """The step that writes `writes`."""
    edges = len(loop.edges)
    counts = (
        ("SUMS", len(loop.sums)),
        ("OPERANDS", len(loop.operands)),
        ("EDGES", edges),
        ("CARRIES", edges + len(loop.kept)),
        ("READS", len(loop.reads)),
        ("ROW_READS", len(loop.rows)),
        ("VECTORS", len(loop.vectors)),
        ("CONSTANTS", len(loop.constants)),
        ("WRITES", len(writes)),
    )
    sets = (
        ("READ_FLOAT", _set(read.place.table is Table.SAVED for read in loop.reads)),
        ("READ_SHIFTED", _set(read.edge is not None for read in loop.reads)),
        ("WRITE_FLOAT", _set(write.place is not None and write.place.table is Table.SAVED for write in writes)),
        ("WRITE_AT_START", _set(write.at_start for write in writes)),
    )
    given = [*_carried(loop), *_read(loop)]
    carries = [f"carry__[{edges + i}]" for i in range(len(loop.kept))]
    start = [
        *given,
        *_statements(loop.start, source),
        *(f"operand__[{i}] = {operand};" for i, operand in enumerate(loop.operands)),
        *(f"{carry} = {value};" for carry, value in zip(carries, loop.kept, strict=True)),
        *_writes(writes, lambda write: write.at_start),
    ]
    finish = [
        *given,
        *(f"[[maybe_unused]] const float {v} = {carry};" for carry, v in zip(carries, loop.kept, strict=True)),
        *(f"const float {name} = sum__[{i}];" for i, name in enumerate(loop.sums)),
        *_statements(loop.finish, source),
        *_writes(writes, lambda write: not write.at_start),
        *(f"carry__[{i}] = {edge.link};" for i, edge in enumerate(loop.edges)),
    ]
    common = _common(loop)
    carry = f"[[maybe_unused]] float (&carry__)[{max(edges + len(loop.kept), 1)}]"
    write = f"[[maybe_unused]] float (&write__)[{max(len(writes), 1)}]"
    return StepStruct(
        name,
        (
            *(StepConstant("int", key, str(value)) for key, value in counts),
            *(StepConstant("uint64_t", key, f"{value}u") for key, value in sets),
            _flag("TRANSPOSED", loop.transposed),
            _flag("MASKED", loop.masked),
        ),
        (
            StepFunction(
                "start", f"{common}, {carry}, float (&operand__)[{len(loop.operands)}], {write}", tuple(start)
            ),
            StepFunction(
                "finish", f"const float (&sum__)[{len(loop.sums)}], {common}, {carry}, {write}", tuple(finish)
            ),
        ),
    )


def scan_step(name: str, loop: ScanLoop, source: str) -> StepStruct:
    """The step of a loop without products; of a walk also its tangent, if it has one."""
    edges, totals = len(loop.edges), len(loop.totals)
    derived = loop.map or loop.tangent
    matrix = derived.matrix if derived else ()
    counts = (
        ("EDGES", edges),
        ("READS", len(loop.reads)),
        ("ROW_READS", len(loop.rows)),
        ("VECTORS", len(loop.vectors)),
        ("CONSTANTS", len(loop.constants)),
        ("WRITES", len(loop.writes)),
        ("TOTALS", totals),
        ("KEPT", len(loop.kept)),
    )
    sets = (
        ("READ_FLOAT", _set(read.place.table is Table.SAVED for read in loop.reads)),
        ("READ_SHIFTED", _set(read.edge is not None for read in loop.reads)),
        ("WRITE_FLOAT", _set(write.place is not None and write.place.table is Table.SAVED for write in loop.writes)),
        ("SLOPES", _set(slopes(matrix))),
        ("ENTRIES", _set(entries(matrix))),
    )
    kept = [f"const float {name} = kept__[{i}];" for i, name in enumerate(loop.kept)]
    step = [
        *_carried(loop),
        *_read(loop),
        *kept,
        *_statements((s for s in loop.statements if s.target not in loop.kept), source),
        *_writes(loop.writes, lambda write: True),
        *(f"total__[{i}] += {value};" for i, value in enumerate(loop.totals)),
        *(f"carry__[{i}] = {edge.link};" for i, edge in enumerate(loop.edges)),
    ]
    common = f"{_common(loop)}, [[maybe_unused]] const float (&kept__)[{max(len(loop.kept), 1)}]"
    functions = [
        StepFunction(
            "step",
            f"{common}, float (&carry__)[{edges}], [[maybe_unused]] float (&write__)[{max(len(loop.writes), 1)}], "
            f"[[maybe_unused]] float (&total__)[{max(totals, 1)}]",
            tuple(step),
        )
    ]
    slope = [
        f"slope__[{i}][{j}] = {'0.0f' if slope is None else expression_text(slope, _FAST)};"
        for i, row in enumerate(matrix)
        for j, slope in enumerate(row)
    ]
    if loop.tangent:
        lines = [
            *_carried(loop),
            *_read(loop),
            *_statements((*loop.statements, *loop.tangent.statements), source),
            *slope,
            *(f"carry__[{i}] = {edge.link};" for i, edge in enumerate(loop.edges)),
        ]
        parameters = f"{_common(loop)}, float (&carry__)[{edges}], float (&slope__)[{edges}][{edges}]"
        functions.append(StepFunction("tangent", parameters, tuple(lines)))
    if loop.map:
        lines = [
            *_read(loop),
            *kept,
            *_statements((s for s in loop.map.statements if s.target not in loop.kept), source),
            *slope,
            *(f"offset__[{i}] = {expression_text(offset, _FAST)};" for i, offset in enumerate(loop.map.offset)),
        ]
        parameters = f"{common}, float (&slope__)[{edges}][{edges}], float (&offset__)[{edges}]"
        functions.append(StepFunction("map", parameters, tuple(lines)))
        lines = [
            *_read(loop),
            *_statements(_needed(loop.map.statements, loop.kept), source),
            *(f"kept__[{i}] = {name};" for i, name in enumerate(loop.kept)),
        ]
        parameters = f"{_common(loop)}, [[maybe_unused]] float (&kept__)[{max(len(loop.kept), 1)}]"
        functions.append(StepFunction("prepare", parameters, tuple(lines)))
    numbers = (
        *(StepConstant("int", key, str(value)) for key, value in counts),
        *(StepConstant("uint64_t", key, f"{value}u") for key, value in sets),
        _flag("MASKED", loop.masked),
    )
    return StepStruct(name, numbers, tuple(functions))


def _needed(statements: Sequence[FusedStatement], names: Iterable[str]) -> list[FusedStatement]:
    """The statements that the names need, in order."""
    wanted, found = set(names), []
    for statement in reversed(statements):
        if statement.target in wanted:
            wanted.update(references(statement.expr))
            found.append(statement)
    return found[::-1]


def _carried(loop: FusedLoop | ScanLoop) -> list[str]:
    return [f"[[maybe_unused]] const float {edge.name} = carry__[{i}];" for i, edge in enumerate(loop.edges)]


def _read(loop: FusedLoop | ScanLoop) -> list[str]:
    return [
        *(f"[[maybe_unused]] const float {read.name} = read__[{i}];" for i, read in enumerate(loop.reads)),
        *(f"[[maybe_unused]] const float {name} = row__[{i}];" for i, name in enumerate(row_values(loop))),
        *(f"[[maybe_unused]] const float {vector.name} = vector__[{i}];" for i, vector in enumerate(loop.vectors)),
        *(f"[[maybe_unused]] const float {name} = constant__[{i}];" for i, name in enumerate(loop.constants)),
    ]


def _common(loop: FusedLoop | ScanLoop) -> str:
    """The parameters of every function of a step."""
    return ", ".join(
        f"[[maybe_unused]] const float (&{array}__)[{max(size, 1)}]"
        for array, size in (
            ("read", len(loop.reads)),
            ("row", len(row_values(loop))),
            ("vector", len(loop.vectors)),
            ("constant", (max(len(loop.constants), 1) + 1) // 2 * 2),
        )
    )


def _statements(statements: Iterable[FusedStatement], source: str) -> list[str]:
    return [
        f"[[maybe_unused]] const float {statement.target} = {expression_text(statement.expr, _FAST)};"
        + (f"  // {source}:{statement.line}" if statement.line else "")
        for statement in statements
    ]


def _writes(writes: Sequence[FusedWrite], wanted: Callable[[FusedWrite], bool]) -> list[str]:
    return [f"write__[{i}] = {write.value};" for i, write in enumerate(writes) if wanted(write)]


def _flag(name: str, value: bool) -> StepConstant:
    return StepConstant("bool", name, str(value).lower())


def _set(members: Iterable[bool]) -> int:
    return sum(1 << i for i, member in enumerate(members) if member)
