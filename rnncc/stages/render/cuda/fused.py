"""The files of fused kernels: the steps of each cell, a file for each kernel, and the index of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rnncc.ir.artifact import File
from rnncc.ir.fused import FusedLoop
from rnncc.ir.package import CellKernels
from rnncc.ir.plan import KernelPlan, fused_programs
from rnncc.ir.schedule import STEPWISE, FusedKernels, FusedSchedule
from rnncc.stages.render.cpp.names import macro_names
from rnncc.stages.render.cuda.scalars import SCALARS
from rnncc.stages.render.cuda.steps import StepStruct, fused_step
from rnncc.stages.render.templates import text

# Of fused kernels: what there is of them, a line each.
INDEX = "cuda/fused.txt"


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """What the template of a fused kernel prints: its symbol and family, the function and shape of that family, the
    shape's arguments, and what was planned of it. `shared_relation`: of the shape's shared memory to the planned one;
    inference has the layout of training and writes less. `parameters`, `step`: what stepwise kernels have besides, the
    step as launches of a graph know it, which differ only in what memory holds: how many came before the graph's."""

    symbol: str
    family: str
    shape: str
    arguments: str
    threads: int
    shared_bytes: int
    shared_relation: str
    parameters: str
    step: str


def fused_files(cells: Sequence[CellKernels]) -> Iterator[File]:
    """For each cell that has fused kernels a header of steps, and a file for each kernel, which several sizes may have
    in common; and the index of them all."""
    lines: list[str] = []
    for cell in cells:
        found: dict[str, FusedKernel] = {}
        for kernels in cell.fused:
            scalar = next(scalar.name for scalar in SCALARS if scalar.suffix == kernels.dtype)
            found |= {kernel.symbol: kernel for kernel in kernel_texts(kernels, scalar)}
            lines += index_lines(kernels)
        steps = f"{cell.plan.cell.lower()}_steps.cuh"
        if found:
            content = text(
                "cuda/steps.cuh.j2",
                source=cell.plan.source,
                macros=macro_names(cell.plan),
                kind="one product",
                base="fused/step.cuh",
                fast="Fast",
                steps=fused_steps(cell.plan),
            )
            yield File(f"src/{steps}", content)
        for symbol, kernel in found.items():
            content = text("cuda/fused.cu.j2", cell=cell.plan.cell, steps=steps, kernel=kernel)
            yield File(f"src/{symbol}.cu", content)
    if lines:
        yield File(INDEX, "".join(f"{line}\n" for line in lines))


def fused_steps(plan: KernelPlan) -> tuple[StepStruct, ...]:
    """The steps of every fused program of a cell."""
    return tuple(_step(plan, program, loop) for program, loop in fused_programs(plan))


def _step(plan: KernelPlan, program: str, loop: FusedLoop) -> StepStruct:
    writes = loop.inference_writes if program.endswith("_inference") else loop.writes
    return fused_step(f"{program}_step", loop, writes, plan.source)


def kernel_texts(fused: FusedKernels, scalar: str) -> Iterator[FusedKernel]:
    """The kernels, each for a file of its own, so that they are compiled side by side; `scalar` is the dtype in
    C++."""
    for program, schedule in fused.kernels:
        by_steps = schedule.family == STEPWISE
        yield FusedKernel(
            _symbol(program, fused, schedule),
            schedule.family,
            f"{schedule.family.capitalize()}Shape",
            ", ".join((f"{program}_step<{scalar}>", str(fused.units), *(str(number) for number in schedule.shape))),
            schedule.threads,
            schedule.shared_bytes,
            "<=" if program.endswith("_inference") else "==",
            ", const int* before, int step" if by_steps else "",
            ", *before + step" if by_steps else "",
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
