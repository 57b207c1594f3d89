"""Relayed phases: products whose sums do nothing but go into the next product, as the first factor of a matrix of low
rank gives them to the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnncc.ir.dim import HEADS, HIDDEN_SIZE, Dim, names, substitute
from rnncc.ir.expr import Ref
from rnncc.ir.fused import FusedPhase, FusedWrite, Relay, Relays
from rnncc.ir.step import Statement, Table

_KNOWN = names(HIDDEN_SIZE) | names(HEADS)


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
    templates/include/rnncc/cuda/fused/runs.cuh has the same rule."""
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
