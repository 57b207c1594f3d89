"""The kernels of a cell on GPUs: `schedule` for all of its loops."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from rnncc.analysis.by_head import head_form
from rnncc.ir.family import ALTERNATING, Family
from rnncc.ir.fused import FusedLoop, inference
from rnncc.ir.layout import (
    AFTER_STEPS,
    FusedKernels,
    GpuPlan,
    LoopKernels,
    PlannedLoop,
    PlannedScan,
    Row,
    ScanKernels,
)
from rnncc.ir.lowered import LoweredCell, LoweredLoop, NoForm, fused_programs, loop_name, scan_programs
from rnncc.ir.problem import INDEX_DTYPES, Problem
from rnncc.ir.scan import ScanLoop, without_names
from rnncc.ir.target import Target
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.stages.schedule import SearchResult, after_us, expected, find, plan_scan, scan_schedule, schedule


def planned(plan: LoweredCell, problem: Problem, target: Target) -> GpuPlan:
    """The layout of every loop of a cell on a GPU, and what rules out the other layouts. Raises RnnccError: RNN703."""
    _check_heads(plan, problem)
    # A masked loop is the same with a few more elementwise operations.
    loops = list(plan.plain_loops())

    def of_loop(fused: FusedLoop | NoForm, scan: ScanLoop | NoForm) -> SearchResult | PlannedScan:
        return find(fused, problem, target) if isinstance(scan, NoForm) else plan_scan(scan, problem, target)

    def explained(found: SearchResult | PlannedScan) -> LoopKernels | PlannedScan:
        return found.explained() if isinstance(found, SearchResult) else found

    begin = time.process_time()
    found = []
    for loop in loops:
        ahead, back = (loop.fused, loop.fused) if isinstance(loop.fused, NoForm) else loop.fused
        found.append((of_loop(ahead, loop.scan_forward), of_loop(back, loop.scan_backward)))
    solve_ms = round((time.process_time() - begin) * 1e3, 1)
    # The reasons are for readers alone. Their time is not counted.
    planned_loops = []
    for loop, (of_forward, of_backward) in zip(loops, found, strict=True):
        forward, backward, after = explained(of_forward), explained(of_backward), None
        if not isinstance(loop.fused, NoForm) and loop.backward.step.outers and backward.step_us is not None:
            after = round(after_us(loop.fused[1], problem, AFTER_STEPS, target) / AFTER_STEPS, 3)
        planned_loops.append(PlannedLoop(loop.segment, forward, backward, after))
    return GpuPlan(plan.cell, problem, target, tuple(planned_loops), solve_ms)


_schedule = cache(schedule)


@dataclass(frozen=True, slots=True)
class CallTime:
    """The times of a call's work on the GPU, for all loops, in microseconds.

    start     from the launches to the first steps
    forward, backward
              all steps; `backward` is 0 in inference
    after     from the last step of the backward loops to the gradients of the recurrent matrices
    """

    start: float
    forward: float
    backward: float
    after: float

    @property
    def total(self) -> float:
        """The time of the call."""
        return self.start + self.forward + self.backward + self.after


def call_time(
    plan: LoweredCell, problem: Problem, target: Target, *, batch: int, steps: int, training: bool
) -> CallTime | None:
    """The expected time of a call with that batch and sequence length, without the pre-activations, by the kernels that
    a package has for a problem. None where a loop has no fused form."""
    start = forward = backward = after = 0.0
    given = replace(problem, batch=batch)
    for loop in plan.plain_loops():
        if isinstance(loop.fused, NoForm):
            return None
        ahead, back = loop.fused
        found = expected(ahead if training else inference(ahead), _schedule(ahead, problem, target), given, target)
        start, forward = start + found.start, forward + steps * found.step
        if training:
            found = expected(back, _schedule(back, problem, target), given, target)
            start, backward = start + found.start, backward + steps * found.step
            after += after_us(back, given, steps, target) if loop.backward.step.outers else 0.0
    return CallTime(start, forward, backward, after)


def why_unfused(plans: Sequence[LoweredCell]) -> dict[str, str]:
    """Why each loop has no fused form, by the loop's name; "" where it has one."""
    return {
        loop_name(plan, loop): loop.fused.reason if isinstance(loop.fused, NoForm) else ""
        for plan in plans
        for loop in plan.plain_loops()
    }


