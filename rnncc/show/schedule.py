"""Schedules as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rnncc.ir.family import Scope
from rnncc.ir.schedule import AFTER_STEPS, FusedSchedule, Plan, Rejected, ScanPlan, Schedule


def show_kernels(plan: Plan) -> str:
    """The kernels of every loop of a cell, and what was rejected."""
    problem, target = plan.problem, plan.target
    lines = [
        f"schedule of {plan.cell} on {target.name} ({target.architecture}): "
        f"{problem.heads} x {problem.head_dim} units, {problem.dtype}, {problem.batch} columns"
    ]
    for loop in plan.loops:
        for direction, schedule in (("forward", loop.forward), ("backward", loop.backward)):
            lines.append(f"  segment {loop.segment} {direction}")
            shown = show_scan(schedule) if isinstance(schedule, ScanPlan) else show_schedule(schedule, problem.batch)
            lines += (f"    {line}" for line in shown)
        if loop.after_us is not None:
            after = f"gradients of recurrent matrices: {show_time(loop.after_us)} of {AFTER_STEPS}"
            lines.append(f"  segment {loop.segment} after the backward loop, {after}")
    return "\n".join(lines)


def show_schedule(schedule: Schedule, batch: int) -> Iterator[str]:
    """The kernels of one loop."""
    taken = schedule.kernel_for(batch)
    if schedule.is_impossible:
        yield "no kernel"
    elif taken is None:
        yield f"alternating: {show_time(schedule.step_us)}"
    elif (launches := taken.launches(batch)) > 1:
        runs = f"{launches} launches of {taken.family.name} with {taken.ctas} blocks"
        yield f"{batch} columns: {runs}, {show_time(schedule.step_us)}"
    for kernel in schedule.kernels:
        yield from show_kernel(kernel)
    if schedule.kernels and taken and (gap := _without_kernel(schedule)):
        yield f"alternating: {gap}"
    yield from (show_rejected(rejected, batch) for rejected in schedule.rejected)


def _without_kernel(schedule: Schedule) -> str:
    """The batches that no fused kernel runs, or ""."""
    from_one = [kernel for kernel in schedule.kernels if kernel.smallest_batch == 1]
    others = [kernel for kernel in schedule.kernels if kernel.smallest_batch > 1]
    most = max((kernel.largest_batch or sys.maxsize for kernel in from_one), default=0)
    fewest = min((kernel.smallest_batch for kernel in others), default=sys.maxsize)
    if most + 1 >= fewest:
        return ""
    if fewest == sys.maxsize:
        return "more columns"
    return f"{most + 1} to {fewest - 1} columns" if most else "fewer columns"


def show_scan(plan: ScanPlan) -> Iterator[str]:
    """`scan, clusters of 2 blocks: any columns, at least 0.0153 us a step`, and its kernels."""
    shared = f"clusters of {plan.ctas} blocks" if plan.ctas > 1 else "blocks by themselves"
    yield f"{plan.schedule.family.name}, {shared}: any columns, at least {show_time(plan.step_us)}"
    for form, shape in plan.schedule.forms:
        sizes = ", ".join(f"{name} {size}" for name, size in shape.tiles)
        yield (
            f"  {form}: {sizes}; {shape.threads} threads of up to {shape.registers} registers, "
            f"{shape.shared_bytes_of(plan.ctas_of(shape))} bytes of shared memory"
        )
    if newton := plan.schedule.newton:
        if plan.takes_newton:
            each = newton.warps * newton.steps
            least, tile = newton.least_ctas * each // 2, plan.newton_ctas * each
            takes = f"newton for more than {least} steps, {tile} at a time by clusters of {plan.newton_ctas} blocks"
        elif plan.newton_ctas:
            takes = f"the walk, since not all channels would have {newton.least_ctas} blocks at once"
        else:
            takes = "the walk, since rows do not begin at multiples of 16 bytes"
        yield f"  built with --parallel-newton: {takes}"


def show_kernel(kernel: FusedSchedule) -> Iterator[str]:
    """`grid, scope grid: up to 16 columns a launch, 1.624 us a step`, and its sizes."""
    if kernel.smallest_batch > 1:
        batch = f"from {kernel.smallest_batch} columns on"
    else:
        batch = "any columns" if kernel.launch_batch is None else f"up to {kernel.launch_batch} columns"
    if kernel.launch_us is not None:
        batch += " a launch"
    yield f"{kernel.family.name}, scope {kernel.scope}: {batch}, {show_time(kernel.step_us)}"
    if kernel.family.scope is Scope.STEP:
        yield f"  of each step a product by cuBLAS and a launch, {kernel.threads} threads a block"
        return
    yield f"  {', '.join(f'{name} {size}' for name, size in kernel.tiles)}"
    yield f"  {kernel.threads} threads of {kernel.registers} registers, {kernel.shared_bytes} bytes of shared memory"


def show_rejected(rejected: Rejected, batch: int) -> str:
    """`not scatter: units (768 >= 1024), registers, shared memory`; `not gather for 16 columns: 1.867 us a step`. It
    may run a larger batch."""
    if rejected.step_us is not None:
        return f"not {rejected.name} for {batch} columns: {show_time(rejected.step_us)}"
    limits = (limit.name + (f" ({limit.numbers})" if limit.numbers else "") for limit in rejected.limits)
    reason = f": {rejected.limits[0].reason}" if len(rejected.limits) == 1 else ""
    return f"not {rejected.name}: {', '.join(limits)}{reason}"


def show_time(step_us: float | None) -> str:
    """`1.624 us a step`."""
    return "time not known" if step_us is None else f"{step_us} us a step"
