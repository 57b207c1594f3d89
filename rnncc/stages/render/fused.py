"""The files of fused kernels for one size and dtype: steps, kernels, and the lines by which the library finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.ir.family import Family, Scope
from rnncc.ir.fused import FusedLoop, inference
from rnncc.ir.plan import KernelPlan, fused_programs
from rnncc.ir.schedule import FusedKernels, FusedSchedule
from rnncc.stages.render.cpp import macro_names
from rnncc.stages.render.step import StepText, step_text


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
    """What the template of a fused kernel prints.

    symbol              the kernel's name
    family              the family, by which the header, the function and the class of the layout are called
    arguments           the template arguments of that class
    threads, shared_bytes
                        the numbers that were planned
    shared_relation     how the shape's shared memory compares with the planned one: inference has the layout of
                        training, but writes less
    parameters, step    a kernel whose launch is a step also takes its step. All launches of a graph have the same
                        parameters, so the step is the launch's number in the graph plus a number in memory: how many
                        steps came before the graph
    steps               the header of the cell's steps
    """

    cell: str
    symbol: str
    family: Family
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
    return step_text(f"{program}_step", inference(loop) if program.endswith("_inference") else loop, plan.source)


def kernel_texts(plan: KernelPlan, fused: FusedKernels, scalar: str, steps: str) -> Iterator[FusedKernelText]:
    """The kernels, each for a file of its own, so that they are compiled side by side. `scalar` is the dtype in C++,
    `steps` the header of the cell's steps."""
    for program, schedule in fused.kernels:
        by_steps = schedule.family.scope is Scope.STEP
        yield FusedKernelText(
            plan.cell,
            _symbol(program, fused, schedule),
            schedule.family,
            ", ".join((f"{program}_step<{scalar}>", str(fused.head_dim), *(str(number) for number in schedule.shape))),
            schedule.threads,
            schedule.shared_bytes,
            "<=" if program.endswith("_inference") else "==",
            ", const int* before, int step" if by_steps else "",
            ", *before + step" if by_steps else "",
            steps,
        )


def index_lines(fused: FusedKernels) -> Iterator[str]:
    """One line per kernel, as templates/include/rnncc/cuda/fused/index.h and rnncc/runtime/fused.py read it."""
    for program, schedule in fused.kernels:
        words = (
            program, fused.dtype, fused.head_dim, fused.heads, schedule.family.name, schedule.family.scope.value,
            schedule.ctas, schedule.threads, schedule.shared_bytes, schedule.group_batch or 0, schedule.smallest_batch,
            round(1000 * schedule.pass_us), round(1000 * (schedule.launch_us or 0)),
            _symbol(program, fused, schedule),
        )  # fmt: skip
        yield " ".join(str(word) for word in words)


def _symbol(program: str, fused: FusedKernels, schedule: FusedSchedule) -> str:
    """Everything that tells a kernel from the others of its package, so that all of them can stand side by side."""
    words = (program, fused.dtype, fused.head_dim, schedule.family.name, *schedule.shape)
    return "_".join(str(word) for word in words)
