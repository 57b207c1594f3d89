"""The files of kernels of loops without products: the steps, and all kernels of a cell and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rnncc.ir.family import Family
from rnncc.ir.plan import KernelPlan, scan_programs
from rnncc.ir.schedule import ScanKernels
from rnncc.stages.render.cpp import macro_names
from rnncc.stages.render.fused import StepsText
from rnncc.stages.render.step import scan_text

# Clusters of one CTA, and the largest ones.
_CTAS = (1, 16)


@dataclass(frozen=True, slots=True)
class ScanKernelText:
    """A kernel: its family, by which the function and the class of the layout are called, the template arguments of
    that class, and the numbers that were planned. `shared` has pairs (CTAs per cluster, shared memory per CTA)."""

    symbol: str
    family: Family
    arguments: str
    threads: int
    resident: int
    shared: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ScanFileText:
    """What the template of a file of kernels prints; `steps` is the header of the cell's steps."""

    cell: str
    scalar: str
    steps: str
    kernels: tuple[ScanKernelText, ...]


def scan_steps_text(plan: KernelPlan, scans: Sequence[ScanKernels]) -> StepsText:
    """The steps of every program without products of a cell; with tangents where kernels need them."""
    iterating = {kernels.program for kernels in scans if kernels.full.newton or kernels.half.newton}
    steps = tuple(
        scan_text(f"{program}_step", loop if program in iterating else replace(loop, tangent=None), plan.source)
        for program, loop in scan_programs(plan)
    )
    return StepsText(plan.source, macro_names(plan), "no product", "scan/lanes.cuh", "FastScan", steps)


def scan_file_text(
    plan: KernelPlan, scans: Sequence[ScanKernels], scalar: str, element_bytes: int, steps: str
) -> ScanFileText:
    """All kernels of a cell for a dtype, `scalar` in C++."""
    return ScanFileText(plan.cell, scalar, steps, tuple(_kernels(scans, scalar, element_bytes)))


def _kernels(scans: Sequence[ScanKernels], scalar: str, element_bytes: int) -> Iterator[ScanKernelText]:
    for kernels in scans:
        schedule = kernels.full if element_bytes == 4 else kernels.half
        for form, shape in schedule.forms:
            yield ScanKernelText(
                f"{kernels.program}_{form}",
                shape.family,
                ", ".join((f"{kernels.program}_step<{scalar}>", *map(str, shape.arguments))),
                shape.threads,
                shape.resident,
                tuple((ctas, shape.shared_bytes_of(ctas)) for ctas in _CTAS),
            )
