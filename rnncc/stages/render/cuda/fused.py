"""The files of fused kernels: the steps of each cell, a file for each kernel, and the index of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rnncc.ir.artifact import File
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.family import Family, Scope
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import FusedKernels, KernelLayout, Row, kernels_of
from rnncc.ir.lowered import LoweredCell, as_run, fused_programs
from rnncc.stages.render.cpp.names import macro_names
from rnncc.stages.render.cuda.scalars import SCALARS
from rnncc.stages.render.cuda.steps import StepStruct, fused_step
from rnncc.stages.render.templates import text

# The index of fused kernels: for each program a table, its kernels, and its rows.
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
    exchange_steps, group_batch
                        the steps and the batch entries for which the exchange was planned; None: there is none
    parameters, step    a kernel whose launch is a step also takes its step. All launches of a graph have the same
                        parameters. So the step is the launch's number in the graph plus a number in memory, which
                        counts the steps before the graph
    is_for_both         whether a launch may run two directions
    """

    symbol: str
    family: Family
    arguments: str
    threads: int
    shared_bytes: int
    shared_relation: str
    exchange_steps: int | None
    group_batch: int | None
    parameters: str
    step: str
    is_for_both: bool


def fused_files(cells: Sequence[CompiledCell]) -> Iterator[File]:
    """For each cell that has fused kernels a header of steps, and a file for each kernel. Several sizes may have the
    same kernel. Then comes the index of all kernels. Where several GPUs of an architecture have the same table, it
    stands there once."""
    tables: dict[str, None] = {}
    for cell in cells:
        found: dict[str, FusedKernel] = {}
        for kernels in cell.fused:
            scalar = next(scalar.name for scalar in SCALARS if scalar.suffix == kernels.dtype)
            found |= {kernel.symbol: kernel for kernel in kernel_texts(kernels, scalar)}
            tables |= dict.fromkeys(index_tables(kernels))
        steps = f"{cell.plan.cell.lower()}_steps.cuh"
        if found:
            content = text(
                "cuda/steps.cuh.j2",
                source=cell.plan.source,
                macros=macro_names(cell.plan.programs()),
                kind="fused kernels",
                base="fused/device/step.cuh",
                fast="Fast",
                steps=fused_steps(cell.plan),
            )
            yield File(f"src/{steps}", content)
        for symbol, kernel in found.items():
            content = text("cuda/fused.cu.j2", cell=cell.plan.cell, steps=steps, kernel=kernel)
            yield File(f"src/{symbol}.cu", content)
    if tables:
        yield File(INDEX, "".join(tables))


def fused_architectures(cells: Sequence[CompiledCell]) -> dict[str, tuple[str, ...]]:
    """The architectures for which each kernel was planned, by the kernel's name."""
    found: dict[str, dict[str, None]] = {}
    for kernels in (kernels for cell in cells for kernels in cell.fused):
        for program, layout in kernels.kernels:
            found.setdefault(_symbol(program, kernels, layout), {})[kernels.architecture] = None
    return {symbol: tuple(architectures) for symbol, architectures in found.items()}


def fused_steps(plan: LoweredCell) -> tuple[StepStruct, ...]:
    """The steps of every fused program of a cell."""
    return tuple(_step(plan, program, loop) for program, loop in fused_programs(plan))


def _step(plan: LoweredCell, program: str, loop: FusedLoop) -> StepStruct:
    return fused_step(f"{program}_step", as_run(program, loop), plan.source)


def kernel_texts(fused: FusedKernels, scalar: str) -> Iterator[FusedKernel]:
    """The kernels. Each has a file of its own, so that they are compiled side by side. `scalar` is the dtype in C++."""
    for program, layout in fused.kernels:
        by_steps = layout.family.scope is Scope.STEP
        yield FusedKernel(
            _symbol(program, fused, layout),
            layout.family,
            ", ".join((_step_type(program, scalar, layout), str(fused.head_dim), *map(str, layout.shape))),
            layout.threads,
            layout.shared_bytes,
            "<=" if program.endswith("_inference") else "==",
            layout.exchange_steps,
            layout.group_batch,
            ", const int* before, int step" if by_steps else "",
            ", *before + step" if by_steps else "",
            fused.directions > 1,
        )


def index_tables(fused: FusedKernels) -> Iterator[str]:
    """The lines of each program, as cuda/fused/host/index.h and rnncc/runtime/kernels/index.py read
    them: the first word says what a line is about, and the others are `key=value`."""
    for program, table in fused.tables:
        size = {"dtype": fused.dtype, "head_dim": fused.head_dim, "heads": fused.heads}
        lines = [("table", {"program": program, **size, "architecture": fused.architecture})]
        lines += [("kernel", _kernel_words(program, fused, kernel)) for kernel in kernels_of(table)]
        lines += [("row", _row_words(program, fused, row)) for row in table]
        yield "".join(f"{kind} {' '.join(f'{key}={value}' for key, value in words.items())}\n" for kind, words in lines)


def _kernel_words(program: str, fused: FusedKernels, kernel: KernelLayout) -> dict[str, object]:
    return {
        "name": _symbol(program, fused, kernel),
        "family": kernel.family.name,
        "scope": kernel.family.scope.value,
        "ctas": kernel.ctas,
        "cluster": kernel.cluster,
        "threads": kernel.threads,
        "shared_bytes": kernel.shared_bytes,
        "group_batch": kernel.group_batch or 0,
        "multiple": kernel.multiple,
        "concurrent_groups": kernel.concurrent_groups,
        "exchange_steps": kernel.exchange_steps or 0,
        "relayed_head_dim": kernel.relayed_head_dim,
        "for_zeros": int(kernel.family.for_zeros),
        "directions": fused.directions,
    }


def _row_words(program: str, fused: FusedKernels, row: Row) -> dict[str, object]:
    """`pass_ns`: the expected time of a step of the groups that run side by side."""
    return {
        "batch": row.batch,
        "kernels": ",".join(_symbol(program, fused, choice.kernel) for choice in row.choices),
        "pass_ns": ",".join(str(round(1000 * choice.pass_us)) for choice in row.choices),
    }


def _step_type(program: str, scalar: str, layout: KernelLayout) -> str:
    """The step in C++."""
    step = f"{program}_step<{scalar}>"
    return f"Relayed<{', '.join((step, *map(str, layout.relayed)))}>" if layout.relayed else step


def _symbol(program: str, fused: FusedKernels, layout: KernelLayout) -> str:
    """A name that tells a kernel from all others of its package."""
    one = () if fused.directions > 1 else ("one",)
    return "_".join((program, fused.dtype, str(fused.head_dim), layout.symbol, *one))
