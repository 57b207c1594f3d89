"""The files of kernels of loops without products: the steps, and the kernel of each program, form and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rnncc.ir.artifact import File
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.family import Family
from rnncc.ir.layout import ScanKernels
from rnncc.ir.lowered import LoweredCell, scan_programs
from rnncc.stages.render.cpp.names import macro_names
from rnncc.stages.render.cuda.scalars import SCALARS, DeviceScalar
from rnncc.stages.render.cuda.steps import scan_step
from rnncc.stages.render.templates import text

# Clusters of one CTA, and the largest ones.
_CTAS = (1, 16)


@dataclass(frozen=True, slots=True)
class ScanKernel:
    """A kernel: its family, whose name the function and the class of the layout have, the template arguments of that
    class, and the numbers that were planned. `shared` has pairs (CTAs per cluster, shared memory per CTA)."""

    symbol: str
    family: Family
    arguments: str
    threads: int
    resident: int
    shared: tuple[tuple[int, int], ...]


def scan_files(cell: CompiledCell) -> Iterator[File]:
    """A header of steps, and a file for each kernel: a call needs one, and waits for no other. There are none where all
    loops have products."""
    if not cell.scans:
        return
    plan, name = cell.plan, cell.plan.cell.lower()
    steps = f"{name}_scans.cuh"
    own = [scan for scan in cell.scans if scan.are_own]
    yield File(f"src/{steps}", scan_steps_text(plan, own))
    for scan, scalar in product(own, SCALARS):
        for kernel in _kernels(scan, scalar):
            content = text("cuda/scan.cu.j2", cell=plan.cell, scalar=scalar, steps=steps, kernel=kernel)
            yield File(f"src/{kernel.symbol}_{scalar.suffix}.cu", content)


def scan_steps_text(plan: LoweredCell, scans: Sequence[ScanKernels]) -> str:
    """The steps of programs without products: those that the kernels are made for. They have tangents where kernels
    need them."""
    programs = {kernels.program for kernels in scans}
    iterating = {kernels.program for kernels in scans if kernels.full.newton or kernels.half.newton}
    return text(
        "cuda/steps.cuh.j2",
        source=plan.source,
        macros=macro_names(plan.programs()),
        kind="no product",
        base="scan/lanes.cuh",
        fast="FastScan",
        steps=[
            scan_step(f"{program}_step", loop if program in iterating else replace(loop, tangent=None), plan.source)
            for program, loop in scan_programs(plan)
            if program in programs
        ],
    )


def _kernels(kernels: ScanKernels, scalar: DeviceScalar) -> Iterator[ScanKernel]:
    schedule = kernels.full if scalar.bytes == 4 else kernels.half
    for form, shape in schedule.forms:
        yield ScanKernel(
            f"{kernels.program}_{form}",
            shape.family,
            ", ".join((f"{kernels.program}_step<{scalar.name}>", *map(str, shape.arguments))),
            shape.threads,
            shape.resident,
            tuple((ctas, shape.shared_bytes_of(ctas)) for ctas in _CTAS),
        )
