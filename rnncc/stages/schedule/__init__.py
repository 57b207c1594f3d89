"""`schedule`: how a loop is laid out on a GPU.

Input: a FusedLoop (or why there is none), a Problem, a Target. Output: a Schedule, which has kernels for small and
large batches, and for each family without a kernel the requirements that rule it out. Fails with: InternalError only,
since the alternating kernel takes what no fused one does. For a ScanLoop the output is a ScanSchedule, for all problems
and GPUs (scan.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rnncc.constrint import Infeasible, LimitReached, Limits
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import FusedSchedule, Limit, Rejected, Schedule
from rnncc.ir.target import Target
from rnncc.language.diagnostics import InternalError
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.draft import TILE_COLUMNS, UNIT_BLOCK, element_bytes
from rnncc.stages.schedule.expect import after_us, expected, inference, step_us
from rnncc.stages.schedule.facts import Facts, facts
from rnncc.stages.schedule.families import FAMILIES
from rnncc.stages.schedule.scan import plan_scan, scan_schedule
from rnncc.stages.schedule.stepwise import stepwise, takes

__all__ = ["Found", "after_us", "expected", "find", "inference", "plan_scan", "scan_schedule", "schedule"]

# A search takes some tens of nodes; far more would be a mistake in a model.
LIMITS = Limits(nodes=1_000, steps=20_000)
# A fused kernel must be expected to take at most this part of the alternating kernel's time. Otherwise it is not worth
# its compilation, and the estimates are not more accurate than that.
WORTH = 0.9
_MANY = 256  # the number of launches at which large batches are compared with the alternating kernel


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule, and for each family without a kernel the proof. The reason is found on demand (`explained`), because
    that takes longer than the search."""

    schedule: Schedule
    proofs: Mapping[str, Infeasible] = field(default_factory=dict)

    def explained(self) -> Schedule:
        """The schedule with what rules out the families that have no kernel."""
        rejected = (
            replace(entry, limits=_limits(self.proofs[entry.family])) if entry.family in self.proofs else entry
            for entry in self.schedule.rejected
        )
        return replace(self.schedule, rejected=tuple(rejected))


def schedule(loop: FusedLoop | str, problem: Problem, target: Target, *, reasons: bool = False) -> Schedule:
    """The quickest kernels of a loop; a text instead of a loop says why it has no fused form. `reasons`: also say what
    rules out the families that have no kernel."""
    found = find(loop, problem, target)
    return found.explained() if reasons else found.schedule


def find(loop: FusedLoop | str, problem: Problem, target: Target) -> Found:
    """The same, so that the reasons can be asked for later.

    Clusters take any number of columns, group after group. Blocks of the grid must all run at once, so after a kernel
    of theirs comes the quickest for twice the columns that it takes, or at least for one more. Where that is quicker,
    more columns take several launches of one of them.
    """
    if isinstance(loop, str):
        return Found(Schedule((), None, (Rejected("fused", None, (Limit("form", loop, ""),)),), 0))
    known = facts(loop, problem.dtype)
    if too_large := _too_large(known, problem, target):
        return Found(
            Schedule((), None, (Rejected("fused", None, too_large), Rejected("alternating", None, too_large)), 0)
        )
    alternating = alternating_us(known, problem, target)
    if unfit := _unfit(problem, target):
        return Found(Schedule((), alternating, (Rejected("fused", None, unfit),), 0))

    def solve(columns: int, families: Iterable[str] = FAMILIES) -> _Answer:
        return _solve(known, replace(problem, columns=columns), target, families)

    answer = solve(problem.columns)
    best = answer.quickest
    few = answer if best or problem.columns <= TILE_COLUMNS else solve(TILE_COLUMNS)
    kernels = _of_use(_again(kernel, known, problem, target) for kernel in _for_more_and_more(few, solve))
    if takes(loop, problem):
        kernels = (*kernels, *_by_steps(kernels, known, problem, target))
    found = Schedule(kernels, alternating, answer.rejected, answer.nodes)
    taken = found.kernel_for(problem.columns)
    if taken is not None:
        # A kernel that needs several launches was rejected above, where all columns had to run at once.
        others = tuple(entry for entry in found.rejected if entry.family != taken.family)
        found = replace(
            found,
            step_us=round(step_us(known, taken, problem, target), 3),
            rejected=(*others, Rejected("alternating", alternating, ())),
        )
    return Found(found, answer.proofs)


def _for_more_and_more(answer: _Answer, solve: Callable[[int, Iterable[str]], _Answer]) -> Iterator[FusedSchedule]:
    """The quickest kernel of an answer, and after it those for more columns."""
    while kernel := answer.quickest:
        yield kernel
        if kernel.capacity is None:
            return
        wider = solve(2 * kernel.capacity, answer.feasible)
        answer = wider if wider.quickest else solve(kernel.capacity + 1, answer.feasible)


