"""The files of fused kernels: the steps of each cell, a file for each kernel, and the index of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rnncc.ir.artifact import File
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.family import Family, Scope
from rnncc.ir.fused import FusedLoop
from rnncc.ir.plan import KernelPlan, as_run, fused_programs
from rnncc.ir.schedule import FusedKernels, FusedSchedule
from rnncc.stages.render.cpp.names import macro_names
from rnncc.stages.render.cuda.scalars import SCALARS
from rnncc.stages.render.cuda.steps import StepStruct, fused_step
from rnncc.stages.render.templates import text

# The index of fused kernels: one line per kernel.
INDEX = "cuda/fused.txt"


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """What the template of a fused kernel prints.

    symbol              the kernel's name
    family              the family; the header, the function and the class of the layout have its name
    arguments           the template arguments of that class
    threads, shared_bytes
                        the numbers that were planned
    shared_relation     how the shape's shared memory compares with the planned one. Inference has the layout of
                        training, but writes less
    slots, group_batch  the steps and the batch entries for which the exchange was planned; None: it was not
    parameters, step    a kernel whose launch is a step also takes its step. All launches of a graph have the same
                        parameters. So the step is the launch's number in the graph plus a number in memory, which
                        counts the steps before the graph
    """

    symbol: str
    family: Family
    arguments: str
    threads: int
    shared_bytes: int
    shared_relation: str
    slots: int | None
    group_batch: int | None
    parameters: str
    step: str


def fused_files(cells: Sequence[CompiledCell]) -> Iterator[File]:
    """For each cell that has fused kernels a header of steps, and a file for each kernel. Several sizes may have the
    same kernel. Then comes the index of all kernels. Where several GPUs of an architecture have the same kernel for a
    size, the index has the expected times of the first."""
    lines: dict[tuple[str, ...], str] = {}
    for cell in cells:
        found: dict[str, FusedKernel] = {}
        for kernels in cell.fused:
            scalar = next(scalar.name for scalar in SCALARS if scalar.suffix == kernels.dtype)
            found |= {kernel.symbol: kernel for kernel in kernel_texts(kernels, scalar)}
            for line in index_lines(kernels):
                words = line.split()
                lines.setdefault((*words[:4], *words[-2:]), line)
        steps = f"{cell.plan.cell.lower()}_steps.cuh"
        if found:
            content = text(
                "cuda/steps.cuh.j2",
                source=cell.plan.source,
                macros=macro_names(cell.plan),
                kind="fused kernels",
                base="fused/step.cuh",
                fast="Fast",
                steps=fused_steps(cell.plan),
            )
            yield File(f"src/{steps}", content)
        for symbol, kernel in found.items():
            content = text("cuda/fused.cu.j2", cell=cell.plan.cell, steps=steps, kernel=kernel)
            yield File(f"src/{symbol}.cu", content)
    if lines:
        yield File(INDEX, "".join(f"{line}\n" for line in lines.values()))


def fused_architectures(cells: Sequence[CompiledCell]) -> dict[str, tuple[str, ...]]:
    """The architectures for which each kernel was planned, by the kernel's name."""
    found: dict[str, dict[str, None]] = {}
    for kernels in (kernels for cell in cells for kernels in cell.fused):
        for program, schedule in kernels.kernels:
            found.setdefault(_symbol(program, kernels, schedule), {})[kernels.architecture] = None
    return {symbol: tuple(architectures) for symbol, architectures in found.items()}


def fused_steps(plan: KernelPlan) -> tuple[StepStruct, ...]:
    """The steps of every fused program of a cell."""
    return tuple(_step(plan, program, loop) for program, loop in fused_programs(plan))


def _step(plan: KernelPlan, program: str, loop: FusedLoop) -> StepStruct:
    return fused_step(f"{program}_step", as_run(program, loop), plan.source)


def kernel_texts(fused: FusedKernels, scalar: str) -> Iterator[FusedKernel]:
    """The kernels. Each has a file of its own, so that they are compiled side by side. `scalar` is the dtype in C++."""
    for program, schedule in fused.kernels:
        by_steps = schedule.family.scope is Scope.STEP
        yield FusedKernel(
            _symbol(program, fused, schedule),
            schedule.family,
            ", ".join((_step_type(program, scalar, schedule), str(fused.head_dim), *map(str, schedule.shape))),
            schedule.threads,
            schedule.shared_bytes,
            "<=" if program.endswith("_inference") else "==",
            schedule.slots,
            schedule.group_batch,
            ", const int* before, int step" if by_steps else "",
            ", *before + step" if by_steps else "",
        )


def index_lines(fused: FusedKernels) -> Iterator[str]:
    """One line per kernel, as templates/include/rnncc/cuda/fused/index.h and rnncc/runtime/kernels/fused.py read it."""
    for program, schedule in fused.kernels:
        words = (
            program, fused.dtype, fused.head_dim, fused.heads, schedule.family.name, schedule.family.scope.value,
            schedule.ctas, schedule.cluster, schedule.threads, schedule.shared_bytes, schedule.group_batch or 0,
            schedule.multiple, schedule.slots or 0, schedule.narrow, schedule.smallest_batch, schedule.smallest_denser,
            schedule.most_launches or 0, int(schedule.family.for_zeros), round(1000 * schedule.pass_us),
            round(1000 * schedule.launch_us), fused.architecture, _symbol(program, fused, schedule),
        )  # fmt: skip
        yield " ".join(str(word) for word in words)


def _step_type(program: str, scalar: str, schedule: FusedSchedule) -> str:
    """The step in C++."""
    step = f"{program}_step<{scalar}>"
    return f"Relayed<{', '.join((step, *map(str, schedule.relayed)))}>" if schedule.relayed else step


def _symbol(program: str, fused: FusedKernels, schedule: FusedSchedule) -> str:
    """A name that tells a kernel from all others of its package."""
    relayed = ("relayed", *schedule.relayed) if schedule.relayed else ()
    words = (program, fused.dtype, fused.head_dim, schedule.family.name, *schedule.shape, *relayed)
    return "_".join(str(word) for word in words)
