"""Kernels of plans as text, for tests that need no package around them."""

from __future__ import annotations

from collections.abc import Sequence

from rnncc.ir.artifact import Bundle
from rnncc.ir.package import CellKernels, Package
from rnncc.ir.plan import KernelPlan
from rnncc.ir.schedule import FusedKernels
from rnncc.ir.target import COMPUTE_TYPES, EVERY
from rnncc.stages.render import render
from rnncc.stages.schedule.kernels import scan_kernels


def for_cpus(
    plans: Sequence[KernelPlan], instructions: str = EVERY, compute_types: tuple[str, ...] = tuple(COMPUTE_TYPES)
) -> Bundle:
    """The kernels of a package for CPUs alone."""
    return render(Package("", (), tuple(map(CellKernels, plans)), instructions, compute_types))[1]


def for_gpus(
    plans: Sequence[KernelPlan], fused: Sequence[Sequence[FusedKernels]] = (), *, newton: bool = False
) -> Bundle:
    """The kernels of a package for GPUs too; `fused`: fused ones, for each plan."""
    kernels = [
        CellKernels(plan, tuple(scan_kernels(plan, newton=newton)), tuple(own))
        for plan, own in zip(plans, fused or [()] * len(plans), strict=True)
    ]
    return render(Package("", kernels=tuple(kernels), instructions=EVERY, on_gpus=True))[1]


def at_first_use(plan: KernelPlan, fused: Sequence[FusedKernels]) -> Bundle:
    """Fused kernels of a cell, for a package that has the rest."""
    return render(Package("", kernels=(CellKernels(plan, fused=tuple(fused)),)))[1]
