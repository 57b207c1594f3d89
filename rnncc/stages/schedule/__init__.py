"""`schedule`: the layout of a loop on a GPU.

Input: a FusedLoop (or the reason why there is none), a Problem, a Target. Output: a Schedule, which has kernels for
small and large batches, and for each family without a kernel the requirements that rule it out. For a ScanLoop the
output is a ScanSchedule for all problems and GPUs (scan.py). Fails with: InternalError only, since the alternating
kernel takes what no fused kernel takes.

Kernels are planned without a GPU and chosen where they run. So some rules stand here in Python and also in C++:
docs/design.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rnncc.constrint import Infeasible, LimitReached, Limits
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
from rnncc.stages.schedule.families import MODELS
from rnncc.stages.schedule.scan import plan_scan, scan_schedule
from rnncc.stages.schedule.stepwise import stepwise, stepwise_takes

__all__ = ["Found", "after_us", "expected", "find", "plan_scan", "scan_schedule", "schedule"]

# A search takes some tens of nodes; far more would be a mistake in a model.
LIMITS = Limits(nodes=1_000, steps=20_000)
# What may be spent on whether one requirement is needless. Where that is not enough, the reason names it too.
REASON_LIMITS = Limits(nodes=200, steps=1_000)
# A fused kernel must be expected to take at most this part of the alternating kernel's time. Otherwise it is not worth
# its compilation, and the estimates are not more accurate than that.
WORTH = 0.9
_LARGE = 256  # a large batch
_LAUNCHES = (2, 8, 256)  # the numbers of launches at which large batches are compared with the alternating kernel


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
    """The quickest kernels of a loop. `reasons`: the schedule
    also says what rules out the families that have no kernel."""
    found = find(loop, problem, target)
    return found.explained() if reasons else found.schedule


def find(loop: FusedLoop | NoForm, problem: Problem, target: Target) -> Found:
    """What `schedule` gives, with the proofs from which `Found.explained` makes its reasons later.

    A cluster kernel takes any batch, group after group. The CTAs of a grid kernel must all run at once, so after such a
    kernel comes the quickest one for twice its batch, or at least for one entry more. A batch beyond that takes several
    launches of one of them, where that is quicker. Before a cluster kernel stands one that takes a large batch at once,
    if it is quicker there.
    """
    if isinstance(loop, NoForm):
        return Found(Schedule((), None, (Rejected(None, None, (Limit("form", loop.reason, ""),)),), 0))
    known = facts_of(loop, problem.dtype)
    if too_large := _too_large(known, problem, target):
        rejected = (Rejected(None, None, too_large), Rejected(ALTERNATING, None, too_large))
        return Found(Schedule((), None, rejected, 0))
    alternating = alternating_us(known, problem, target)
    if unfit := _unfit(problem, target):
        return Found(Schedule((), alternating, (Rejected(None, None, unfit),), 0))

    def solve(batch: int, families: Iterable[Family] = MODELS) -> _Answer:
        return _solve(known, replace(problem, batch=batch), target, families)

    answer = solve(problem.batch)
    best = answer.quickest
    # Where no family is quick at the planned batch, one may be at a small batch.
    first = answer if best or problem.batch <= TILE_BATCH else solve(TILE_BATCH)
    larger = _with_a_large_one(tuple(_for_larger_batches(first, solve)), first, solve)
    groups = next((kernel for kernel in larger if kernel.launch_batch is None), None)
    kernels = _of_use(_again(kernel, groups, known, problem, target) for kernel in larger)
    if stepwise_takes(loop, problem):
        kernels = (*kernels, *_by_steps(kernels, known, problem, target))
    found = Schedule(kernels, alternating, answer.rejected, answer.nodes)
    taken = found.kernel_for(problem.batch)
    if taken is not None:
        # If the kernel needs several launches, its family was rejected above, where the whole batch had to run at once.
        others = tuple(entry for entry in found.rejected if entry.family is not taken.family)
        found = replace(
            found,
            step_us=round(step_us(known, taken, problem, target), 3),
            rejected=(*others, Rejected(ALTERNATING, alternating, ())),
        )
    return Found(found, answer.proofs)


def _for_larger_batches(answer: _Answer, solve: Callable[[int, Iterable[Family]], _Answer]) -> Iterator[FusedSchedule]:
    """The quickest kernel of an answer, and after it the kernels for larger batches."""
    while kernel := answer.quickest:
        yield kernel
        if kernel.launch_batch is None:
            return
        wider = solve(2 * kernel.launch_batch, answer.feasible)
        answer = wider if wider.quickest else solve(kernel.launch_batch + 1, answer.feasible)


def _with_a_large_one(
    kernels: tuple[FusedSchedule, ...], answer: _Answer, solve: Callable[[int, Iterable[Family]], _Answer]
) -> tuple[FusedSchedule, ...]:
    """The kernels. Where the last one takes any batch, in groups one after the other, a kernel before it that takes a
    large batch at once may be quicker there."""
    known = {kernel.family for kernel in kernels}
    limited = [family for family in answer.feasible if family.scope is Scope.GRID and family not in known]
    if not kernels or kernels[-1].launch_batch is not None or not limited:
        return kernels
    *others, groups = kernels
    large, by_groups = solve(_LARGE, limited).quickest, groups.planned_us(_LARGE)
    is_quick = large is not None and by_groups is not None and large.step_us < WORTH * by_groups
    return (*others, large, groups) if large is not None and is_quick else kernels


def _again(
    kernel: FusedSchedule, groups: FusedSchedule | None, known: Facts, problem: Problem, target: Target
) -> FusedSchedule:
    """The kernel with the time of a full launch, if launch after launch is quicker than the alternating kernel. It must
    also be quicker than the kernel that takes any batch in `groups`, where there is one. They are compared at a few full
    launches and at many: for a small batch the barrier of the alternating kernel counts, and clusters share SMs in a
    large one."""
    if kernel.launch_batch is None:
        return kernel
    full = replace(problem, batch=kernel.launch_batch)
    again = replace(kernel, launch_us=round(step_us(known, kernel, full, target), 3))
    batches = (replace(problem, batch=launches * kernel.launch_batch) for launches in _LAUNCHES)

    def others_us(several: Problem) -> float:
        us = WORTH * alternating_us(known, several, target)
        return us if groups is None else min(us, step_us(known, groups, several, target))

    return again if all(step_us(known, again, each, target) <= others_us(each) for each in batches) else kernel


def _of_use(kernels: Iterable[FusedSchedule]) -> tuple[FusedSchedule, ...]:
    """The kernels without those that are always slower than several launches of a kernel before them."""
    kept: list[FusedSchedule] = []
    for kernel in kernels:
        before = () if kernel.launch_batch is None else [one.planned_us(kernel.launch_batch) for one in kept]
        if all(us is None or us > kernel.pass_us for us in before):
            kept.append(kernel)
    return tuple(kept)


def _by_steps(
    kernels: tuple[FusedSchedule, ...], known: Facts, problem: Problem, target: Target
) -> Iterator[FusedSchedule]:
    """The stepwise kernel, if from some batch on it is quicker than these kernels and the alternating one."""

    def without(batch: int) -> float:
        planned = [us for kernel in kernels if (us := kernel.planned_us(batch)) is not None]
        us = min(planned) if planned else alternating_us(known, replace(problem, batch=batch), target)
        return WORTH * us

    if kernel := stepwise(known, problem, target, without):
        yield kernel


def _too_large(known: Facts, problem: Problem, target: Target) -> tuple[Limit, ...]:
    """What every kernel asks of the GPU's memory, where there is less."""
    elements = problem.heads * known.matrix_elements(problem.head_dim, problem.head_dim)
    gigabytes = elements * problem.element_bytes / 1e9
    if gigabytes <= target.memory_gb:
        return ()
    return (Limit("memory", "the recurrent weights lie in it", f"{gigabytes:.0f} GB <= {target.memory_gb} GB"),)


