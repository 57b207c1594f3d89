"""`schedule`: the layout of a loop on a GPU.

Input: a FusedLoop (or the reason why there is none), a Problem, a Target. Output: a Schedule, which has kernels for
small and large batches, and for each family without a kernel the requirements that rule it out. For a ScanLoop the
output is a ScanSchedule for all problems and GPUs (scan.py). Fails with: InternalError only, since the alternating
kernel takes what no fused kernel takes.

Kernels are planned without a GPU and chosen where they run. So some rules stand here in Python and also in C++:
docs/design.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from rnncc.constrint import Infeasible, LimitReached, Limits, WrongAnswer
from rnncc.ir.family import ALTERNATING, Family, Scope
from rnncc.ir.fused import FusedLoop
from rnncc.ir.plan import NoForm
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import FusedSchedule, Limit, Rejected, Schedule
from rnncc.ir.target import Target
from rnncc.language.diagnostics import InternalError
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.draft import TILE_BATCH, UNIT_BLOCK
from rnncc.stages.schedule.expect import after_us, expected, step_us
from rnncc.stages.schedule.facts import Facts, facts_of
from rnncc.stages.schedule.families import MODELS, families_for
from rnncc.stages.schedule.scan import plan_scan, scan_schedule
from rnncc.stages.schedule.stepwise import first_stepwise, stepwise, stepwise_takes

__all__ = ["Found", "after_us", "expected", "find", "plan_scan", "scan_schedule", "schedule"]

# A search takes some tens of nodes; far more would be a mistake in a model.
LIMITS = Limits(nodes=1_000, steps=20_000)
# What may be spent on whether one requirement is needless. Where that is not enough, the reason names it too.
REASON_LIMITS = Limits(nodes=200, steps=1_000)
# A fused kernel must be expected to take at most this part of the alternating kernel's time. Otherwise it is not worth
# its compilation, and the estimates are not more accurate than that.
WORTH = 0.9
# The same of a kernel for matrices that are mostly zeros, and of all other kernels. Where both were measured, none that
# is expected to take at most this part was slower than the dense one (tests/stages/test_schedule_sparse_measured.py).
SPARSE_WORTH = 0.86
_LARGE = 256  # a large batch
# Smaller batches at which a kernel is looked for where the planned batch has none. Dense kernels take a tile at least.
_SMALL_BATCHES = (TILE_BATCH, TILE_BATCH // 2)
# A batch may take any number of launches if they are quicker than other kernels at these numbers of full launches.
# Otherwise it may take a few, at most so many.
_LAUNCHES, _FEW = (2, 8, 256), 16


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule, and a proof for each family that has no kernel. `explained` makes reasons from the proofs on demand,
    because that takes longer than the search."""

    schedule: Schedule
    proofs: Mapping[Family | None, Infeasible] = field(default_factory=dict)

    def explained(self) -> Schedule:
        """The schedule with what rules out the families that have no kernel."""
        rejected = (
            replace(entry, limits=_limits(self.proofs[entry.family])) if entry.family in self.proofs else entry
            for entry in self.schedule.rejected
        )
        return replace(self.schedule, rejected=tuple(rejected))


def schedule(loop: FusedLoop | NoForm, problem: Problem, target: Target, *, reasons: bool = False) -> Schedule:
    """The quickest kernels of a loop. `reasons`: the schedule also says what rules out the families that have no
    kernel."""
    found = find(loop, problem, target)
    return found.explained() if reasons else found.schedule


def find(loop: FusedLoop | NoForm, problem: Problem, target: Target) -> Found:
    """What `schedule` gives, with the proofs from which `Found.explained` makes its reasons later.

    A cluster kernel takes any batch, group after group. The CTAs of a grid kernel must all run at once, so after such a
    kernel comes the quickest one for the next power of two, or at least for one entry more. A batch beyond that takes
    several launches of one of them, where that is quicker. Before a cluster kernel stands one that takes a large batch
    at once, if it is quicker there. Before a grid kernel for the planned batch stands one for a small batch, if it is
    clearly quicker there.
    """
    if isinstance(loop, NoForm):
        return Found(Schedule((), None, (Rejected(None, None, (Limit("form", loop.reason, ""),)),), 0))
    known = facts_of(loop, problem.dtype)
    if too_large := _too_large(known, problem, target):
        rejected = (Rejected(None, None, too_large), Rejected(ALTERNATING, None, too_large))
        return Found(Schedule((), None, rejected, 0))
    alternating = alternating_us(known, problem, target)
    if unfit := _unfit(problem):
        return Found(Schedule((), alternating, (Rejected(None, None, unfit),), 0))

    search = _Search(known, problem, target)
    families = families_for(known)
    answer, kernels = _for_all_batches(families, search)
    for_zeros = tuple(kernel for kernel in kernels if kernel.family.for_zeros)
    if for_zeros:
        # Masks may be denser than planned, or so uneven that a kernel for zeros is slow. So the others are there, too.
        _, kernels = _for_all_batches([family for family in families if not family.for_zeros], search)
        for_zeros = tuple(kernel for kernel in for_zeros if _saves_time(kernel, kernels, search))
    by_steps = _by_steps(for_zeros, kernels, search) if stepwise_takes(loop, problem) else ()
    kernels = (*for_zeros, *kernels, *by_steps)
    found = Schedule(kernels, alternating, answer.rejected, answer.nodes)
    taken = found.kernel_for(problem.batch)
    if taken is not None:
        # If the kernel needs several launches, its family was rejected above, where the whole batch had to run at once.
        others = tuple(entry for entry in found.rejected if entry.family is not taken.family)
        quickest = answer.quickest
        if quickest is not None and quickest.family is not taken.family:
            others = (*others, Rejected(quickest.family, quickest.step_us, ()))
        found = replace(
            found,
            step_us=round(step_us(known, taken, problem, target), 3),
            rejected=(*others, Rejected(ALTERNATING, alternating, ())),
        )
    return Found(found, answer.proofs)


