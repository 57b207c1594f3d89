"""The `Step` of a loop as CUDA text. templates/include/rnncc/cuda/fused/call.cuh says what the step of a fused loop
must have, and …/scan/lanes.cuh the same of a loop without products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import assert_never

from rnncc.ir.expr import Expr, references
from rnncc.ir.fused import FusedLoop, FusedPhase, FusedReduction, FusedStatement, FusedWrite, ReductionKind
from rnncc.ir.kernel import Table
from rnncc.ir.scan import AffineMap, Matrix, ScanLoop, Tangent, entries, row_values, slopes
from rnncc.language.operators import OPERATORS
from rnncc.stages.render.cpp.expressions import expression_text
from rnncc.stages.render.notation import listed

# Operators that have a form in fast.cuh, which chooses by the kernel's dtype.
_FAST = {name: f"fast__::{row.fast}" for name, row in OPERATORS.items() if row.fast}


@dataclass(frozen=True, slots=True)
class StepConstant:
    """A constant of the struct. Where it is a set of bits, `members` says what these stand for."""

    type: str
    name: str
    text: str
    members: str = ""


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
    """Makes the step of a loop with products."""
    writes = loop.writes
    edges, carries = len(loop.edges), len(loop.edges) + len(loop.kept)
    counts = {
        "PHASES": len(loop.phases),
        "WIDTHS": len(loop.widths),
        "EDGES": edges,
        "CARRIES": carries,
        "READS": len(loop.reads),
        "ROW_READS": len(loop.rows),
        "ROW_VALUES": len(row_values(loop)),
        "VECTORS": len(loop.vectors),
        "CONSTANTS": len(loop.constants),
        "WRITES": len(writes),
        "ROW_WRITES": len(loop.row_writes),
    }
    writes = (*writes, *loop.row_writes)
    by_stage = [[write.stage == stage for write in writes] for stage in range(len(loop.stages))]
    return StepStruct(
        name,
        (
            *_counts(counts),
            *_float_tensors(loop, writes),
            _list("int", "SUMS", [str(len(phase.sums)) for phase in loop.phases]),
            _list("int", "OPERANDS", [str(len(phase.operands)) for phase in loop.phases]),
            *_widths(loop),
            _list("bool", "TRANSPOSED", [str(phase.transposed).lower() for phase in loop.phases]),
            _list("int", "REDUCTIONS", [str(len(phase.reduced)) for phase in loop.phases]),
            _list(
                "uint64_t",
                "LARGEST",
                [
                    _bits(each.kind is ReductionKind.LARGEST for each in phase.reductions for _ in each.results)
                    for phase in loop.phases
                ],
            ),
            *_means(loop),
            _list("bool", "HAS_HOLES", [str(phase.has_holes).lower() for phase in loop.phases]),
            *_rules(loop),
            _list("uint64_t", "WRITES_OF_STAGE", [_bits(own) for own in by_stage]),
            _members("ROW_FLOAT", [(row.name, row.place.table is Table.SAVED) for row in loop.rows]),
            _members("ROW_PER_HEAD", [(row.name, row.per_head) for row in loop.rows]),
            _flag("MASKED", loop.masked),
        ),
        tuple(_stage(loop, stage, source) for stage in range(len(loop.stages))),
    )


def _widths(loop: FusedLoop) -> Iterator[StepConstant]:
    """Which width each value has, where there are several."""
    if len(loop.widths) == 1:
        return

    def sets(widths: Iterable[int]) -> str:
        numbers = list(widths)
        return f"{{{_bits(bool(n & 1) for n in numbers)}, {_bits(bool(n & 2) for n in numbers)}}}"

    for name, widths in (
        ("READ_WIDTH", [read.width for read in loop.reads]),
        ("WRITE_WIDTH", [write.width for write in loop.writes]),
        ("EDGE_WIDTH", [edge.width for edge in loop.edges]),
        ("VECTOR_WIDTH", [vector.width for vector in loop.vectors]),
    ):
        yield StepConstant("uint64_t", f"{name}[2]", sets(widths))
    for name, of_phases in (
        ("SUM_WIDTH", [phase.sum_widths for phase in loop.phases]),
        ("OPERAND_WIDTH", [phase.operand_widths for phase in loop.phases]),
        ("REDUCTION_WIDTH", [[each.width for each in phase.reductions for _ in each.results] for phase in loop.phases]),
    ):
        yield StepConstant("uint64_t", f"{name}[][2]", f"{{{', '.join(map(sets, of_phases))}}}")


def _rules(loop: FusedLoop) -> Iterator[StepConstant]:
    """Which matrices are given by rules, where some are."""
    rules = [rule for phase in loop.phases for rule in phase.rules]
    yield _flag("HAS_RULES", any(rules))
    if any(rules):
        texts = (
            f"{{Relation::{rule.relation.value}, {rule.unit_times}, {rule.term_times}}}" if rule else "{}"
            for rule in rules
        )
        yield StepConstant("MatrixRule", "RULES[]", f"{{{', '.join(texts)}}}")


def _stage(loop: FusedLoop, stage: int, source: str) -> StepFunction:
    """The elementwise work before the phase with that number; after the last phase, where there is none. What a
    reduction gives comes after the sums, and what it takes after the operands."""
    last, edges = len(loop.phases), len(loop.edges)
    sums: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    partials: list[_Line] = []
    if stage:
        before = loop.phases[stage - 1]
        sums = (*before.sums, *before.reduced)
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


def _means(loop: FusedLoop) -> Iterator[StepConstant]:
    """For each number that reductions give, how many numbers of a unit it is the mean of, where there are means."""
    reductions = [each for phase in loop.phases for each in phase.reductions]
    if any(each.kind is ReductionKind.MOMENTS for each in reductions):
        counts = [
            len(each.sources) if each.kind is ReductionKind.MOMENTS and result == 0 else 0
            for each in reductions
            for result in range(len(each.results))
        ]
        yield _list("int", "MEANS", [str(count) for count in counts])


def scan_step(name: str, loop: ScanLoop, source: str) -> StepStruct:
    """Makes the step of a loop without products. A walk's step also has the tangent, if there is one."""
    edges = len(loop.edges)
    derived = loop.map or loop.tangent
    matrix = derived.matrix if derived else ()
    counts = {
        "EDGES": edges,
        "READS": len(loop.reads),
        "ROW_READS": len(loop.rows),
        "ROW_VALUES": len(row_values(loop)),
        "VECTORS": len(loop.vectors),
        "CONSTANTS": len(loop.constants),
        "WRITES": len(loop.writes),
        "TOTALS": len(loop.totals),
        "PREPARED": len(loop.kept),
    }
    constants = (
        *_counts(counts),
        *_float_tensors(loop, loop.writes),
        StepConstant("uint64_t", "SLOPES", _bits(slopes(matrix))),
        StepConstant("uint64_t", "ENTRIES", _bits(entries(matrix))),
        _flag("MASKED", loop.masked),
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


def _loads(array: str, names: Sequence[str], first: int = 0) -> Iterator[_Line]:
    return (_Line(f"const float {name} = {array}[{index}];", makes=name) for index, name in enumerate(names, first))


def _set(array: str, names: Sequence[str], first: int = 0) -> Iterator[_Line]:
    return (_Line(f"{array}[{index}] = {name};", (name,)) for index, name in enumerate(names, first))


def _statements(statements: Iterable[FusedStatement], source: str) -> Iterator[_Line]:
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


def _counts(counts: Mapping[str, int]) -> Iterator[StepConstant]:
    return (StepConstant("int", name, str(count)) for name, count in counts.items())


def _float_tensors(loop: FusedLoop | ScanLoop, writes: Sequence[FusedWrite]) -> Iterator[StepConstant]:
    """Constants that say which tensors are float whatever the dtype, and which are read one step further."""
    read = [(each.name, each.place.table is Table.SAVED) for each in loop.reads]
    written = [(each.value, each.place is not None and each.place.table is Table.SAVED) for each in writes]
    yield _members("READ_FLOAT", read)
    yield _members("READ_SHIFTED", [(each.name, each.edge is not None) for each in loop.reads])
    yield _members("WRITE_FLOAT", written)


def _members(name: str, members: Sequence[tuple[str, bool]]) -> StepConstant:
    about = ", ".join(member for member, is_in in members if is_in)
    return StepConstant("uint64_t", name, _bits(is_in for _, is_in in members), about)


def _list(type: str, name: str, texts: Sequence[str]) -> StepConstant:
    return StepConstant(type, f"{name}[]", f"{{{', '.join(texts)}}}")


def _flag(name: str, value: bool) -> StepConstant:
    return StepConstant("bool", name, str(value).lower())


def _bits(members: Iterable[bool]) -> str:
    value = sum(1 << index for index, is_in in enumerate(members) if is_in)
    return f"0b{value:b}" if value else "0"
