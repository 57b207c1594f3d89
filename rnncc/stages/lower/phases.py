"""The phases of a fused step: what waits for what, made as few as the algebra of sums allows.

A *relayed* phase is a product whose sums do nothing but go into the next product, as the first factor of a matrix of
low rank gives them to the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rnncc.ir.dim import HEADS, HIDDEN_SIZE, Dim, add, names, substitute
from rnncc.ir.expr import Ref
from rnncc.ir.fused import FusedPhase, FusedReduction, FusedWrite, MatrixPart, MatrixRule, Relay, Relays
from rnncc.ir.lowered import Unfit
from rnncc.ir.step import Matrix, Statement, Table
from rnncc.ir.structure import Sparsity
from rnncc.stages.lower.operations import Operation, PartProduct, made_by, taken_by
from rnncc.stages.lower.rules import with_joined_rules
from rnncc.stages.lower.shorten import needed, split, with_rsqrt
from rnncc.stages.lower.units import Units

_KNOWN = names(HIDDEN_SIZE) | names(HEADS)


@dataclass(slots=True)
class PhaseDraft:
    """A phase while it is filled: its sums, each with the matrices that it takes, by operand; its reductions; and the
    widths of sums and operands."""

    transposed: bool | None = None
    matrices: dict[str, dict[str, MatrixPart | MatrixRule]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    reductions: list[FusedReduction] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Phased:
    """Operations, and what they wait for.

    levels   for each value that a step makes, how many phases are over before it is known
    found    the phases, in order: phase n takes values of level n or less, and gives values of level n + 1
    """

    operations: Sequence[Operation]
    levels: Mapping[str, int]
    found: Sequence[PhaseDraft]


def in_fewest_phases(units: Units, operations: Sequence[Operation]) -> Phased:
    """The operations after all rewrites. Each rewrite leaves the values of a step as they are, and makes some wait for
    less. Raises Unfit."""
    operations = with_rsqrt(operations)  # a quotient by a square root is a product
    operations = with_joined_rules(operations)  # a running sum that is repeated is one product
    step, number = phased(operations), 1
    while number < len(step.found):
        # Where a phase has nothing but reductions, these may be made of sums that an earlier phase gives.
        phase, earlier = step.found[number], None
        if not phase.matrices:
            earlier = split(step.operations, phase.reductions, step.levels, units.scalars())
        if earlier is None:
            number += 1
        else:
            step = phased(earlier)
    return phased(needed(step.operations, units.outlive()))


def phased(operations: Sequence[Operation]) -> Phased:
    """Operations as they are, and what they wait for. Raises Unfit."""
    made = {name for each in operations if not isinstance(each, PartProduct) for name in made_by(each)}
    sums: dict[str, list[PartProduct]] = {}
    for each in operations:
        if isinstance(each, PartProduct):
            sums.setdefault(each.sum, []).append(each)
    levels: dict[str, int] = {}
    found: dict[int, PhaseDraft] = {}

    def level_of(names: Iterable[str]) -> int:
        return max((levels.get(name, 0) for name in names), default=0)

    for each in operations:
        match each:
            case PartProduct(name):
                # The first product of a sum stands for all of them.
                if name not in levels:
                    level = level_of(product.operand for product in sums[name])
                    for product in sums[name]:
                        if product.operand in made and product.operand not in levels:
                            raise Unfit(f"a sum of products takes {product.operand} before it is computed")
                    _add_sum(found.setdefault(level, PhaseDraft()), sums[name])
                    levels[name] = level + 1
            case FusedReduction(results):
                level = level_of(taken_by(each))
                found.setdefault(level, PhaseDraft()).reductions.append(each)
                levels |= dict.fromkeys(results, level + 1)
            case Statement(name):
                levels[name] = level_of(taken_by(each))
    return Phased(operations, levels, [found[level] for level in sorted(found)])


def _add_sum(phase: PhaseDraft, products: Sequence[PartProduct]) -> None:
    """Adds all products of a sum to a phase."""
    name = products[0].sum
    for product in products:
        phase.transposed = product.transposed if phase.transposed is None else phase.transposed
        if product.transposed not in (None, phase.transposed):
            raise Unfit("products with a matrix and with a transposed one would run at once")
    phase.matrices[name] = {product.operand: product.matrix for product in products}
    phase.widths |= {product.operand: product.operand_width for product in products} | {name: products[0].sum_width}


def phase_of(units: Units, found: PhaseDraft) -> FusedPhase:
    """A phase, with its matrices as a table of sums and operands."""
    operands = _side_by_side(found)
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
        _sparsity(units, [part for row in whole for part in row]),
    )


def _side_by_side(found: PhaseDraft) -> tuple[str, ...]:
    """The operands in the order of the sums, but for those that the same sums take: they stand side by side."""
    by_sums: dict[tuple[str, ...], list[str]] = {}
    for operand in dict.fromkeys(operand for taken in found.matrices.values() for operand in taken):
        sums = tuple(name for name, taken in found.matrices.items() if operand in taken)
        by_sums.setdefault(sums, []).append(operand)
    return tuple(operand for operands in by_sums.values() for operand in operands)


def _sparsity(units: Units, matrices: Sequence[MatrixPart | MatrixRule]) -> Sparsity | None:
    """What is certain of all matrices, where each is sparse: no more than the density of the densest, in blocks that
    divide those of each."""
    in_memory = [units.matrices[each.name] for each in matrices if isinstance(each, MatrixPart)]
    found = [units.step.weights[matrix.index].sparsity for matrix in in_memory]
    known = [sparsity for sparsity in found if sparsity is not None]
    if not known or len(known) < len(matrices):
        return None
    return Sparsity(max(each.density for each in known), math.gcd(*(each.block for each in known)))


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


def relays_of(
    phases: Sequence[FusedPhase],
    chain: Sequence[Sequence[Statement]],
    writes: Sequence[FusedWrite],
    elsewhere: frozenset[str],
    sizes: Mapping[int, Dim],
) -> Relays | None:
    """The relayed phases of a step, if it has any. The sums of all have one width.

    phases      the phases of the step
    chain       the statements before, between and after them
    writes      what goes to tensors
    elsewhere   names that outlive their stage, or go to a row write
    sizes       the widths that the hidden size and the number of heads determine, by number
    """
    found: list[tuple[Relay, ...]] = []
    width = None
    for number, phase in enumerate(phases):
        found.append(())
        if number + 1 == len(phases) or (number and found[-2]):
            continue
        after = phases[number + 1]
        own = {*phase.sum_widths, *after.operand_widths}
        if len(own) != 1 or not own <= set(sizes) or width not in (None, *own):
            continue
        between = chain[number + 1]
        if elsewhere.isdisjoint((*phase.sums, *(each.target for each in between))):
            found[-1] = _relays(phase, after, between, [each for each in writes if each.stage == number + 1])
        if found[-1]:
            (width,) = own
    return None if width is None else Relays(width, sizes[width], tuple(found))


def _relays(
    phase: FusedPhase,
    after: FusedPhase,
    between: Sequence[Statement],
    writes: Sequence[FusedWrite],
) -> tuple[Relay, ...]:
    """Where each sum of a phase goes, or nothing where the phase is not relayed. Between the phases, `between` must be
    copies alone, and `writes` at most one of each sum."""
    if phase.reductions or after.reductions or not phase.sums or not _has_runs_apart(phase):
        return ()
    copied = {name: name for name in phase.sums}
    for statement in between:
        if not isinstance(statement.expr, Ref) or statement.expr.name not in copied:
            return ()
        copied[statement.target] = copied[statement.expr.name]
    taken = [copied.get(operand) for operand in after.operands]
    written = [copied.get(write.value) for write in writes]
    if sorted(map(str, taken)) != sorted(phase.sums) or None in written or len(set(written)) < len(written):
        return ()
    if any(write.place is not None and write.place.table is Table.SAVED for write in writes):
        return ()
    of_write = {copied[write.value]: write.value for write in writes}
    return tuple(Relay(taken.index(name), of_write.get(name, "")) for name in phase.sums)


def _has_runs_apart(phase: FusedPhase) -> bool:
    """Whether each sum takes the operands of one run alone, and all runs have equally many operands: has_runs_apart in
    templates/include/rnncc/cuda/fused/device/runs.cuh has the same rule."""
    runs: dict[tuple[bool, ...], int] = {}
    for taken in phase.taken_by:
        runs[taken] = runs.get(taken, 0) + 1
    once = all(sum(taken) == 1 for taken in zip(*runs, strict=True))
    return once and len(set(runs.values())) == 1


def known_sizes(widths: Sequence[Dim], solved: Mapping[str, Dim]) -> dict[int, Dim]:
    """The widths that the hidden size and the number of heads determine, by number. `solved`: sizes that follow from
    others, by name."""
    found = {number: substitute(width, solved) for number, width in enumerate(widths)}
    return {number: width for number, width in found.items() if names(width) <= _KNOWN}
