"""`schedule`: how a fused loop is laid out on a GPU.

Input: a FusedLoop (or why there is none), a Problem, a Target. Output: a Schedule: kernels for few and for many batch
columns, and what was decided against, with the requirements that rule it out. Fails with: InternalError only, since the
alternating kernel takes what no fused one does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rnncc.constrint import Infeasible, LimitReached, Limits
from rnncc.diagnostics import InternalError
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import FusedSchedule, Limit, Rejected, Schedule
from rnncc.ir.target import Target
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.draft import TILE_COLUMNS, UNIT_BLOCK
from rnncc.stages.schedule.facts import Facts, facts
from rnncc.stages.schedule.gather import gather
from rnncc.stages.schedule.grid import grid
from rnncc.stages.schedule.scatter import scatter

__all__ = ["schedule"]

FAMILIES = {"gather": gather, "scatter": scatter, "grid": grid}
# A search takes some tens of nodes; far more would be a mistake in a model.
LIMITS = Limits(nodes=1_000, steps=20_000)


def schedule(loop: FusedLoop | str, problem: Problem, target: Target, *, reasons: bool = False) -> Schedule:
    """The quickest kernels of a loop; a text instead of a loop says why it has no fused form. `reasons`: also say what
    rules out the families that have no kernel, which takes longer than the rest.

    Clusters take any number of columns, group after group. Blocks of the grid must all run at once, so after a kernel of
    theirs comes the quickest for a column more than it takes.
    """
    if isinstance(loop, str):
        return Schedule((), None, None, (Rejected("fused", None, (Limit("form", loop, ""),)),), 0)
    known = facts(loop)
    fallback = alternating_us(known, problem, target)
    if unfit := _unfit(problem):
        return Schedule((), fallback, fallback, (Rejected("fused", None, unfit),), 0)
    answers = _solve(known, problem, target)
    best = _quickest(answers)
    step_us = fallback if best is None else best.step_us
    if best is None and problem.columns > TILE_COLUMNS:
        best = _quickest(_solve(known, replace(problem, columns=TILE_COLUMNS), target))
    kernels = []
    while best is not None:
        kernels.append(best)
        if best.capacity is None:
            break
        best = _quickest(_solve(known, replace(problem, columns=best.capacity + 1), target))
    rejected = tuple(
        Rejected(family, None, _limits(answer) if reasons else ())
        if isinstance(answer, Infeasible)
        else Rejected(family, answer.kernel.step_us, ())
        for family, answer in answers.items()
        if isinstance(answer, Infeasible) or answer.kernel != kernels[0]
    )
    nodes = sum(answer.nodes for answer in answers.values() if isinstance(answer, _Found))
    return Schedule(tuple(kernels), step_us, fallback, rejected, nodes)


def _unfit(problem: Problem) -> tuple[Limit, ...]:
    """What all fused kernels ask of a problem, where it does not give that."""
    limits = []
    if problem.dtype == "fp32":
        limits.append(Limit("dtype", "fused kernels multiply 16-bit numbers", problem.dtype))
    if problem.units % UNIT_BLOCK:
        limits.append(Limit("units", "a warp has 8 of them at a time", f"{problem.units} % {UNIT_BLOCK} == 0"))
    return tuple(limits)


@dataclass(frozen=True, slots=True)
class _Found:
    """The quickest kernel of a family, and the nodes of the search."""

    kernel: FusedSchedule
    nodes: int


_Answers = dict[str, _Found | Infeasible]


def _solve(known: Facts, problem: Problem, target: Target) -> _Answers:
    """Of every family the quickest kernel, or why there is none."""
    elements = problem.columns * problem.heads * problem.units
    least_us = elements * known.unit_bytes / (1000 * target.memory_gb_s)
    answers: _Answers = {}
    for family, draft in FAMILIES.items():
        drawn = draft(known, problem, target)
        try:
            solution = drawn.model.minimise(drawn.total, limits=LIMITS)
        except Infeasible as reason:
            answers[family] = reason
        except LimitReached as reason:
            raise InternalError(f"the schedule of {family} for {problem} takes too long: {reason}") from reason
        else:
            answers[family] = _Found(drawn.scheduled(solution, least_us), solution.nodes)
    return answers


def _quickest(answers: _Answers) -> FusedSchedule | None:
    found = (answer.kernel for answer in answers.values() if isinstance(answer, _Found))
    return min(found, key=lambda kernel: (kernel.step_us, kernel.blocks), default=None)


def _limits(reason: Infeasible) -> tuple[Limit, ...]:
    """Requirements that cannot hold together. The first is the one for a size: its numbers say how far the others go."""
    first, *others = reason.conflict.parts
    numbered = ((first, first.numbers), *((part, "") for part in others))
    return tuple(Limit(part.requirement.name, part.requirement.reason, numbers) for part, numbers in numbered)
