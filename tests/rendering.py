"""Kernels of plans as text, for tests that need no package around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from rnncc.ir.artifact import Bundle
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.layout import FusedKernels
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.request import Request
from rnncc.ir.target import CPU_FILES, EVERY
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.render import kernels
from rnncc.stages.schedule.kernels import scan_kernels


def for_cpus(plans: Sequence[LoweredCell], instructions: str = EVERY, cpu_files: tuple[str, ...] = CPU_FILES) -> Bundle:
    """The kernels of a package for CPUs alone."""
    request = Request(Source("cells.rnn", ""), "cells", instructions=instructions, cpu_files=cpu_files)
    return kernels(request, [replace(any_cell(), plan=plan) for plan in plans])


def for_gpus(
    plans: Sequence[LoweredCell], fused: Sequence[Sequence[FusedKernels]] = (), *, newton: bool = False
) -> Bundle:
    """The kernels of a package for GPUs too; `fused`: fused ones, for each plan."""
    cells = [
        replace(any_cell(), plan=plan, scans=scan_kernels(plan, newton=newton), fused=tuple(own))
        for plan, own in zip(plans, fused or [()] * len(plans), strict=True)
    ]
    return kernels(Request(Source("cells.rnn", ""), "cells", architectures=("sm_90a",)), cells)


def at_first_use(plan: LoweredCell, fused: Sequence[FusedKernels]) -> Bundle:
    """Fused kernels of a cell, for a package that has the rest."""
    request = Request(Source("cells.rnn", ""), "cells", instructions="")
    return kernels(request, [replace(any_cell(), plan=plan, fused=tuple(fused))])


@cache
def any_cell() -> CompiledCell:
    """A cell, whose plan is then another one. Its layers call no op that is for GPUs alone."""
    return compile_cells(read_request("lstm"), "partition").cells[0]
