"""Which kernels a cell has on GPUs: `schedule` for all of its loops."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from rnncc.ir.fused import FusedLoop
from rnncc.ir.plan import KernelPlan, LoopPlan, fused_programs, loop_name, scan_programs
from rnncc.ir.problem import INDEX_DTYPES, Problem
from rnncc.ir.scan import ScanLoop
from rnncc.ir.schedule import (
    AFTER_STEPS,
    FusedKernels,
    FusedSchedule,
    LoopSchedule,
    Plan,
    ScanKernels,
    ScanPlan,
    Schedule,
)
from rnncc.ir.target import GPUS, Target
from rnncc.stages.schedule import Found, after_us, expected, find, inference, plan_scan, scan_schedule, schedule


def planned(plan: KernelPlan, problem: Problem, target: Target) -> Plan:
    """How every loop of a cell is laid out on a GPU, and what rules out the other ways."""
    # The masked variant is the same loop with a few more elementwise operations.
    loops = [loop for loop in plan.loops if not loop.variant]

    def of_loop(fused: FusedLoop | str, scan: ScanLoop | str) -> Found | ScanPlan:
        return find(fused, problem, target) if isinstance(scan, str) else plan_scan(scan, problem, target)

    def explained(found: Found | ScanPlan) -> Schedule | ScanPlan:
        return found.explained() if isinstance(found, Found) else found

    begin = time.process_time()
    found = [
        (of_loop(loop.fused_forward, loop.scan_forward), of_loop(loop.fused_backward, loop.scan_backward))
        for loop in loops
    ]
    solve_ms = round((time.process_time() - begin) * 1e3, 1)
    # Reasons are worked out for readers alone, and are no part of that time.
    planned_loops = []
    for loop, (forward, backward) in zip(loops, found, strict=True):
        ahead, back, after = explained(forward), explained(backward), None
        if not isinstance(loop.fused_backward, str) and back.step_us is not None:
            after = round(after_us(loop.fused_backward, problem, AFTER_STEPS, target) / AFTER_STEPS, 3)
        planned_loops.append(LoopSchedule(loop.segment, ahead, back, after))
    return Plan(plan.cell, problem, target, tuple(planned_loops), solve_ms)


_schedule = cache(schedule)


@dataclass(frozen=True, slots=True)
class CallTime:
    """Microseconds of a call's GPU work, of all loops.

    start     from launches to first steps
    forward, backward
              of the steps; 0 backward in inference
    after     from the last step backward to the gradients of the recurrent matrices
    """

    start: float
    forward: float
    backward: float
    after: float

    @property
    def total(self) -> float:
        """Of the call."""
        return self.start + self.forward + self.backward + self.after


def call_time(
    plan: KernelPlan, problem: Problem, target: Target, *, columns: int, steps: int, training: bool
) -> CallTime | None:
    """What a call of so many batch columns and steps is expected to take, pre-activations given, by the kernels that a
    package has for a problem. None where a loop has no fused form."""
    start = forward = backward = after = 0.0
    given = replace(problem, columns=columns)
    for loop in (loop for loop in plan.loops if not loop.variant):
        ahead, back = loop.fused_forward, loop.fused_backward
        if isinstance(ahead, str) or isinstance(back, str):
            return None
        found = expected(ahead if training else inference(ahead), _schedule(ahead, problem, target), given, target)
        start, forward = start + found.start, forward + steps * found.step
        if training:
            found = expected(back, _schedule(back, problem, target), given, target)
            start, backward = start + found.start, backward + steps * found.step
            after += after_us(back, given, steps, target)
    return CallTime(start, forward, backward, after)


def unfused(plans: Sequence[KernelPlan]) -> dict[str, str]:
    """Of each loop by its name, why it has no fused form, or nothing."""
    return {
        loop_name(plan, loop): next(
            (form for form in (loop.fused_forward, loop.fused_backward) if isinstance(form, str)), ""
        )
        for plan in plans
        for loop in plan.loops
        if not loop.variant
    }


def families(plan: KernelPlan) -> Iterator[tuple[LoopPlan, str]]:
    """Of each loop, which kernels run it at every size: `alternating`, `scan`, `forward walk, backward scan`."""

    def family(form: ScanLoop | str) -> str:
        return "alternating" if isinstance(form, str) else form.family

    for loop in plan.loops:
        if not loop.variant:
            forward, backward = family(loop.scan_forward), family(loop.scan_backward)
            yield loop, forward if forward == backward else f"forward {forward}, backward {backward}"


def scan_families(plans: Sequence[KernelPlan]) -> dict[str, str]:
    """The same of each loop without products, by its name."""
    return {
        loop_name(plan, loop): family for plan in plans for loop, family in families(plan) if family != "alternating"
    }


def newton_loops(plans: Sequence[KernelPlan]) -> list[str]:
    """The loops without products whose forward has a kernel that iterates, by their names."""
    return [
        loop_name(plan, loop)
        for plan in plans
        for loop in plan.loops
        if not loop.variant
        and not isinstance(loop.scan_forward, str)
        and scan_schedule(loop.scan_forward, 2, newton=True).newton
    ]


def scan_kernels(plan: KernelPlan, *, newton: bool = False) -> tuple[ScanKernels, ...]:
    """The kernels of a cell's loops without products, which take all sizes; `newton`: also those that iterate."""
    return tuple(
        ScanKernels(program, scan_schedule(loop, 4, newton), scan_schedule(loop, 2, newton))
        for program, loop in scan_programs(plan)
    )


def fused_kernels(plan: KernelPlan, problems: Sequence[Problem], target: Target | None = None) -> list[FusedKernels]:
    """The fused kernels of a cell for each of the problems, as `schedule` lays them out on that GPU (an H200)."""

    def kernels(problem: Problem) -> Iterator[tuple[str, FusedSchedule]]:
        for program, loop in fused_programs(plan):
            yield from ((program, kernel) for kernel in schedule(loop, problem, target or GPUS["h200"]).kernels)

    return [FusedKernels(p.units, p.heads, INDEX_DTYPES[p.dtype], tuple(kernels(p))) for p in problems]