def _again(kernel: FusedSchedule, known: Facts, problem: Problem, target: Target) -> FusedSchedule:
    """The kernel with what a full launch takes, if launch after launch is quicker than the alternating kernel. Against
    many full ones that does best: beside a few its barrier counts, and 16 or 32 columns take it as long as one."""
    if kernel.capacity is None:
        return kernel
    full = replace(problem, columns=kernel.capacity)
    again = replace(kernel, launch_us=round(step_us(known, kernel, full, target), 3))
    many = replace(problem, columns=_MANY * kernel.capacity)
    is_quick = step_us(known, again, many, target) <= WORTH * alternating_us(known, many, target)
    return again if is_quick else kernel


def _of_use(kernels: Iterable[FusedSchedule]) -> tuple[FusedSchedule, ...]:
    """Without those that several launches of one before them always outdo."""
    kept: list[FusedSchedule] = []
    for kernel in kernels:
        before = () if kernel.capacity is None else [one.planned_us(kernel.capacity) for one in kept]
        if all(us is None or us > kernel.pass_us for us in before):
            kept.append(kernel)
    return tuple(kept)


def _by_steps(
    kernels: tuple[FusedSchedule, ...], known: Facts, problem: Problem, target: Target
) -> Iterator[FusedSchedule]:
    """The stepwise kernel, if it is quicker than these and the alternating one from some number of columns on."""

    def without(columns: int) -> float:
        planned = [us for kernel in kernels if (us := kernel.planned_us(columns)) is not None]
        us = min(planned) if planned else alternating_us(known, replace(problem, columns=columns), target)
        return WORTH * us

    if kernel := stepwise(known, problem, target, without):
        yield kernel


def _too_large(known: Facts, problem: Problem, target: Target) -> tuple[Limit, ...]:
    """What every kernel asks of the GPU's memory, where there is less."""
    gigabytes = known.sums * known.operands * problem.heads * problem.units**2 * element_bytes(problem.dtype) / 1e9
    if gigabytes <= target.memory_gb:
        return ()
    return (Limit("memory", "the recurrent weights lie in it", f"{gigabytes:.0f} GB <= {target.memory_gb} GB"),)


def _unfit(problem: Problem, target: Target) -> tuple[Limit, ...]:
    """What all fused kernels ask of a problem and a GPU, where these do not give that."""
    limits = []
    if not target.has_clusters:
        needed = "fused kernels use clusters of thread blocks and other means of compute capability 9.0"
        limits.append(Limit("compute capability", needed, f"{target.capability} >= 9.0"))
    if problem.units % UNIT_BLOCK:
        limits.append(Limit("units", "a warp has 8 of them at a time", f"{problem.units} % {UNIT_BLOCK} == 0"))
    return tuple(limits)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of every family the quickest kernel, or why there is none; `quickest` of all, unless the alternating kernel is
    about as quick. `nodes`: of the searches that found something."""

    families: tuple[tuple[str, FusedSchedule | Infeasible], ...]
    quickest: FusedSchedule | None
    nodes: int

    @property
    def feasible(self) -> tuple[str, ...]:
        """The families that have a kernel; the others have none for more columns either."""
        return tuple(family for family, found in self.families if not isinstance(found, Infeasible))

    @property
    def proofs(self) -> dict[str, Infeasible]:
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


def _solve(known: Facts, problem: Problem, target: Target, wanted: Iterable[str]) -> _Answer:
    families: list[tuple[str, FusedSchedule | Infeasible]] = []
    nodes = 0
    for family in wanted:
        drawn = FAMILIES[family](known, problem, target)
        try:
            solution = drawn.model.minimise(drawn.total, limits=LIMITS)
        except Infeasible as reason:
            families.append((family, reason))
        except LimitReached as reason:
            raise InternalError(f"the schedule of {family} for {problem} takes too long: {reason}") from reason
        else:
            families.append((family, drawn.scheduled(solution, problem, target)))
            nodes += solution.nodes
    found = [kernel for _, kernel in families if isinstance(kernel, FusedSchedule)]
    best = min(found, key=lambda kernel: (kernel.step_us, kernel.blocks), default=None)
    if best and best.step_us > WORTH * alternating_us(known, problem, target):
        best = None
    return _Answer(tuple(families), best, nodes)


def _limits(reason: Infeasible) -> tuple[Limit, ...]:
    """Requirements that cannot hold together. The first is the one for a size: its numbers say how far the others
    go."""
    first, *others = reason.conflict.parts
    numbered = ((first, first.numbers), *((part, "") for part in others))
    return tuple(Limit(part.requirement.name, part.requirement.reason, numbers) for part, numbers in numbered)
