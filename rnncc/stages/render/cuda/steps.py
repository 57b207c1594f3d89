"""The `Step` of a loop as CUDA text. cuda/fused/device/call.cuh says what the step of a fused loop
must have, and …/scan/lanes.cuh the same of a loop without products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import assert_never

from rnncc.ir.expr import Expr, references
from rnncc.ir.fused import FusedLoop, FusedPhase, FusedReduction, FusedWrite, ReductionKind
from rnncc.ir.scan import AffineMap, Matrix, ScanLoop, Tangent, entries, row_values, slopes
from rnncc.ir.step import Statement
from rnncc.language.operators import OPERATORS
from rnncc.stages.render.cpp.expressions import expression_text
from rnncc.stages.render.cuda.step_constants import (
    StepConstant,
    bits,
    flag,
    float_tensors,
    fused_constants,
    numbers,
    tensor_counts,
)
from rnncc.stages.render.notation import listed

# Operators that have a form in fast.cuh, which chooses by the kernel's dtype.
_FAST = {name: f"fast__::{row.fast}" for name, row in OPERATORS.items() if row.fast}


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A function of the struct: the stages of a fused step (`start`, `middle`, `finish`), `step`, `tangent`, `map` and
    `prepare` of one without products."""

    head: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepStruct:
    """What the template of a step prints."""

    name: str
    constants: tuple[StepConstant, ...]
    functions: tuple[StepFunction, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a function. It makes a value, or else sets an entry of an array for the caller."""

    code: str
    reads: tuple[str, ...] = ()
    makes: str = ""


@dataclass(frozen=True, slots=True)
class _Array:
    """A parameter that is an array of `size` numbers, or one where there are none."""

    type: str
    name: str
    size: int
    is_square: bool = False

    @property
    def extent(self) -> str:
        """Its size in C++."""
        return f"[{max(self.size, 1)}]" * (2 if self.is_square else 1)


def fused_step(name: str, loop: FusedLoop, source: str) -> StepStruct:
    """Makes the step of a fused loop."""
    functions = (_stage(loop, stage, source) for stage in range(len(loop.stages)))
    return StepStruct(name, tuple(fused_constants(loop)), tuple(functions))


def _stage(loop: FusedLoop, stage: int, source: str) -> StepFunction:
    """The elementwise work before the phase with that number; after the last phase, where there is none. What a
    reduction gives comes after the sums, and what it takes after the operands."""
    last, edges = len(loop.phases), len(loop.edges)
    sums: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    partials: list[_Line] = []
    if stage:
        before = loop.phases[stage - 1]
        sums = before.gives
    if stage < last:
        operands = loop.phases[stage].operands
        partials = [*_partials(loop.phases[stage])]
    made = {statement.target for statement in loop.stages[stage]} | set(sums)
    lines = [
        *_carried(loop),
        *_read(loop),
        *(_Line(f"const float {name} = carry__[{index}];", makes=name)
          for index, name in enumerate(loop.kept, edges) if name not in made),
        *_loads("sum__", sums),
        *_statements(loop.stages[stage], source),
        *_set("operand__", operands),
        *partials,
        *(_Line(f"carry__[{index}] = {name};", (name,)) for index, name in enumerate(loop.kept, edges) if name in made),
        *_writes((*loop.writes, *loop.row_writes), stage),
    ]  # fmt: skip
    arrays = [*_common(loop), _Array("float", "carry__", edges + len(loop.kept))]
    if stage:
        arrays.insert(0, _Array("const float", "sum__", len(sums)))
    if stage == last:
        lines += _set("carry__", [edge.link for edge in loop.edges])
    else:
        arrays.append(_Array("float", "operand__", len(operands) + len(partials)))
    arrays.append(_Array("float", "write__", len(loop.writes) + len(loop.row_writes)))
    name = "finish" if stage == last else "middle" if stage else "start"
    return _function(name, arrays, lines, f"Stage<{stage}>" if name == "middle" else "")


def _partials(phase: FusedPhase) -> Iterator[_Line]:
    """What a unit gives to the reductions of a phase: its parts together."""
    codes: list[tuple[str, FusedReduction]] = []
    for each in phase.reductions:
        match each.kind:
            case ReductionKind.SUM:
                codes.append((" + ".join(each.sources), each))
            case ReductionKind.LARGEST:
                codes.append((reduce(lambda code, other: f"maximum({code}, {other})", each.sources), each))
            case ReductionKind.MOMENTS:
                parts = f"({{{', '.join(each.sources)}}})"
                codes += [(f"rnncc::{function}{parts}", each) for function in ("mean", "squared_deviations")]
            case _:
                assert_never(each.kind)
    for index, (code, each) in enumerate(codes, len(phase.operands)):
        yield _Line(f"operand__[{index}] = {code};", each.sources)


def scan_step(name: str, loop: ScanLoop, source: str) -> StepStruct:
    """Makes the step of a loop without products. A walk's step also has the tangent, if there is one."""
    edges = len(loop.edges)
    derived = loop.map or loop.tangent
    matrix = derived.matrix if derived else ()
    constants = (
        *numbers({**tensor_counts(loop), "TOTALS": len(loop.totals), "PREPARED": len(loop.kept)}),
        *float_tensors(loop, loop.writes),
        StepConstant("uint64_t", "SLOPES", bits(slopes(matrix))),
        StepConstant("uint64_t", "ENTRIES", bits(entries(matrix))),
        flag("MASKED", loop.masked),
    )
    common = _common(loop)
    prepared, carry = _Array("const float", "prepared__", len(loop.kept)), _Array("float", "carry__", edges)
    write, total = _Array("float", "write__", len(loop.writes)), _Array("float", "total__", len(loop.totals))
    step = [
        *_carried(loop),
        *_read(loop),
        *_loads("prepared__", loop.kept),
        *_statements((each for each in loop.statements if each.target not in loop.kept), source),
        *_set("write__", [write.value for write in loop.writes]),
        *(_Line(f"total__[{index}] += {name};", (name,)) for index, name in enumerate(loop.totals)),
        *_set("carry__", [edge.link for edge in loop.edges]),
    ]
    functions = [_function("step", (*common, prepared, carry, write, total), step)]
    if loop.tangent:
        functions.append(_tangent(loop, loop.tangent, source))
    if loop.map:
        functions += (_map(loop, loop.map, source), _prepare(loop, loop.map, source))
    return StepStruct(name, constants, tuple(functions))


def _tangent(loop: ScanLoop, tangent: Tangent, source: str) -> StepFunction:
    edges = len(loop.edges)
    lines = [
        *_carried(loop),
        *_read(loop),
        *_statements((*loop.statements, *tangent.statements), source),
        *_slopes(tangent.matrix),
        *_set("carry__", [edge.link for edge in loop.edges]),
    ]
    return _function(
        "tangent",
        (*_common(loop), _Array("float", "carry__", edges), _Array("float", "slope__", edges, is_square=True)),
        lines,
    )


def _map(loop: ScanLoop, affine: AffineMap, source: str) -> StepFunction:
    edges = len(loop.edges)
    prepared, offset = _Array("const float", "prepared__", len(loop.kept)), _Array("float", "offset__", edges)
    lines = [
        *_read(loop),
        *_loads("prepared__", loop.kept),
        *_statements((each for each in affine.statements if each.target not in loop.kept), source),
        *_slopes(affine.matrix),
        *(_entry(f"offset__[{index}]", each) for index, each in enumerate(affine.offset)),
    ]
    slope = _Array("float", "slope__", edges, is_square=True)
    return _function("map", (*_common(loop), prepared, slope, offset), lines)


def _prepare(loop: ScanLoop, affine: AffineMap, source: str) -> StepFunction:
    lines = [*_read(loop), *_statements(affine.statements, source), *_set("prepared__", loop.kept)]
    return _function("prepare", (*_common(loop), _Array("float", "prepared__", len(loop.kept))), lines)


def _function(name: str, arrays: Sequence[_Array], lines: Sequence[_Line], tag: str = "") -> StepFunction:
    """A function, without the lines on which nothing that it sets depends. Arrays that it does not use have no name.
    `tag`: a parameter without a name, which tells functions of the same name apart."""
    wanted: set[str] = set()
    used: list[str] = []
    for line in reversed(lines):
        if not line.makes or line.makes in wanted:
            used.append(line.code)
            wanted.update(line.reads)
    code = "\n".join(used)
    names = [array.name if f"{array.name}[" in code else "" for array in arrays]
    parameters = [f"{array.type} (&{name}){array.extent}" for array, name in zip(arrays, names, strict=True)]
    parameters = [*([tag] if tag else []), *parameters]
    return StepFunction(listed(f"  RNNCC_DEVICE static void {name}(", parameters, ") {", 6), tuple(used[::-1]))


def _common(loop: FusedLoop | ScanLoop) -> tuple[_Array, ...]:
    """The parameters of every function of a step."""
    return (
        _Array("const float", "read__", len(loop.reads)),
        _Array("const float", "row__", len(row_values(loop))),
        _Array("const float", "vector__", len(loop.vectors)),
        _Array("const float", "constant__", (max(len(loop.constants), 1) + 1) // 2 * 2),
    )


def _carried(loop: FusedLoop | ScanLoop) -> Iterator[_Line]:
    return _loads("carry__", [edge.name for edge in loop.edges])


def _read(loop: FusedLoop | ScanLoop) -> Iterator[_Line]:
    yield from _loads("read__", [read.name for read in loop.reads])
    yield from _loads("row__", row_values(loop))
    yield from _loads("vector__", [vector.name for vector in loop.vectors])
    yield from _loads("constant__", loop.constants)


def _loads(array: str, names: Sequence[str]) -> Iterator[_Line]:
    return (_Line(f"const float {name} = {array}[{index}];", makes=name) for index, name in enumerate(names))


def _set(array: str, names: Sequence[str]) -> Iterator[_Line]:
    return (_Line(f"{array}[{index}] = {name};", (name,)) for index, name in enumerate(names))


def _statements(statements: Iterable[Statement], source: str) -> Iterator[_Line]:
    for statement in statements:
        code = f"const float {statement.target} = {expression_text(statement.expr, _FAST)};"
        origin = f"  // {source}:{statement.line}" if statement.line else ""
        yield _Line(code + origin, tuple(references(statement.expr)), statement.target)


def _writes(writes: Sequence[FusedWrite], stage: int) -> Iterator[_Line]:
    lines = zip(writes, _set("write__", [write.value for write in writes]), strict=True)
    return (line for write, line in lines if write.stage == stage)


def _slopes(matrix: Matrix) -> Iterator[_Line]:
    for i, row in enumerate(matrix):
        yield from (_entry(f"slope__[{i}][{j}]", slope) for j, slope in enumerate(row))


def _entry(place: str, expr: Expr | None) -> _Line:
    if expr is None:
        return _Line(f"{place} = 0.0f;")
    return _Line(f"{place} = {expression_text(expr, _FAST)};", tuple(references(expr)))
