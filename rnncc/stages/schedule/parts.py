"""What a CTA of the grid family holds and multiplies in each phase of a step: OfPhase in grid_loop.cuh, runs.cuh."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from rnncc.ir.layout import ceil
from rnncc.stages.schedule.cost import LoopCost, PhaseCost

K_WARPS = 8  # such a CTA may use all registers of its SM, and each thread 255, the most there are
_CHUNK, _BLOCK = 32, 8  # terms of a chunk, and units of a half-tile

Halves = Callable[[int], int]  # half-tiles by the blocks of 8 units that a CTA has


@dataclass(frozen=True, slots=True)
class Part:
    """A product that a warp holds: sums that take the same operands.

    kind    products of one kind have equally many half-tiles, so a model counts their chunks together
    halves  half-tiles of the sums
    chunks  chunks of 32 terms per warp
    """

    kind: Hashable
    halves: Halves
    chunks: int


@dataclass(frozen=True, slots=True)
class PhaseParts:
    """A phase as a CTA runs it.

    parts     the products that a warp holds; none where the phase has no product
    halves    half-tiles of all sums of the CTA
    sharers   how many warps have parts of the same sum
    terms     the terms that the CTA receives, for each batch entry
    made      the operands that its items make
    runs      the fewest CTAs per head: where sums are dealt out among CTAs, one for each run
    """

    parts: tuple[Part, ...]
    halves: Halves
    sharers: int
    terms: int
    made: int
    runs: int = 1

    @property
    def chunks(self) -> int:
        """Chunks per warp."""
        return sum(part.chunks for part in self.parts)

    def halves_of_warp(self, unit_blocks: int) -> int:
        """Half-tiles of the sums of all parts, by the blocks of 8 units that a CTA has."""
        return sum(part.halves(unit_blocks) for part in self.parts)


def phase_parts(cost: LoopCost, head_dim: int, narrow: int, ctas_of: Halves) -> Iterator[PhaseParts]:
    """The phases as a CTA runs them. `narrow`: the head_dim of relayed sums where they are dealt out, or 0. `ctas_of`:
    the CTAs of a head, by the blocks of 8 units that each has."""
    for number, (phase, takes_relayed) in enumerate(cost.after_relays):
        if narrow and phase.relays:
            yield _dealt_among_ctas(number, phase, head_dim, narrow, ctas_of)
        elif narrow and takes_relayed:
            yield _of_relayed(number, phase, narrow)
        else:
            yield _phase(phase, phase.operands, head_dim, K_WARPS)


def _phase(phase: PhaseCost, made: int, head_dim: int, sharers: int) -> PhaseParts:
    """All warps multiply all runs."""
    parts = [
        Part(run.sums, times(run.sums), ceil(run.operands * ceil(head_dim, _CHUNK), sharers))
        for run in phase.runs
        if run.operands
    ]
    return PhaseParts(tuple(parts), times(phase.sums), sharers, phase.operands * head_dim, made)


def _of_relayed(number: int, phase: PhaseCost, narrow: int) -> PhaseParts:
    """A phase that takes relayed sums. Where its runs are alike, each has warps of its own."""
    first, *others = phase.runs
    if not others or len(phase.runs) > K_WARPS or not _are_apart(phase, same_sums=True):
        return _phase(phase, 0, narrow, K_WARPS)
    sharers = K_WARPS // len(phase.runs)
    part = Part(("warps", number), times(first.sums), ceil(first.operands * ceil(narrow, _CHUNK), sharers))
    return PhaseParts((part,), times(phase.sums), sharers, phase.operands * narrow, 0)


def _dealt_among_ctas(number: int, phase: PhaseCost, head_dim: int, narrow: int, ctas_of: Halves) -> PhaseParts:
    """A phase whose sums are relayed. A CTA has half-tiles of one run alone (relayed_halves in runs.cuh)."""
    blocks = [run.sums * narrow // _BLOCK for run in phase.runs]

    def halves(unit_blocks: int) -> int:
        ctas = max(ctas_of(unit_blocks), len(blocks))
        return next(n for n in range(1, sum(blocks) + 1) if sum(ceil(own, n) for own in blocks) <= ctas)

    operands = phase.runs[0].operands
    part = Part(("ctas", number), halves, ceil(operands * ceil(head_dim, _CHUNK), K_WARPS))
    return PhaseParts((part,), halves, K_WARPS, operands * head_dim, phase.operands, len(blocks))


def _are_apart(phase: PhaseCost, *, same_sums: bool) -> bool:
    """Whether each sum is in one run, and all runs are alike: has_runs_apart in runs.cuh has the same rule."""
    alike = {(run.operands, run.sums if same_sums else 0) for run in phase.runs}
    return len(alike) == 1 and sum(run.sums for run in phase.runs) == phase.sums


def times(sums: int) -> Halves:
    """The half-tiles of so many sums."""
    return lambda unit_blocks: sums * unit_blocks