def _for_all_batches(families: Sequence[Family], search: _Search) -> tuple[_Answer, tuple[FusedSchedule, ...]]:
    """The answer for the planned batch, and the kernels of these families for all batches."""
    batch = search.problem.batch
    answer = search.solve(batch, families)
    first = answer
    # Where no family is quick at the planned batch, one may be at a small batch.
    for small in _SMALL_BATCHES:
        if small < batch and not first.quickest:
            first = search.solve(small, [each for each in families if small >= TILE_BATCH or each.for_zeros])
    kernels = _with_a_large_one(tuple(_for_larger_batches(first, search)), first, search)
    kernels = tuple(_again(kernel, kernels[place:], search) for place, kernel in enumerate(kernels, 1))
    if first is answer:
        kernels = _with_a_small_one(kernels, families, search)
    return answer, _of_use(kernels)


def _saves_time(kernel: FusedSchedule, dense: Sequence[FusedSchedule], search: _Search) -> bool:
    """Whether a kernel for matrices that are mostly zeros is expected to be clearly quicker than all others, at the
    largest batch of a launch: how long it takes depends on the mask."""
    assert kernel.launch_batch is not None
    planned = [us for other in dense if (us := other.planned_us(kernel.launch_batch)) is not None]
    return kernel.pass_us <= SPARSE_WORTH * min([*planned, search.alternating_us(kernel.launch_batch)])


def _for_larger_batches(answer: _Answer, search: _Search) -> Iterator[FusedSchedule]:
    """The quickest kernel of an answer, and after it the kernels for larger batches."""
    while kernel := answer.quickest:
        yield kernel
        if kernel.launch_batch is None:
            return
        wider = _larger(answer, _power_above(kernel.launch_batch), search)
        answer = wider if wider.quickest else _larger(answer, kernel.launch_batch + 1, search)


def _power_above(batch: int) -> int:
    """The next power of two, which is what most batches are."""
    return 1 << batch.bit_length()


def _larger(answer: _Answer, batch: int, search: _Search) -> _Answer:
    """The answer for a larger batch. The layouts of clusters hardly depend on the batch. They are only searched again
    where one that is known takes less time than the kernels that take the batch at once."""
    known = {family: found for family, found in answer.families if isinstance(found, FusedSchedule)}
    at_once = search.solve(batch, [family for family in known if family.scope is Scope.GRID])
    enough = at_once.quickest.step_us if at_once.quickest else inf
    clusters = {family: kernel for family, kernel in known.items() if family.scope is not Scope.GRID}
    by_groups = search.solve(batch, [each for each, kernel in clusters.items() if search.us(kernel, batch) < enough])
    found = [kernel for kernel in (at_once.quickest, by_groups.quickest) if kernel]
    quickest = min(found, key=lambda kernel: (kernel.step_us, kernel.ctas), default=None)
    families = clusters | dict(at_once.families) | dict(by_groups.families)
    return _Answer(tuple(families.items()), quickest, at_once.nodes + by_groups.nodes)


def _with_a_large_one(
    kernels: tuple[FusedSchedule, ...], answer: _Answer, search: _Search
) -> tuple[FusedSchedule, ...]:
    """The kernels. Where the last one takes any batch, in groups one after the other, a kernel before it that takes a
    large batch at once may be quicker there. `answer` is that for the planned batch."""
    if not kernels or kernels[-1].launch_batch is not None:
        return kernels
    *others, groups = kernels
    taken = {kernel.family for kernel in others}
    limited = [family for family in answer.feasible if family.scope is Scope.GRID and family not in taken]
    large = search.solve(_LARGE, limited).quickest
    return (*others, large, groups) if large and large.step_us < WORTH * search.us(groups, _LARGE) else kernels


