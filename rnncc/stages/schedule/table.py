"""Which kernel runs which batch: the table of a loop's kernels, made of their expected times.

A row is for all batches after the one before it, and its times are those of its largest batch. The last row is also for
all larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from rnncc.ir.family import Family, Scope
from rnncc.ir.layout import Choice, KernelLayout, Row

# A fused kernel must be expected to take at most this part of the alternating kernel's time. Otherwise it is not worth
# its compilation, and the estimates are not more accurate than that.
WORTH = 0.9
# A kernel for matrices that are mostly zeros must take at most this part of the time of others, at the largest batch of
# a launch: how long it takes depends on the mask. Where both were measured, none that does was slower than the dense
# one (tests/stages/test_schedule_sparse_measured.py).
SPARSE_WORTH = 0.8
# Nor is a kernel worth it where each batch takes at most so many times as long by another one. The estimates of kernels
# of the same scope are compared more closely than those of different scopes.
_NEEDLESS, _NEEDLESS_OF_SCOPES = 1.02, 1.08
# The kernel of a row also runs larger batches where it takes at most so many times as long as the quickest one.
_AS_QUICK = 1.01
# Rows whose times differ by at most this factor are one. Times of rows are compared for one direction and for two.
_ALIKE = 1.5
# The batches for which kernels are compared, up to 128 with all that whole tiles of 8 entries fill. Between them lie
# those that fill a few launches of a kernel.
BATCHES = tuple(2**power for power in range(11))
_BETWEEN = (*range(8, 128, 8), *(parts * batch // 4 for batch in BATCHES[3:-1] for parts in (5, 6, 7)))
_LAUNCHES = 4
_ZEROS, _STEPS = "masks are as sparse as planned", "sequences are not packed"


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A kernel, and the expected time of a step of any batch in microseconds."""

    kernel: KernelLayout
    us: Callable[[int], float]

    @property
    def limits(self) -> frozenset[str]:
        """What a call or a GPU must be like for the kernel to run."""
        return _limits(self.kernel.family, bool(self.kernel.relayed))


@cache
def _limits(family: Family, is_relayed: bool) -> frozenset[str]:
    conditions = {
        _ZEROS: family.for_zeros,
        _STEPS: family.scope is Scope.STEP,
        "the GPU runs all CTAs at once": family.scope is Scope.GRID,
        "relayed sums have the planned width": is_relayed,
    }
    return frozenset(condition for condition, holds in conditions.items() if holds)


def table(candidates: Sequence[Candidate], alternating_us: Callable[[int], float]) -> tuple[Row, ...]:
    """The table of the kernels that are worth their compilation; empty where there is none. `alternating_us`: the
    time of a step of any batch by the alternating kernel."""
    found = [each for each in candidates if _saves_time(each, candidates, alternating_us)]
    batches = sorted({*BATCHES, *_BETWEEN, *(end for each in found for end in _ends(each.kernel))})
    alternating = {batch: alternating_us(batch) for batch in batches}
    found = _needed(found, alternating)
    rows: list[Row] = []
    first: tuple[Choice, ...] = ()
    for before, batch in pairwise((0, *batches)):
        last = first[0].kernel if first else None
        choices = tuple(_choices(found, batch, WORTH * alternating[batch], last))
        if rows and _are_alike(first, choices):
            rows[-1] = Row(rows[-1].batch, choices)
        else:
            first = choices
            rows.append(Row(before + 1, choices))
    return tuple(rows) if found else ()


def _saves_time(candidate: Candidate, candidates: Iterable[Candidate], alternating_us: Callable[[int], float]) -> bool:
    """Whether a kernel for matrices that are mostly zeros is clearly quicker than all others. Other kernels need not
    be."""
    batch = candidate.kernel.launch_batch
    if not candidate.kernel.family.for_zeros or batch is None:
        return True
    others = [each.us(batch) for each in candidates if not each.kernel.family.for_zeros]
    return candidate.us(batch) <= SPARSE_WORTH * min([*others, alternating_us(batch)])


def _ends(kernel: KernelLayout) -> Iterator[int]:
    """The batches that fill a few launches, or passes of clusters."""
    full = kernel.launch_batch or kernel.batch_of_a_pass
    yield from range(full, min(_LAUNCHES * full, BATCHES[-1]) + 1, full)


def _needed(candidates: Sequence[Candidate], alternating: Mapping[int, float]) -> list[Candidate]:
    """The kernels without which some call would take clearly longer. `alternating`: the times of a step of each batch
    by the alternating kernel."""
    # Calls for which some of the conditions do not hold: packed sequences, denser masks.
    broken = {frozenset(), *(each.limits & {_ZEROS, _STEPS} for each in candidates)}
    calls = {some | others for some in broken for others in broken}
    able = {call: {number for number, each in enumerate(candidates) if not each.limits & call} for call in calls}
    # For each batch and call the time of the alternating kernel, and the others that run it, the quickest first.
    rivals: list[tuple[float, list[tuple[float, int]]]] = []
    for batch, us in alternating.items():
        times = sorted((each.us(batch), number) for number, each in enumerate(candidates))
        for numbers in able.values():
            running = [entry for entry in times if entry[1] in numbers]
            if running and running[0][0] <= WORTH * us:
                rivals.append((us, running))
    scopes = [each.kernel.family.scope for each in candidates]
    needed = set(range(len(candidates)))
    while needed:
        # How many times as long as by the quickest of all kernels a call would take without this one, and more than is
        # needless.
        losses = dict.fromkeys(needed, 0.0)
        for us, running in rivals:
            left = (entry for entry in running if entry[1] in needed)
            own, number = next(left)
            if own <= WORTH * us:
                other, rival = next(left, (us, None))
                is_alike = rival is not None and scopes[rival] is scopes[number]
                loss = other / running[0][0] / (_NEEDLESS if is_alike else _NEEDLESS_OF_SCOPES)
                losses[number] = max(losses[number], loss)
        least = min(sorted(needed, reverse=True), key=losses.__getitem__)
        if losses[least] > 1:
            break
        needed.remove(least)
        rivals = [(us, running) for us, running in rivals if any(number in needed for _, number in running)]
    return [candidates[number] for number in sorted(needed)]


def _choices(candidates: Iterable[Candidate], batch: int, most: float, last: KernelLayout | None) -> Iterator[Choice]:
    """The kernels for a batch that take at most `most`: the quickest, and after it each that runs calls which those
    before it cannot run. The first one of the `last` row goes on where it is about as quick."""
    before: list[frozenset[str]] = []
    for each in sorted(candidates, key=lambda each: each.us(batch) / (_AS_QUICK if each.kernel is last else 1)):
        if each.us(batch) <= most and not any(limits <= each.limits for limits in before):
            before.append(each.limits)
            yield Choice(each.kernel, each.us(batch) / each.kernel.passes(batch))


def _are_alike(some: Sequence[Choice], others: Sequence[Choice]) -> bool:
    """Whether the same kernel comes first and takes about as long, and kernels of the same families follow."""
    if not some or not others:
        return some == others
    first, other = some[0], others[0]
    families, other_families = ([each.kernel.family for each in choices] for choices in (some, others))
    less, more = sorted((first.pass_us, other.pass_us))
    return first.kernel is other.kernel and families == other_families and more <= _ALIKE * less
