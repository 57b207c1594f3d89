"""Whether a program fits the fused kernels, and how.

It does if its values have one number per unit of the heads, or some (units.py), and everything but products and
reductions over a head's units is elementwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import HEADS, ONE, Dim, add, scale, split_multiple
from rnncc.ir.expr import references
from rnncc.ir.fused import (
    FusedEdge,
    FusedLateSum,
    FusedLoop,
    FusedPhase,
    FusedRead,
    FusedReduction,
    FusedRow,
    FusedStatement,
    FusedVector,
    FusedWrite,
    MatrixPart,
    MatrixRule,
)
from rnncc.ir.kernel import EdgeSlot, Matrix, Place, Program, ReadSlot, StoredSlot, Table, VectorSlot
from rnncc.ir.plan import NoForm
from rnncc.stages.lower.late import OVER_ALL_HEADS, LateSum
from rnncc.stages.lower.reading import Unfit
from rnncc.stages.lower.rules import with_joined_rules
from rnncc.stages.lower.shorten import Given, centred, needed, split, with_moments
from rnncc.stages.lower.units import MOST_TENSORS, Operation, Product, Units, late_names, made_by, part_names

# Each is code of its own in a kernel.
MOST_PHASES = 16
# Of a kernel's parameter, for two directions: CUDA takes 32,764.
MOST_BYTES = 30_000


def fuse(program: Program, forward: Program | None = None, *, one_head: bool = False) -> FusedLoop | NoForm:
    """The fused form, or why there is none. `forward`: the program that a backward one belongs to. `one_head`: the cell
    has one head only."""
    try:
        units = Units(program, one_head=one_head)
        operations = [*units.operations()]
        zero_sums = frozenset() if forward is None else centred([*Units(forward, one_head=one_head).operations()])
        return _loop(units, operations, Given(units.scalars(), zero_sums))
    except Unfit as reason:
        return NoForm(str(reason))


def _loop(units: Units, operations: Sequence[Operation], given: Given) -> FusedLoop:
    waits = len(_levels(operations)[1])
    operations, levels, found = _shortest(units, operations, given)
    if len(found) > MOST_PHASES:
        raise Unfit(
            f"a step has {len(found)} products, norms and sums that wait for each other: at most {MOST_PHASES} may"
        )
    phases = tuple(_phase(units, found[level]) for level in sorted(found))
    chain = _chain(operations, phases, levels)
    made = {statement.target: stage for stage, statements in enumerate(chain) for statement in statements}
    made |= {name: stage for stage, phase in enumerate(phases, 1) for name in _results(phase)}
    edges = tuple(_edges(units))
    last_use = {edge.link: len(phases) for edge in edges}
    for stage, names in enumerate(_uses(chain, phases)):
        last_use |= {name: stage for name in names if last_use.get(name, 0) < stage}
    kept = tuple(name for name in _in_order(chain, phases) if last_use.get(name, 0) > made[name])
    used = {name for names in _uses(chain, phases) for name in names}
    reads, rows, vectors = _reads(units, used)
    writes, row_writes = _writes(units, made)
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
        units.program.constants,
        edges,
        kept,
        writes,
        units.program.masked,
        row_writes,
        tuple(FusedLateSum(slot.name, summed.slot) for slot, summed in _late_sums(units)),
        waits,
    )


@dataclass(slots=True)
class _Found:
    """A phase: its sums, each with the matrices that it takes, by operand; its reductions; and the widths of sums and
    operands."""

    transposed: bool | None = None
    matrices: dict[str, dict[str, MatrixPart | MatrixRule]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    reductions: list[FusedReduction] = field(default_factory=list)


def _shortest(
    units: Units, operations: Sequence[Operation], given: Given
) -> tuple[Sequence[Operation], dict[str, int], dict[int, _Found]]:
    """The operations in as few phases as sums allow, and their `_levels`."""
    operations = with_joined_rules(with_moments(operations))
    levels, found = _levels(operations)
    level = 1
    while level < len(found):
        # A phase of nothing but reductions is not needed where all of them can be made of earlier ones.
        shorter = None
        if not found[level].matrices:
            shorter = split(operations, found[level].reductions, levels, given)
        if shorter is None:
            level += 1
        else:
            operations = shorter
            levels, found = _levels(operations)
    operations = needed(operations, units.outlive())
    return operations, *_levels(operations)


def _levels(operations: Sequence[Operation]) -> tuple[dict[str, int], dict[int, _Found]]:
    """How many phases must be waited for until a value is known, for all that a step makes; and the phases by the level
    of what they take."""
    made = {name for each in operations if not isinstance(each, Product) for name in made_by(each)}
    sums: dict[str, list[Product]] = {}
    for each in operations:
        if isinstance(each, Product):
            sums.setdefault(each.sum, []).append(each)
    levels: dict[str, int] = {}
    found: dict[int, _Found] = {}
    for each in operations:
        match each:
            case Product(name, _, _, transposed, width):
                if name in levels:
                    continue
                for product in sums[name]:
                    if product.operand in made and product.operand not in levels:
                        raise Unfit(f"a sum of products takes {product.operand} before it is computed")
                level = max(levels.get(product.operand, 0) for product in sums[name])
                phase = found.setdefault(level, _Found())
                phase.transposed = transposed if phase.transposed is None else phase.transposed
                if any(product.transposed not in (None, phase.transposed) for product in sums[name]):
                    raise Unfit("products with a matrix and with a transposed one would run at once")
                phase.matrices[name] = {product.operand: product.matrix for product in sums[name]}
                phase.widths |= {product.operand: product.operand_width for product in sums[name]} | {name: width}
                levels[name] = level + 1
            case FusedReduction(results, _, sources):
                level = max(levels.get(source, 0) for source in sources)
                found.setdefault(level, _Found()).reductions.append(each)
                levels |= dict.fromkeys(results, level + 1)
            case FusedStatement(name, expr):
                levels[name] = max((levels.get(read, 0) for read in references(expr)), default=0)
    return levels, found


def _phase(units: Units, found: _Found) -> FusedPhase:
    operands = tuple(dict.fromkeys(operand for taken in found.matrices.values() for operand in taken))
    rows = tuple(tuple(taken.get(operand) for operand in operands) for taken in found.matrices.values())
    whole = [[part for part in row if part is not None] for row in rows]
    transposed = bool(found.transposed)
    is_full = bool(rows) and all(len(row) == len(operands) for row in whole) and len(units.widths) == 1
    in_memory = [[part for part in row if isinstance(part, MatrixPart)] for row in whole]
    return FusedPhase(
        tuple(found.matrices),
        operands,
        rows,
        is_full and in_memory == whole and _are_joined(units, in_memory, transposed),
        transposed,
        tuple(found.reductions),
        tuple(found.widths[name] for name in found.matrices),
        tuple(found.widths[name] for name in operands),
    )


def _results(phase: FusedPhase) -> tuple[str, ...]:
    return (*phase.sums, *phase.reduced)


def _taken(phase: FusedPhase) -> Iterator[str]:
    yield from phase.operands
    for reduction in phase.reductions:
        yield from reduction.sources


def _chain(
    operations: Sequence[Operation], phases: Sequence[FusedPhase], levels: Mapping[str, int]
) -> tuple[tuple[FusedStatement, ...], ...]:
    """The statements by the stage of the step that runs them: where the program has them, but no later than the phase
    that takes what they make."""
    after, count = [], 0  # after how many phases the program has each statement
    for each in operations:
        if isinstance(each, FusedStatement):
            after.append((each, count))
        else:
            count = max(count, levels[each.sum if isinstance(each, Product) else each.results[0]])
    latest = {name: number for number, phase in reversed([*enumerate(phases)]) for name in _taken(phase)}
    chain: list[list[FusedStatement]] = [[] for _ in range(len(phases) + 1)]
    for statement, wanted in reversed(after):
        number = max(levels[statement.target], min(wanted, latest.get(statement.target, wanted)))
        chain[number].append(statement)
        for name in references(statement.expr):
            latest[name] = min(latest.get(name, number), number)
    return tuple(tuple(statements[::-1]) for statements in chain)


def _uses(chain: Sequence[tuple[FusedStatement, ...]], phases: Sequence[FusedPhase]) -> list[set[str]]:
    """What each stage reads, for its statements or for the phase after it."""
    found = [{name for statement in statements for name in references(statement.expr)} for statements in chain]
    for names, phase in zip(found, phases, strict=False):
        names.update(_taken(phase))
    return found


def _in_order(chain: Sequence[tuple[FusedStatement, ...]], phases: Sequence[FusedPhase]) -> Iterator[str]:
    """The values that a step makes, in the order in which it does."""
    for stage, statements in enumerate(chain):
        if stage:
            yield from _results(phases[stage - 1])
        yield from (statement.target for statement in statements)


def _edges(units: Units) -> Iterator[FusedEdge]:
    """The values that live from step to step."""
    finals = {final.slot: final.place for final in units.program.finals}
    known = set()
    for slot in units.program.slots:
        if isinstance(slot, EdgeSlot) and isinstance(units.slots[slot.link], StoredSlot):
            if units.count(slot.width) != 1 or slot.ahead:
                raise Unfit(_not_one_per_unit(slot.link))
            known.add(slot.name)
            yield FusedEdge(slot.name, slot.link, slot.place, finals.get(slot.name), units.number(slot.width))
    if not set(finals) <= known:
        raise Unfit("a state is not computed in its loop")


def _reads(units: Units, used: set[str]) -> tuple[tuple[FusedRead, ...], tuple[FusedRow, ...], tuple[FusedVector, ...]]:
    """The tensors that the names in `used` stand for, without the mask of active steps, which kernels know
    themselves."""
    reads: list[FusedRead] = []
    rows: list[FusedRow] = []
    vectors: list[FusedVector] = []
    for slot in units.program.slots:
        if slot.name == ACTIVE or not isinstance(slot, ReadSlot | EdgeSlot | VectorSlot):
            continue
        names = part_names(slot.name, split_multiple(slot.width)[0])
        if used.isdisjoint(names):
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
                    raise Unfit(_not_one_per_unit(slot.name))
    for name, matrix in units.vectors.items():
        known = units.matrices[matrix.name]
        place = _part(Place(Table.WEIGHTS, known.index, known.offset), matrix.part, known.rows)
        own = units.number(known.columns if known.rows == ONE else known.rows)
        vectors.append(FusedVector(name, place, False, "", matrix.part, own, matrix.name))
    return tuple(reads), tuple(rows), tuple(vectors)


def _not_one_per_unit(name: str) -> str:
    return (
        f"{name} has one number per head, or several numbers per unit: a fused step keeps one number per unit. "
        "Make it as wide as a state, or make it several states"
    )


def _part(place: Place, part: int, width: Dim) -> Place:
    """Where a part of a value of that width lies."""
    return replace(place, offset=add(place.offset, scale(split_multiple(width)[1], part))) if part else place


def _writes(units: Units, made: Mapping[str, int]) -> tuple[tuple[FusedWrite, ...], tuple[FusedWrite, ...]]:
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


def _terms_of_late_sums(units: Units, made: Mapping[str, int]) -> Iterator[FusedWrite]:
    for slot, summed in _late_sums(units):
        source = units.slots[summed.slot]
        if not isinstance(source, StoredSlot) or source.kept or source.destinations:
            raise Unfit(OVER_ALL_HEADS)
        for part, name in enumerate(late_names(slot.name, len(summed.parts))):
            yield FusedWrite(name, None, made[name], source.name, part, 0, units.number(source.width))


def _late_sums(units: Units) -> list[tuple[StoredSlot, LateSum]]:
    """The sums over all heads that go to memory."""
    found = [(slot, units.late.known[slot.name]) for slot in units.program.slots if slot.name in units.late]
    stored = [(slot, summed) for slot, summed in found if isinstance(slot, StoredSlot) and slot.destinations]
    if any(slot.kept for slot, _ in stored) or len({summed.slot for _, summed in stored}) < len(stored):
        raise Unfit(OVER_ALL_HEADS)
    return stored


def _are_joined(units: Units, table: Sequence[Sequence[MatrixPart]], transposed: bool) -> bool:
    if len(table[0] if not transposed else table) > 1:
        return False
    in_memory = list(reversed(table[0])) if transposed else [row[0] for row in table]
    return all(_follows(units.matrices, before, after) for before, after in pairwise(in_memory))


def _follows(matrices: Mapping[str, Matrix], before: MatrixPart, after: MatrixPart) -> bool:
    """Whether rows of a weight stand behind others."""
    one, other = matrices[before.name], matrices[after.name]
    if one is other:
        return after.part == before.part + 1
    is_whole = before.part == one.parts - 1 and after.part == 0
    return is_whole and other.index == one.index and other.offset == add(one.offset, one.rows)
