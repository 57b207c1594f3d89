"""The tensors of a fused step: what it reads and writes, and its values with a place before and after the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import HEADS, ONE, Dim, add, scale, split_multiple
from rnncc.ir.fused import FusedEdge, FusedLateSum, FusedRead, FusedRow, FusedVector, FusedWrite
from rnncc.ir.plan import Unfit
from rnncc.ir.step import Edge, Place, Read, Table, Vector
from rnncc.stages.lower.late import NO_PLAIN_SUM, OVER_ALL_HEADS, LateSum
from rnncc.stages.lower.operations import late_names, part_names
from rnncc.stages.lower.units import Units


def edges_of(units: Units) -> Iterator[FusedEdge]:
    """The values that live from step to step."""
    for edge, last in units.step.carried:
        if units.count(edge.width) != 1 or edge.ahead:
            raise Unfit(_not_one_per_unit(edge.link, units.count(edge.width)))
        yield FusedEdge(edge.name, edge.link, edge.place, last, units.number(edge.width))


def reads_of(
    units: Units, used: set[str]
) -> tuple[tuple[FusedRead, ...], tuple[FusedRow, ...], tuple[FusedVector, ...]]:
    """The tensors that the names in `used` stand for, without the mask of active steps, which kernels know
    themselves."""
    step = units.step
    reads: list[FusedRead] = []
    rows: list[FusedRow] = []
    vectors: list[FusedVector] = []
    for each in (step.inputs[name] for name in step.in_memory() if name in step.inputs and name != ACTIVE):
        names = part_names(each.name, split_multiple(each.width)[0])
        if not any(name in used for name in names):
            continue
        count, number = units.count(each.width), units.number(each.width)
        for part, name in enumerate(names):
            if name not in used:
                continue
            match each:
                case Read(_, width, place) if count:
                    reads.append(FusedRead(name, _part(place, part, width), None, each.name, part, number))
                case Read(_, width, place):
                    rows.append(FusedRow(name, place, width == HEADS))
                case Edge(_, _, link, place) if isinstance(linked := step.inputs.get(link), Read) and count == 1:
                    reads.append(FusedRead(name, linked.place, place, each.name, part, number))
                case Edge(_, _, link) if link not in step.inputs:
                    pass
                case Vector(_, width, place) if width != HEADS:
                    vectors.append(FusedVector(name, _part(place, part, width), width == ONE, each.name, part, number))
                case _:
                    raise Unfit(_not_one_per_unit(each.name, count))
    for name, matrix in units.vectors.items():
        known = units.matrices[matrix.name]
        place = _part(Place(Table.WEIGHTS, known.index, known.offset), matrix.part, known.rows)
        own = units.number(known.columns if known.rows == ONE else known.rows)
        vectors.append(FusedVector(name, place, False, "", matrix.part, own, matrix.name))
    return tuple(reads), tuple(rows), tuple(vectors)


def writes_of(units: Units, made: Mapping[str, int]) -> tuple[tuple[FusedWrite, ...], tuple[FusedWrite, ...]]:
    """What goes to memory of what the stages of a step make: to tensors of all units, and with one number per head.
    `made`: the stage of each value."""
    step = units.step
    writes: list[FusedWrite] = []
    rows: list[FusedWrite] = []
    for name in step.stored:
        places = step.places(name)
        if not places or name in units.late:
            continue
        width = step.widths[name]
        count = units.count(width)
        if not count:
            if not units.is_per_head(width) or (name in step.kept and not units.one_head):
                raise Unfit(OVER_ALL_HEADS)
            rows += [FusedWrite(name, place, made[name], name, destination=index) for index, place in enumerate(places)]
            continue
        for part, own in enumerate(part_names(name, count)):
            for index, place in enumerate(places):
                where = None if place is None else _part(place, part, width)
                writes.append(FusedWrite(own, where, made[own], name, part, index, units.number(width)))
    writes += _terms_of_late_sums(units, made)
    return tuple(writes), tuple(rows)


def late_sums_of(units: Units) -> tuple[FusedLateSum, ...]:
    """The sums over all heads that are taken after the loop."""
    return tuple(FusedLateSum(name, summed.slot) for name, summed in _late_sums(units))


def _terms_of_late_sums(units: Units, made: Mapping[str, int]) -> Iterator[FusedWrite]:
    for name, summed in _late_sums(units):
        width = units.number(units.step.widths[summed.slot])
        for part, own in enumerate(late_names(name, len(summed.parts))):
            yield FusedWrite(own, None, made[own], summed.slot, part, 0, width)


def _late_sums(units: Units) -> list[tuple[str, LateSum]]:
    """The sums over all heads that go to memory. Each has the record of a stored value of the terms' width that has no
    record of its own: that of the summed value, where it is one."""
    step = units.step
    free = [name for name in step.stored if not step.places(name) and name not in units.late]
    found = []
    for name in step.stored:
        if name not in units.late or name not in step.outputs:
            continue
        summed = units.late.known[name]
        holders = [each for each in free if step.widths[each] == step.widths[summed.slot]]
        if name in step.kept or not holders:
            raise Unfit(NO_PLAIN_SUM)
        holder = summed.slot if summed.slot in holders else holders[0]
        free.remove(holder)
        found.append((name, replace(summed, slot=holder)))
    return found


def _not_one_per_unit(name: str, count: int) -> str:
    has, change = (
        (f"{count} numbers per unit", f"make it {count} values")
        if count
        else ("one number per head", "make it as wide as a state")
    )
    return f"{name} has {has}, and a fused step keeps one number per unit: {change}"


def _part(place: Place, part: int, width: Dim) -> Place:
    """Where a part of a value of that width lies."""
    return replace(place, offset=add(place.offset, scale(split_multiple(width)[1], part))) if part else place
