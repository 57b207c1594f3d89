"""The tensors of a fused step: what it reads and writes, and its values with a place before and after the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import HEADS, ONE, Dim, add, scale, split_multiple
from rnncc.ir.fused import FusedEdge, FusedLateSum, FusedRead, FusedRow, FusedVector, FusedWrite
from rnncc.ir.kernel import EdgeSlot, Place, ReadSlot, StoredSlot, Table, VectorSlot
from rnncc.stages.lower.late import NO_PLAIN_SUM, OVER_ALL_HEADS, LateSum
from rnncc.stages.lower.operations import late_names, part_names
from rnncc.stages.lower.reading import Unfit
from rnncc.stages.lower.units import Units


def edges_of(units: Units) -> Iterator[FusedEdge]:
    """The values that live from step to step."""
    finals = {final.slot: final.place for final in units.program.finals}
    known = set()
    for slot in units.program.slots:
        if isinstance(slot, EdgeSlot) and isinstance(units.slots[slot.link], StoredSlot):
            if units.count(slot.width) != 1 or slot.ahead:
                raise Unfit(_not_one_per_unit(slot.link, units.count(slot.width)))
            known.add(slot.name)
            yield FusedEdge(slot.name, slot.link, slot.place, finals.get(slot.name), units.number(slot.width))
    if not set(finals) <= known:
        raise Unfit("a state is not computed in its loop")


def reads_of(
    units: Units, used: set[str]
) -> tuple[tuple[FusedRead, ...], tuple[FusedRow, ...], tuple[FusedVector, ...]]:
    """The tensors that the names in `used` stand for, without the mask of active steps, which kernels know
    themselves."""
    reads: list[FusedRead] = []
    rows: list[FusedRow] = []
    vectors: list[FusedVector] = []
    for slot in units.program.slots:
        if slot.name == ACTIVE or not isinstance(slot, ReadSlot | EdgeSlot | VectorSlot):
            continue
        names = part_names(slot.name, split_multiple(slot.width)[0])
        if not any(name in used for name in names):
            continue
        count, number = units.count(slot.width), units.number(slot.width)
        for part, name in enumerate(names):
            if name not in used:
                continue
            match slot:
                case ReadSlot(_, width, place) if count:
                    reads.append(FusedRead(name, _part(place, part, width), None, slot.name, part, number))
                case ReadSlot(_, width, place):
                    rows.append(FusedRow(name, place, width == HEADS))
                case EdgeSlot(_, _, link, place) if isinstance(linked := units.slots[link], ReadSlot) and count == 1:
                    reads.append(FusedRead(name, linked.place, place, slot.name, part, number))
                case EdgeSlot(_, _, link) if isinstance(units.slots[link], StoredSlot):
                    pass
                case VectorSlot(_, width, place) if width != HEADS:
                    vectors.append(FusedVector(name, _part(place, part, width), width == ONE, slot.name, part, number))
                case _:
                    raise Unfit(_not_one_per_unit(slot.name, count))
    for name, matrix in units.vectors.items():
        known = units.matrices[matrix.name]
        place = _part(Place(Table.WEIGHTS, known.index, known.offset), matrix.part, known.rows)
        own = units.number(known.columns if known.rows == ONE else known.rows)
        vectors.append(FusedVector(name, place, False, "", matrix.part, own, matrix.name))
    return tuple(reads), tuple(rows), tuple(vectors)


def writes_of(units: Units, made: Mapping[str, int]) -> tuple[tuple[FusedWrite, ...], tuple[FusedWrite, ...]]:
    """What goes to memory of what the stages of a step make: to tensors of all units, and with one number per head.
    `made`: the stage of each value."""
    writes: list[FusedWrite] = []
    rows: list[FusedWrite] = []
    for slot in units.program.slots:
        if not isinstance(slot, StoredSlot):
            continue
        places: list[Place | None] = [*slot.destinations]
        if slot.kept and not slot.destinations:
            places.append(None)
        if not places or slot.name in units.late:
            continue
        count = units.count(slot.width)
        if not count:
            if not units.is_per_head(slot.width) or (slot.kept and not units.one_head):
                raise Unfit(OVER_ALL_HEADS)
            rows += [
                FusedWrite(slot.name, place, made[slot.name], slot.name, destination=index)
                for index, place in enumerate(places)
            ]
            continue
        for part, name in enumerate(part_names(slot.name, count)):
            for index, place in enumerate(places):
                own = None if place is None else _part(place, part, slot.width)
                number = units.number(slot.width)
                writes.append(FusedWrite(name, own, made[name], slot.name, part, index, number))
    writes += _terms_of_late_sums(units, made)
    return tuple(writes), tuple(rows)


def late_sums_of(units: Units) -> tuple[FusedLateSum, ...]:
    """The sums over all heads that are taken after the loop."""
    return tuple(FusedLateSum(slot.name, summed.slot) for slot, summed in _late_sums(units))


def _terms_of_late_sums(units: Units, made: Mapping[str, int]) -> Iterator[FusedWrite]:
    for slot, summed in _late_sums(units):
        width = units.number(units.slots[summed.slot].width)
        for part, name in enumerate(late_names(slot.name, len(summed.parts))):
            yield FusedWrite(name, None, made[name], summed.slot, part, 0, width)


def _late_sums(units: Units) -> list[tuple[StoredSlot, LateSum]]:
    """The sums over all heads that go to memory. Each has the record of a slot of the terms' width that has no record
    of its own: that of the summed value, where it is one."""
    stored = [slot for slot in units.program.slots if isinstance(slot, StoredSlot)]
    free = [slot for slot in stored if not slot.kept and not slot.destinations and slot.name not in units.late]
    found = []
    for slot in stored:
        if slot.name not in units.late or not slot.destinations:
            continue
        summed = units.late.known[slot.name]
        holders = [each for each in free if each.width == units.slots[summed.slot].width]
        if slot.kept or not holders:
            raise Unfit(NO_PLAIN_SUM)
        holder = next((each for each in holders if each.name == summed.slot), holders[0])
        free.remove(holder)
        found.append((slot, replace(summed, slot=holder.name)))
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
