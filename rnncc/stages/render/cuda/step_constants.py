"""What a generated step says of itself: its constants, as cuda/fused/device/call.cuh lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.fused import FusedLoop, FusedWrite, ReductionKind, Relay
from rnncc.ir.scan import ScanLoop, row_values
from rnncc.ir.step import Table


@dataclass(frozen=True, slots=True)
class StepConstant:
    """A constant of the struct. Where it is a set of bits, `members` says what these stand for."""

    type: str
    name: str
    text: str
    members: str = ""


def tensor_counts(loop: FusedLoop | ScanLoop) -> dict[str, int]:
    """How many tensors of each kind any step has."""
    return {
        "EDGES": len(loop.edges),
        "READS": len(loop.reads),
        "ROW_READS": len(loop.rows),
        "ROW_VALUES": len(row_values(loop)),
        "VECTORS": len(loop.vectors),
        "CONSTANTS": len(loop.constants),
        "WRITES": len(loop.writes),
    }


def fused_constants(loop: FusedLoop) -> Iterator[StepConstant]:
    """What the step of a fused loop says of itself."""
    writes = (*loop.writes, *loop.row_writes)
    by_stage = [[write.stage == stage for write in writes] for stage in range(len(loop.stages))]
    yield from numbers(
        {
            "PHASES": len(loop.phases),
            "WIDTHS": len(loop.widths),
            **tensor_counts(loop),
            "CARRIES": len(loop.edges) + len(loop.kept),
            "ROW_WRITES": len(loop.row_writes),
        }
    )
    yield from float_tensors(loop, writes)
    yield _list("int", "SUMS", [str(len(phase.sums)) for phase in loop.phases])
    yield _list("int", "OPERANDS", [str(len(phase.operands)) for phase in loop.phases])
    yield from _widths(loop)
    yield _list("bool", "TRANSPOSED", [str(phase.transposed).lower() for phase in loop.phases])
    yield _list("int", "REDUCTIONS", [str(len(phase.reduced)) for phase in loop.phases])
    yield _list(
        "uint64_t",
        "LARGEST",
        [
            bits(each.kind is ReductionKind.LARGEST for each in phase.reductions for _ in each.results)
            for phase in loop.phases
        ],
    )
    yield from _means(loop)
    yield _list("bool", "HAS_HOLES", [str(phase.has_holes).lower() for phase in loop.phases])
    if any(phase.has_holes for phase in loop.phases):
        yield _list("uint64_t", "TAKEN_BY", [bits(taken) for phase in loop.phases for taken in phase.taken_by])
    yield from _rules(loop)
    yield from _relays(loop)
    yield _list("uint64_t", "WRITES_OF_STAGE", [bits(own) for own in by_stage])
    yield _members("ROW_FLOAT", [(row.name, row.place.table is Table.SAVED) for row in loop.rows])
    yield _members("ROW_PER_HEAD", [(row.name, row.per_head) for row in loop.rows])
    yield flag("MASKED", loop.masked)


def _widths(loop: FusedLoop) -> Iterator[StepConstant]:
    """Which width each value has, where there are several."""
    if len(loop.widths) == 1:
        return

    def sets(widths: Iterable[int]) -> str:
        numbers = list(widths)
        return f"{{{bits(bool(n & 1) for n in numbers)}, {bits(bool(n & 2) for n in numbers)}}}"

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
    yield flag("HAS_RULES", any(rules))
    if any(rules):
        texts = (
            f"{{Relation::{rule.relation.value}, {rule.unit_times}, {rule.term_times}}}" if rule else "{}"
            for rule in rules
        )
        yield StepConstant("MatrixRule", "RULES[]", f"{{{', '.join(texts)}}}")


def _relays(loop: FusedLoop) -> Iterator[StepConstant]:
    """What is said of relayed phases, where there are some."""
    relays = loop.relays
    if relays is None:
        return
    numbers_of = {write.value: number for number, write in enumerate(loop.writes) if relays.takes(write)}
    yield StepConstant("uint64_t", "RELAYS", bits(map(bool, relays.phases)))
    yield from numbers({"RELAYED_WRITES": len(numbers_of)})
    of_sums = [
        (relay.operand, numbers_of.get(relay.written, -1))
        for phase, own in zip(loop.phases, relays.phases, strict=True)
        for relay in own or (Relay(0, ""),) * len(phase.sums)
    ]
    yield _list("int", "RELAYED_TO", [str(operand) for operand, _ in of_sums])
    yield _list("int", "RELAYED_WRITE", [str(write) for _, write in of_sums])


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


def numbers(counts: Mapping[str, int]) -> Iterator[StepConstant]:
    return (StepConstant("int", name, str(count)) for name, count in counts.items())


def float_tensors(loop: FusedLoop | ScanLoop, writes: Sequence[FusedWrite]) -> Iterator[StepConstant]:
    """Constants that say which tensors are float whatever the dtype, and which are read one step further."""
    read = [(each.name, each.place.table is Table.SAVED) for each in loop.reads]
    written = [(each.value, each.place is not None and each.place.table is Table.SAVED) for each in writes]
    yield _members("READ_FLOAT", read)
    yield _members("READ_SHIFTED", [(each.name, each.edge is not None) for each in loop.reads])
    yield _members("WRITE_FLOAT", written)


def _members(name: str, members: Sequence[tuple[str, bool]]) -> StepConstant:
    about = ", ".join(member for member, is_in in members if is_in)
    return StepConstant("uint64_t", name, bits(is_in for _, is_in in members), about)


def _list(type: str, name: str, texts: Sequence[str]) -> StepConstant:
    return StepConstant(type, f"{name}[]", f"{{{', '.join(texts)}}}")


def flag(name: str, value: bool) -> StepConstant:
    return StepConstant("bool", name, str(value).lower())


def bits(members: Iterable[bool]) -> str:
    value = sum(1 << index for index, is_in in enumerate(members) if is_in)
    return f"0b{value:b}" if value else "0"
