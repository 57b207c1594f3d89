"""Schedules as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnncc.ir.family import ALTERNATING, Scope
from rnncc.ir.layout import AFTER_STEPS, GpuPlan, KernelLayout, LoopKernels, PlannedScan, Rejected, Row


def show_kernels(plan: GpuPlan) -> str:
    """The kernels of every loop of a cell, and what was rejected."""
    problem, target = plan.problem, plan.target
    heads = f"{problem.heads} head{'s' if problem.heads > 1 else ''} with head_dim {problem.head_dim}"
    lines = [
        f"schedule of {plan.cell} on {target.name} ({target.architecture}): "
        f"{heads}, {problem.dtype}, batch {problem.batch}"
    ]
    if not target.is_measured:
        lines.append(f"  times are the H200's, scaled to what is known of the {target.name}: none was measured there")
    for loop in plan.loops:
        for direction, kernels in (("forward", loop.forward), ("backward", loop.backward)):
            lines.append(f"  segment {loop.segment} {direction}")
            shown = show_scan(kernels) if isinstance(kernels, PlannedScan) else show_schedule(kernels, problem.batch)
            lines += (f"    {line}" for line in shown)
        if loop.after_us is not None:
            after = f"gradients of recurrent matrices: {show_time(loop.after_us)}, for {AFTER_STEPS} steps"
            lines.append(f"  segment {loop.segment} after the backward loop, {after}")
    return "\n".join(lines)


def show_schedule(kernels: LoopKernels, batch: int) -> Iterator[str]:
    """The kernels of one loop."""
    taken = kernels.kernel_for(batch)
    if kernels.is_impossible:
        yield "no kernel"
    elif taken is None:
        yield f"alternating: {show_time(kernels.step_us)}"
    elif (launches := taken.launches(batch)) > 1:
        runs = f"{launches} launches of {taken.family.name} with {taken.ctas} CTAs"
        yield f"batch {batch}: {runs}, {show_time(kernels.step_us)}"
    for kernel in kernels.kernels:
        yield from show_kernel(kernel)
    yield from show_table(kernels.table)
    yield from (show_rejected(rejected, batch) for rejected in kernels.rejected)


def show_table(table: Sequence[Row]) -> Iterator[str]:
    """`batches from 17 on: grid_4_8_1_1_4, 2.366 us per step and pass`: of all groups of batch entries that run side by
    side, at the last of these batches. After `else` come the kernels for what those before them cannot run."""
    for row in table:
        kernels = " else ".join(choice.kernel.symbol for choice in row.choices) or ALTERNATING.name
        time = f", {show_time(round(row.choices[0].pass_us, 3))} and pass" if row.choices else ""
        yield f"batches from {row.batch} on: {kernels}{time}"


def show_scan(plan: PlannedScan) -> Iterator[str]:
    """`scan, clusters of 2 CTAs: any batch, at least 0.0153 us per step`, and its kernels."""
    shared = f"clusters of {plan.ctas} CTAs" if plan.ctas > 1 else "single CTAs"
    yield f"{plan.schedule.family.name}, {shared}: any batch, at least {show_time(plan.step_us)}"
    for form, shape in plan.schedule.forms:
        sizes = ", ".join(f"{name} {size}" for name, size in shape.tiles)
        yield (
            f"  {form}: {sizes}; CTAs of {shape.threads} threads with up to {shape.registers} "
            f"registers, {shape.shared_bytes_of(plan.ctas_of(shape))} bytes of shared memory"
        )
    if newton := plan.schedule.newton:
        if plan.takes_newton:
            each = newton.warps * newton.steps
            least, tile = newton.least_ctas * each // 2, plan.newton_ctas * each
            takes = f"newton for more than {least} steps, {tile} at a time by clusters of {plan.newton_ctas} CTAs"
        elif plan.newton_ctas:
            takes = f"the walk, since not all channels would have {newton.least_ctas} CTAs at once"
        else:
            takes = "the walk, since rows do not begin at multiples of 16 bytes"
        yield f"  built with --parallel-newton: {takes}"


def show_kernel(kernel: KernelLayout) -> Iterator[str]:
    """`grid, scope grid: batches up to 16 per launch: grid_2_8_1_1_8`, its name in the table, and its sizes."""
    batch = "any batch" if kernel.launch_batch is None else f"batches up to {kernel.launch_batch} per launch"
    yield f"{kernel.family.name}, scope {kernel.scope}: {batch}: {kernel.symbol}"
    if kernel.family.scope is Scope.STEP:
        yield f"  each step is a product by cuBLAS and a launch; CTAs of {kernel.threads} threads"
        return
    yield f"  {', '.join(f'{name} {size}' for name, size in kernel.tiles)}"
    yield (
        f"  CTAs of {kernel.threads} threads with {kernel.registers} registers, "
        f"{kernel.shared_bytes} bytes of shared memory"
    )


def show_rejected(rejected: Rejected, batch: int) -> str:
    """`not scatter: head_dim (768 >= 1024), registers, shared memory`; `not gather for batch 16: 1.867 us per step`. It
    may run a larger batch."""
    if rejected.step_us is not None:
        return f"not {rejected.name} for batch {batch}: {show_time(rejected.step_us)}"
    limits = (limit.name + (f" ({limit.numbers})" if limit.numbers else "") for limit in rejected.limits)
    reason = f": {rejected.limits[0].reason}" if len(rejected.limits) == 1 else ""
    return f"not {rejected.name}: {', '.join(limits)}{reason}"


def show_time(step_us: float | None) -> str:
    """`1.624 us per step`."""
    return "time not known" if step_us is None else f"{step_us} us per step"
