"""The files of fused kernels for one size and dtype: steps, kernels, and the lines by which the library finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import KernelPlan, fused_programs
from rnncc.ir.schedule import FusedKernels, FusedSchedule
from rnncc.stages.render.step import StepText, inference_writes, step_text


@dataclass(frozen=True, slots=True)
class StepsText:
    """What the template of a cell's steps prints."""

    source: str
    steps: tuple[StepText, ...]


@dataclass(frozen=True, slots=True)
class FusedKernelText:
    """A kernel: its symbol, the family's function and shape, the shape's arguments, and what was planned of it."""

    symbol: str
    function: str
    shape: str
    arguments: str
    threads: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class FusedUnitText:
    """What the template of a file of fused kernels prints."""

    cell: str
    units: int
    scalar: str
    steps: str
    kernels: tuple[FusedKernelText, ...]


def steps_text(plan: KernelPlan) -> StepsText:
    """The steps of every fused program of a cell."""
    return StepsText(plan.source, tuple(_step(plan, program, loop) for program, loop in fused_programs(plan)))


def _step(plan: KernelPlan, program: str, loop: FusedLoop) -> StepText:
    writes = inference_writes(loop) if program.endswith("_inference") else loop.writes
    return step_text(f"{program}_step", loop, writes, plan.source)


def unit_name(plan: KernelPlan, fused: FusedKernels) -> str:
    """What the file of kernels is called, without its ending."""
    return f"{plan.cell.lower()}_{fused.dtype}_{fused.units}"


def unit_text(plan: KernelPlan, fused: FusedKernels, scalar: str, steps: str) -> FusedUnitText:
    """A file of kernels; `scalar` is the dtype in C++, `steps` the header of the cell's steps."""
    kernels = tuple(
        FusedKernelText(
            _symbol(program, fused, schedule),
            f"fused_{schedule.family}",
            f"{schedule.family.capitalize()}Shape",
            ", ".join((f"{program}_step<{scalar}>", str(fused.units), *(str(number) for number in schedule.shape))),
            schedule.threads,
            schedule.shared_bytes,
        )
        for program, schedule in fused.kernels
    )
    return FusedUnitText(plan.cell, fused.units, fused.dtype, steps, kernels)


def index_lines(plan: KernelPlan, fused: FusedKernels) -> Iterator[str]:
    """A line a kernel, as templates/include/rnncc/cuda/fused/run.h reads it."""
    for program, schedule in fused.kernels:
        words = (
            program, fused.dtype, fused.units, schedule.family, schedule.blocks, schedule.threads,
            schedule.shared_bytes, schedule.columns, unit_name(plan, fused), _symbol(program, fused, schedule),
        )  # fmt: skip
        yield " ".join(str(word) for word in words)


def _symbol(program: str, fused: FusedKernels, schedule: FusedSchedule) -> str:
    return f"{program}_{fused.units}_{schedule.columns}"