def family_names(plan: LoweredCell) -> Iterator[tuple[LoweredLoop, str]]:
    """Each loop, with the families of the kernels that run it at every size: `alternating`, `scan`, `forward walk,
    backward scan`, `by head, alternating`."""
    for loop in plan.plain_loops():
        forward, backward = _every_size(loop)
        same = forward is backward
        text = forward.name if same else f"forward {forward.name}, backward {backward.name}"
        yield loop, f"by head, {text}" if _has_by_head(loop) else text


def _every_size(loop: LoweredLoop) -> tuple[Family, Family]:
    forward, backward = (
        ALTERNATING if isinstance(form, NoForm) else form.family for form in (loop.scan_forward, loop.scan_backward)
    )
    return forward, backward


def scan_family_names(plans: Sequence[LoweredCell]) -> dict[str, str]:
    """The same for each loop without products, by the loop's name."""
    return {
        loop_name(plan, loop): text
        for plan in plans
        for loop, text in family_names(plan)
        if any(family is not ALTERNATING for family in _every_size(loop))
    }


def by_head_loops(plans: Sequence[LoweredCell]) -> list[str]:
    """The names of the loops whose heads have a CTA each, where these have room for them."""
    return [loop_name(plan, loop) for plan in plans for loop in plan.plain_loops() if _has_by_head(loop)]


def _has_by_head(loop: LoweredLoop) -> bool:
    return head_form(loop.forward) is not None and head_form(loop.backward) is not None


def newton_loops(plans: Sequence[LoweredCell]) -> list[str]:
    """The names of the loops without products whose forward has a kernel for Newton's method."""
    return [
        loop_name(plan, loop)
        for plan in plans
        for loop in plan.plain_loops()
        if isinstance(loop.scan_forward, ScanLoop) and scan_schedule(loop.scan_forward, 2, newton=True).newton
    ]


def scan_kernels(plan: LoweredCell, *, newton: bool = False) -> tuple[ScanKernels, ...]:
    """The kernels of a cell's loops without products, which take all sizes. `newton`: also those for Newton's
    method. Programs whose steps differ in names alone share kernels, such as those of the loops of S6's states."""
    made: dict[Hashable, ScanKernels] = {}

    def kernels(program: str, loop: ScanLoop) -> ScanKernels:
        step = without_names(loop)
        if step not in made:
            made[step] = ScanKernels(program, program, scan_schedule(loop, 4, newton), scan_schedule(loop, 2, newton))
        return replace(made[step], program=program)

    return tuple(kernels(program, loop) for program, loop in scan_programs(plan))


def fused_kernels(
    plan: LoweredCell, problems: Sequence[Problem], target: Target, programs: Sequence[str] = ()
) -> list[FusedKernels]:
    """The fused kernels of a cell for each of the problems, as `schedule` lays them out for that GPU. `programs`: those
    of each loop, by what follows its name (`masked_forward`); all by default. Raises RnnccError: RNN703."""

    def is_wanted(program: str) -> bool:
        *_, before, name = program.split("_")
        return not programs or (f"masked_{name}" if before == "masked" else name) in programs

    def tables(problem: Problem) -> Iterator[tuple[str, tuple[Row, ...]]]:
        _check_heads(plan, problem)
        for program, loop in fused_programs(plan):
            if is_wanted(program) and (table := schedule(loop, problem, target).table):
                yield program, table

    return [
        FusedKernels(p.head_dim, p.heads, INDEX_DTYPES[p.dtype], target.architecture, tuple(tables(p)), p.directions)
        for p in problems
    ]


def _check_heads(plan: LoweredCell, problem: Problem) -> None:
    if plan.single_head_because and problem.heads > 1:
        message = f"{plan.cell} takes one head only: {plan.single_head_because}; {problem.heads} were asked for"
        raise RnnccError(Diagnostic("RNN703", message, help="leave out --heads"))
