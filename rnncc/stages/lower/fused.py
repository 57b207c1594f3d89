"""The fused form of a step, or why it has none.

A step becomes a FusedLoop in this order.

1. `Units` (units.py) reads the step as operations on single units (operations.py): statements, products and
   reductions. It raises Unfit where a step does anything else. Sums over all heads that nothing waits for are set
   apart.
2. `in_fewest_phases` (phases.py) rewrites the operations so that fewer of them wait for each other (shorten.py,
   rules.py), and divides products and reductions into *phases*.
3. `_chain` gives each statement to a *stage*, between two phases.
4. `edges_of`, `reads_of` and `writes_of` find the tensors that the stages read and write.
5. `_loop` puts all of this together as a FusedLoop (rnncc/ir/fused.py), if a kernel has room for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import HEADS, ONE, Dim, add, scale, split_multiple
from rnncc.ir.expr import references
from rnncc.ir.fused import FusedEdge, FusedLateSum, FusedLoop, FusedPhase, FusedRead, FusedRow, FusedVector, FusedWrite
from rnncc.ir.lowered import NoForm, Unfit
from rnncc.ir.step import Edge, Place, Read, Statement, Step, Table, Vector
from rnncc.stages.lower.operations import (
    NO_PLAIN_SUM,
    OVER_ALL_HEADS,
    LateSum,
    Operation,
    late_names,
    made_by,
    part_names,
)
from rnncc.stages.lower.phases import Phased, in_fewest_phases, known_sizes, phase_of, phased, relays_of
from rnncc.stages.lower.units import MOST_TENSORS, Units

# A step has at most so many phases, since each is code of its own in a kernel.
MOST_PHASES = 16
# Nothing looks for fewer phases where the step as written has more than this.
MOST_WAITS = 4 * MOST_PHASES
# The addresses of two directions take at most so many bytes of a kernel's parameter. CUDA takes 32,764 for all of it.
MOST_BYTES = 30_000


def fuse(step: Step, *, one_head: bool = False, solved: Mapping[str, Dim] | None = None) -> FusedLoop | NoForm:
    """The fused form, or why there is none. `one_head`: the cell has one head only. `solved`: the cell's sizes that
    follow from others, by name."""
    try:
        units = Units(step, one_head=one_head)
        operations = [*units.operations()]
        return _loop(units, operations, known_sizes(units.widths, solved or {}))
    except Unfit as reason:
        return NoForm(str(reason))


def _loop(units: Units, operations: Sequence[Operation], sizes: Mapping[int, Dim]) -> FusedLoop:
    waits = len(phased(operations).found)
    _require_phases(waits, MOST_WAITS)
    step = in_fewest_phases(units, operations)
    if not step.found:
        raise Unfit("a step has no product and no reduction")
    _require_phases(len(step.found), MOST_PHASES)
    phases = tuple(phase_of(units, found) for found in step.found)
    chain = _chain(step, phases)
    made = {statement.target: stage for stage, statements in enumerate(chain) for statement in statements}
    made |= {name: stage for stage, phase in enumerate(phases, 1) for name in phase.gives}
    edges = tuple(edges_of(units))
    uses = _uses(chain, phases)
    last_use = {edge.link: len(phases) for edge in edges}
    for stage, names in enumerate(uses):
        last_use |= {name: stage for name in names if last_use.get(name, 0) < stage}
    kept = tuple(name for name in _in_order(chain, phases) if last_use.get(name, 0) > made[name])
    reads, rows, vectors = reads_of(units, set().union(*uses))
    writes, row_writes = writes_of(units, made)
    elsewhere = {*kept, *(edge.link for edge in edges), *(write.value for write in row_writes)}
    relays = relays_of(phases, chain, writes, frozenset(elsewhere), sizes)
    if relays:
        writes = tuple(sorted(writes, key=relays.takes))
    reductions = max(len(phase.reduced) for phase in phases)
    if max(len(reads), len(rows), len(writes) + len(row_writes), reductions) > MOST_TENSORS:
        raise Unfit(f"a step reads or writes more than {MOST_TENSORS} tensors, or has as many sums and norms at once")
    matrices = sum(len(phase.sums) * len(phase.operands) for phase in phases)
    tensors = 2 * (len(reads) + len(edges)) + len(rows) + len(writes) + len(row_writes) + len(vectors)
    if 2 * (8 * matrices + 24 * tensors) > MOST_BYTES:
        raise Unfit(
            f"the addresses of a step's {matrices} matrices and {tensors} tensors take more than {MOST_BYTES} bytes"
        )
    return FusedLoop(
        units.widths,
        phases,
        chain,
        reads,
        rows,
        vectors,
        units.step.constants,
        edges,
        kept,
        writes,
        units.step.masked,
        row_writes,
        late_sums_of(units),
        waits,
        relays,
    )


def _require_phases(count: int, most: int) -> None:
    if count > most:
        raise Unfit(f"a step has {count} products, norms and sums that wait for each other: at most {MOST_PHASES} may")


def _chain(step: Phased, phases: Sequence[FusedPhase]) -> tuple[tuple[Statement, ...], ...]:
    """The statements by the stage of the step that runs them: where the step has them, but no later than the phase
    that takes what they make."""
    after, count = [], 0  # after how many phases the step has each statement
    for each in step.operations:
        if isinstance(each, Statement):
            after.append((each, count))
        else:
            count = max(count, *(step.levels[name] for name in made_by(each)))
    latest = {name: number for number, phase in reversed([*enumerate(phases)]) for name in phase.takes}
    chain: list[list[Statement]] = [[] for _ in range(len(phases) + 1)]
    for statement, wanted in reversed(after):
        number = max(step.levels[statement.target], min(wanted, latest.get(statement.target, wanted)))
        chain[number].append(statement)
        for name in references(statement.expr):
            latest[name] = min(latest.get(name, number), number)
    return tuple(tuple(statements[::-1]) for statements in chain)


def _uses(chain: Sequence[tuple[Statement, ...]], phases: Sequence[FusedPhase]) -> list[set[str]]:
    """What each stage reads, for its statements or for the phase after it."""
    found = [{name for statement in statements for name in references(statement.expr)} for statements in chain]
    for names, phase in zip(found, phases, strict=False):
        names.update(phase.takes)
    return found


def _in_order(chain: Sequence[tuple[Statement, ...]], phases: Sequence[FusedPhase]) -> Iterator[str]:
    """The values that a step makes, in the order in which it does."""
    for stage, statements in enumerate(chain):
        if stage:
            yield from phases[stage - 1].gives
        yield from (statement.target for statement in statements)


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
                    reads.append(FusedRead(name, _part(place, part, width), None, number))
                case Read(_, width, place):
                    rows.append(FusedRow(name, place, width == HEADS))
                case Edge(_, _, link, place) if isinstance(linked := step.inputs.get(link), Read) and count == 1:
                    reads.append(FusedRead(name, linked.place, place, number))
                case Edge(_, _, link) if link not in step.inputs:
                    pass
                case Vector(_, width, place) if width != HEADS:
                    vectors.append(FusedVector(name, _part(place, part, width), width == ONE, number))
                case _:
                    raise Unfit(_not_one_per_unit(each.name, count))
    for name, matrix in units.vectors.items():
        known = units.matrices[matrix.name]
        own = units.number(known.columns if known.rows == ONE else known.rows)
        vectors.append(FusedVector(name, Place(Table.WEIGHTS, known.index, known.offset), False, own, matrix))
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
        summed = units.late[name]
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
