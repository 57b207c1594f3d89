"""Cells on their way through the stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.artifact import Bundle, File
from rnncc.ir.cell import Cell
from rnncc.ir.layout import FusedKernels, ScanKernels
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.recurrence import Recurrence
from rnncc.ir.request import Request
from rnncc.ir.syntax import CellDecl
from rnncc.ir.typed import Typed
from rnncc.language.diagnostics import Diagnostic

_LATER: Any = None  # its stage has not run


@dataclass(frozen=True, slots=True)
class CompiledCell:
    """A cell with what the stages made of it so far.

    declaration      the cell as it is written
    typed            its names, sizes and types
    warnings         those of `check`, then those of `partition` as well; errors are raised
    cell             cut into parts, then with zoneout and recurrent dropout
    recurrences      the recurrence class of each segment
    masked           the variant of `cell` that restarts (`reset`) and stops (`lengths`) by batch entry
    adjoints         the backward program of each segment of `cell`; `masked_adjoints` those of `masked`. Both are empty
                     where no kernels are built: the package then holds the eager fallback alone
    single           `cell` for one step alone, and what stands for its adjoint; None where the op of a whole layer runs
                     a step anyway, or where nothing runs all of it
    plan             all loops, as kernels run them
    scans, fused     GPU kernels of loops without products, and fused kernels for the problems of the request
    """

    declaration: CellDecl
    typed: Typed = _LATER
    warnings: tuple[Diagnostic, ...] = ()
    cell: Cell = _LATER
    recurrences: tuple[Recurrence, ...] = ()
    masked: Cell = _LATER
    adjoints: tuple[Adjoint, ...] = ()
    masked_adjoints: tuple[Adjoint, ...] = ()
    single: tuple[Cell, Adjoint] | None = None
    plan: LoweredCell = _LATER
    scans: tuple[ScanKernels, ...] = ()
    fused: tuple[FusedKernels, ...] = ()

    @property
    def name(self) -> str:
        """The cell's name."""
        return self.declaration.name


@dataclass(frozen=True, slots=True)
class Compilation:
    """What the stages made of a request so far: its cells, in the order of the text; after `render` the package's own
    files, and its kernels."""

    request: Request
    cells: tuple[CompiledCell, ...] = ()
    files: tuple[File, ...] = ()
    bundle: Bundle = Bundle((), (), ())