def _with_a_small_one(
    kernels: tuple[FusedSchedule, ...], families: Iterable[Family], search: _Search
) -> tuple[FusedSchedule, ...]:
    """The kernels. Before a grid for the planned batch comes one for a small batch, where that is clearly quicker: it
    has one tile of entries, and more of the matrices in registers. There is none for clusters, whose layouts hardly
    depend on the batch. A kernel for the small batch that takes a larger one at once is left out: its time, which is
    that of the small batch, would count there too."""
    if not kernels or search.problem.batch <= TILE_BATCH or not _is_dense_grid(kernels[0].family):
        return kernels
    small = search.solve(TILE_BATCH, filter(_is_dense_grid, families)).quickest
    if small is None or small.launch_batch != TILE_BATCH:
        return kernels
    if small.step_us >= WORTH * search.us(kernels[0], TILE_BATCH):
        return kernels
    return (_again(small, kernels, search), *kernels)


def _is_dense_grid(family: Family) -> bool:
    return family.scope is Scope.GRID and not family.for_zeros


def _again(kernel: FusedSchedule, larger: Sequence[FusedSchedule], search: _Search) -> FusedSchedule:
    """The kernel, with how many launches a batch may take. `larger`: the kernels after it.

    Any number, if they are quicker than the alternating kernel at a few full launches and at many: for a small batch
    the barrier of the alternating kernel counts, and clusters share SMs in a large one. They must also be quicker than
    the `larger` kernel that takes any batch, where there is one; or in float32 and for many launches, not clearly
    slower. The exception is for nn.RNN of 1024 units. Its clusters were expected to take 0.93 times as long as many
    launches. On an H200 they took 1.35 times as long as 2, and 1.13 times as long as 4. Otherwise a few
    (`_few_launches`)."""
    full = kernel.launch_batch
    if full is None:
        return kernel
    full_us, any_batch = search.us(kernel, full), _of_any_batch(larger)

    def is_quick(launches: int) -> bool:
        batch, us = launches * full, launches * full_us
        clear = WORTH if search.problem.is_float and launches == max(_LAUNCHES) else 1.0
        is_quicker = any_batch is None or clear * us <= search.us(any_batch, batch)
        return is_quicker and us <= WORTH * search.alternating_us(batch)

    most = None if all(map(is_quick, _LAUNCHES)) else _few_launches(kernel, full_us, larger, search)
    if most == 1:
        return kernel
    # Launches of a larger kernel count as full ones, but the last may take less. So launches of a dense tile must be
    # clearly quicker.
    factor = 1 / WORTH if larger and full == TILE_BATCH and _is_dense_grid(kernel.family) else 1.0
    return replace(kernel, most_launches=most, launch_us=round(factor * full_us, 3))


def _few_launches(kernel: FusedSchedule, full_us: float, larger: Sequence[FusedSchedule], search: _Search) -> int:
    """Up to how many launches of a kernel are quicker than the other kernels. They are compared where the last launch
    has a single entry: there the other kernels take the least. What a larger kernel takes at once is left out: the
    quicker of these two will run."""
    assert kernel.launch_batch is not None
    again = replace(kernel, most_launches=None, launch_us=full_us)
    any_batch, most = _of_any_batch(larger), 1
    for launches in range(2, _FEW + 1):
        batch = (launches - 1) * kernel.launch_batch + 1
        us = max(launches * full_us, search.us(again, batch))
        if any_batch and us > search.us(any_batch, batch):
            break
        if us <= WORTH * search.alternating_us(batch):
            most = launches
        elif not any(other.launches(batch) == 1 for other in larger):
            break
    return most


def _of_any_batch(kernels: Sequence[FusedSchedule]) -> FusedSchedule | None:
    return next((kernel for kernel in kernels if kernel.launch_batch is None), None)


def _of_use(kernels: Iterable[FusedSchedule]) -> tuple[FusedSchedule, ...]:
    """The kernels without those that are always slower than several launches of a kernel before them."""
    kept: list[FusedSchedule] = []
    for kernel in kernels:
        before = () if kernel.launch_batch is None else [one.planned_us(kernel.launch_batch) for one in kept]
        if all(us is None or us > kernel.pass_us for us in before):
            kept.append(kernel)
    return tuple(kept)


def _by_steps(
    for_zeros: tuple[FusedSchedule, ...], dense: tuple[FusedSchedule, ...], search: _Search
) -> Iterator[FusedSchedule]:
    """The stepwise kernel, if from some batch on it is quicker than these kernels and the alternating one."""
    first, first_denser = (
        first_stepwise(search.known, search.problem, search.target, _without(kernels, search))
        for kernels in ((*for_zeros, *dense), dense)
    )
    if first is not None and first_denser is not None:
        yield stepwise(first, first_denser, search.known, search.problem, search.target)