def _unfit(problem: Problem, target: Target) -> tuple[Limit, ...]:
    """What all fused kernels ask of a problem and a GPU, where these do not give it."""
    limits = []
    if not target.has_clusters:
        needed = "fused kernels use clusters of CTAs and other means of compute capability 9.0"
        limits.append(Limit("compute capability", needed, f"{target.capability} >= 9.0"))
    if problem.head_dim % UNIT_BLOCK:
        needed = f"a warp takes {UNIT_BLOCK} elements of it at a time"
        limits.append(Limit("head_dim", needed, f"{problem.head_dim} % {UNIT_BLOCK} == 0"))
    return tuple(limits)


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


def _solve(known: Facts, problem: Problem, target: Target, wanted: Iterable[Family]) -> _Answer:
    families: list[tuple[Family, FusedSchedule | Infeasible]] = []
    nodes = 0
    for family in wanted:
        draft = MODELS[family](known, problem, target)
        try:
            solution = draft.model.minimise(draft.total, limits=LIMITS)
        except Infeasible as reason:
            families.append((family, reason))
        except LimitReached as reason:
            raise InternalError(f"the schedule of {family.name} for {problem} takes too long: {reason}") from reason
        else:
            families.append((family, draft.scheduled(solution, problem, target)))
            nodes += solution.nodes
    found = [kernel for _, kernel in families if isinstance(kernel, FusedSchedule)]
    best = min(found, key=lambda kernel: (kernel.step_us, kernel.ctas), default=None)
    if best and best.step_us > WORTH * alternating_us(known, problem, target):
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
