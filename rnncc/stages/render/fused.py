"""The files of fused kernels for one size and dtype: steps, kernels, and the lines by which the library finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.ir.fused import FusedLoop
from rnncc.ir.plan import KernelPlan, fused_programs
from rnncc.ir.schedule import STEPWISE, FusedKernels, FusedSchedule
from rnncc.stages.render.cpp import macro_names
from rnncc.stages.render.step import StepText, inference_writes, step_text


@dataclass(frozen=True, slots=True)
class StepsText:
    """What the template of a cell's steps prints: of its loops that have one product, or none; `base` says what a step
    is, `fast` which elementwise functions it takes (fused/fast.cuh)."""

    source: str
    macros: tuple[str, ...]
    kind: str
    base: str
    fast: str
    steps: tuple[StepText, ...]


@dataclass(frozen=True, slots=True)
class FusedKernelText:
    """What the template of a fused kernel prints: its symbol and family, the function and shape of that family, the
    shape's arguments, and what was planned of it. `shared_relation`: of the shape's shared memory to the planned one;
    inference has the layout of training and writes less. `parameters`, `step`: what stepwise kernels have besides, the
    step as launches of a graph know it, which differ only in what memory holds: how many came before the graph's.
    `steps`: the header of the cell's steps."""

    cell: str
    symbol: str
    family: str
    shape: str
    arguments: str
    threads: int
    shared_bytes: int
    shared_relation: str
    parameters: str
    step: str
    steps: str


def steps_text(plan: KernelPlan) -> StepsText:
    """The steps of every fused program of a cell."""
    steps = tuple(_step(plan, program, loop) for program, loop in fused_programs(plan))
    return StepsText(plan.source, macro_names(plan), "one product", "fused/step.cuh", "Fast", steps)


def _step(plan: KernelPlan, program: str, loop: FusedLoop) -> StepText:
    writes = inference_writes(loop) if program.endswith("_inference") else loop.writes
    return step_text(f"{program}_step", loop, writes, plan.source)


def kernel_texts(plan: KernelPlan, fused: FusedKernels, scalar: str, steps: str) -> Iterator[FusedKernelText]:
    """The kernels, each for a file of its own, so that they are compiled side by side; `scalar` is the dtype in C++,
    `steps` the header of the cell's steps."""
    for program, schedule in fused.kernels:
        by_steps = schedule.family == STEPWISE
        yield FusedKernelText(
            plan.cell,
            _symbol(program, fused, schedule),
            schedule.family,
            f"{schedule.family.capitalize()}Shape",
            ", ".join((f"{program}_step<{scalar}>", str(fused.units), *(str(number) for number in schedule.shape))),
            schedule.threads,
            schedule.shared_bytes,
            "<=" if program.endswith("_inference") else "==",
            ", const int* before, int step" if by_steps else "",
            ", *before + step" if by_steps else "",
            steps,
        )


def index_lines(fused: FusedKernels) -> Iterator[str]:
    """A line a kernel, as templates/include/rnncc/cuda/fused/index.h and rnncc/runtime/fused.py read it."""
    for program, schedule in fused.kernels:
        words = (
            program, fused.dtype, fused.units, fused.heads, schedule.family, schedule.blocks, schedule.threads,
            schedule.shared_bytes, schedule.columns, round(1000 * schedule.pass_us),
            round(1000 * (schedule.launch_us or 0)), _symbol(program, fused, schedule),
        )  # fmt: skip
        yield " ".join(str(word) for word in words)


def _symbol(program: str, fused: FusedKernels, schedule: FusedSchedule) -> str:
    """Everything that tells a kernel from others of its package, so that any of them stand side by side."""
    words = (program, fused.dtype, fused.units, schedule.family, *schedule.shape)
    return "_".join(str(word) for word in words)