def _without(kernels: tuple[FusedSchedule, ...], search: _Search) -> tuple[Callable[[int], float], ...]:
    """What a step of a batch takes without the stepwise kernel: as it is planned, less what a kernel must save to be
    worth its compilation, and as it is expected."""

    def planned(batch: int) -> float:
        found = [us for kernel in kernels if (us := kernel.planned_us(batch)) is not None]
        return WORTH * min(found, default=search.alternating_us(batch))

    def expected_us(batch: int) -> float:
        found = [search.us(kernel, batch) for kernel in kernels if kernel.launches(batch)]
        return min(found, default=WORTH * search.alternating_us(batch))

    return planned, expected_us


def _too_large(known: Facts, problem: Problem, target: Target) -> tuple[Limit, ...]:
    """What every kernel asks of the GPU's memory, where there is less."""
    elements = problem.heads * known.matrix_elements(problem.head_dim, problem.head_dim, known.narrow(problem))
    gigabytes = elements * problem.element_bytes / 1e9
    if gigabytes <= target.memory_gb:
        return ()
    return (Limit("memory", "the recurrent weights lie in it", f"{gigabytes:.0f} GB <= {target.memory_gb} GB"),)


def _unfit(problem: Problem) -> tuple[Limit, ...]:
    """What all fused kernels ask of a problem, where it does not give it."""
    if problem.head_dim % UNIT_BLOCK == 0:
        return ()
    needed = f"a warp takes {UNIT_BLOCK} elements of it at a time"
    return (Limit("head_dim", needed, f"{problem.head_dim} % {UNIT_BLOCK} == 0"),)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of the searches for one batch.

    families   the quickest kernel of each family, or why it has none
    quickest   the quickest kernel of all; None where the alternating kernel is about as quick
    nodes      the nodes of the searches that found a kernel
    """

    families: tuple[tuple[Family, FusedSchedule | Infeasible], ...]
    quickest: FusedSchedule | None
    nodes: int

    @property
    def feasible(self) -> tuple[Family, ...]:
        """The families that have a kernel; the others have none for larger batches either."""
        return tuple(family for family, found in self.families if not isinstance(found, Infeasible))

    @property
    def proofs(self) -> dict[Family | None, Infeasible]:
        """The proofs for the families that have no kernel."""
        return {family: found for family, found in self.families if isinstance(found, Infeasible)}

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """All families but the quickest."""
        return tuple(
            Rejected(family, None if isinstance(found, Infeasible) else found.step_us, ())
            for family, found in self.families
            if found is not self.quickest
        )


@dataclass(frozen=True, slots=True)
class _Search:
    """What is asked of one loop on a GPU, for several batches. `problem`: the sizes, and the planned batch."""

    known: Facts
    problem: Problem
    target: Target

    def us(self, kernel: FusedSchedule, batch: int) -> float:
        """The expected time of a step by a kernel."""
        return step_us(self.known, kernel, replace(self.problem, batch=batch), self.target)

    def alternating_us(self, batch: int) -> float:
        """The same by the alternating kernel."""
        return alternating_us(self.known, replace(self.problem, batch=batch), self.target)

    def solve(self, batch: int, wanted: Iterable[Family]) -> _Answer:
        """The quickest kernels of these families."""
        problem = replace(self.problem, batch=batch)
        families: list[tuple[Family, FusedSchedule | Infeasible]] = []
        nodes = 0
        for family in wanted:
            draft = MODELS[family](self.known, problem, self.target)
            try:
                solution = draft.model.minimise(draft.total, limits=LIMITS)
            except Infeasible as reason:
                families.append((family, reason))
            except LimitReached as reason:
                raise InternalError(f"the schedule of {family.name} for {problem} takes too long: {reason}") from reason
            except WrongAnswer as mistake:
                raise InternalError(f"the schedule of {family.name} for {problem}: {mistake}") from mistake
            else:
                families.append((family, draft.scheduled(solution, problem, self.target)))
                nodes += solution.nodes
        found = [kernel for _, kernel in families if isinstance(kernel, FusedSchedule)]
        best = min(found, key=lambda kernel: (kernel.step_us, kernel.ctas), default=None)
        if best and best.step_us > WORTH * self.alternating_us(batch):
            best = None
        return _Answer(tuple(families), best, nodes)


def _limits(reason: Infeasible) -> tuple[Limit, ...]:
    """Requirements that cannot hold together. The first is the one for a size: its numbers say how far the others
    go."""
    parts = reason.conflict_within(REASON_LIMITS).parts
    # A requirement that may be needless may have no numbers.
    first = next((part for part in parts if part.numbers), parts[0])
    return tuple(
        Limit(part.requirement.name, part.requirement.reason, part.numbers if part is first else "")
        for part in (first, *(part for part in parts if part is not first))
    )
