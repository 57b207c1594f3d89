"""What the files of a package are made of: what the stages before `render` made, for Python and for kernels."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell
from rnncc.ir.plan import KernelPlan
from rnncc.ir.recurrence import Recurrence
from rnncc.ir.schedule import FusedKernels, ScanKernels
from rnncc.ir.target import COMPUTE_TYPES

# The files of GPU kernels that every package for GPUs has: they are the same for every cell.
OF_EVERY_PACKAGE = ("_core", "_small_f32", "_small_bf16", "_small_f16")


@dataclass(frozen=True, slots=True)
class CompiledCell:
    """A cell with what the stages made of it: one recurrence class and one adjoint for each segment.

    The adjoints (`masked` is `mask(cell)` with its own) are empty where no kernels are built: the package then holds
    the eager fallback alone."""

    cell: Cell
    masked: Cell
    recurrences: tuple[Recurrence, ...]
    adjoints: tuple[Adjoint, ...] = ()
    masked_adjoints: tuple[Adjoint, ...] = ()


@dataclass(frozen=True, slots=True)
class CellKernels:
    """The kernels of a cell: all its loops, and which kernels there are for GPUs: those of its loops without products
    (`scans`), and fused ones."""

    plan: KernelPlan
    scans: tuple[ScanKernels, ...] = ()
    fused: tuple[FusedKernels, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """What is rendered. Each part may be missing: fused kernels at first use come without the rest of their package.

    name           the package's
    cells          what its Python files are made of, and the registration of its ops
    kernels        of the same cells
    instructions   the one instruction set that CPU kernels are for, or EVERY; empty: there are none for CPUs
    compute_types  those of the CPU kernels; a call may ask for others when it needs them
    on_gpus        whether ops take tensors of GPUs: then there are kernels for all sizes, besides fused ones
    """

    name: str
    cells: tuple[CompiledCell, ...] = ()
    kernels: tuple[CellKernels, ...] = ()
    instructions: str = ""
    compute_types: tuple[str, ...] = tuple(COMPUTE_TYPES)
    on_gpus: bool = False
