"""The files of fused kernels for one size and dtype: steps, kernels, and the lines by which the library finds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import KernelPlan, Table
from rnncc.ir.schedule import FusedSchedule
from rnncc.stages.render.step import StepText, inference_writes, step_text


@dataclass(frozen=True, slots=True)
class FusedKernelText:
    """A kernel: its program's name, the family's function and shape, and the shape's arguments."""

    program: str
    symbol: str
    function: str
    shape: str
    arguments: str


def fused_steps(plan: KernelPlan) -> Iterator[tuple[str, FusedLoop, StepText]]:
    """(program, loop, step) of every loop that has a fused form both ways."""
    for loop in plan.loops:
        if isinstance(loop.fused_forward, str) or isinstance(loop.fused_backward, str):
            continue
        prefix = f"{plan.cell.lower()}_{loop.segment}{loop.variant}"
        for name, fused, writes in (
            ("forward", loop.fused_forward, loop.fused_forward.writes),
            ("inference", loop.fused_forward, inference_writes(loop.fused_forward)),
            ("backward", loop.fused_backward, loop.fused_backward.writes),
        ):
            exact = frozenset(
                place.index
                for place in (*(read.place for read in fused.reads), *(write.place for write in fused.writes))
                if place is not None and place.table is Table.SAVED
            )
            program = f"{prefix}_{name}"
            yield program, fused, step_text(f"{program}_step", fused, writes, exact, plan.source)


def kernel_text(program: str, schedule: FusedSchedule, units: int, scalar: str) -> FusedKernelText:
    family = schedule.family
    arguments = ", ".join(str(number) for number in (units, *schedule.shape))
    return FusedKernelText(
        program,
        f"{program}_{units}_{schedule.columns}",
        f"fused_{family}",
        f"{family.capitalize()}Shape",
        f"{program}_step<{scalar}>, {arguments}",
    )


def index_line(kernel: FusedKernelText, schedule: FusedSchedule, units: int, dtype: str, file: str) -> str:
    """As templates/include/rnncc/cuda/fused/run.h reads it."""
    words: Sequence[object] = (
        kernel.program, dtype, units, schedule.family, schedule.blocks, schedule.threads, schedule.shared_bytes,
        schedule.columns, file, kernel.symbol,
    )  # fmt: skip
    return " ".join(str(word) for word in words)
