"""A text on its way through the stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.artifact import Bundle, File
from rnncc.ir.cell import Cell
from rnncc.ir.package import CellKernels, CompiledCell, Package
from rnncc.ir.plan import KernelPlan
from rnncc.ir.recurrence import Recurrence
from rnncc.ir.request import Request
from rnncc.ir.schedule import FusedKernels, ScanKernels
from rnncc.ir.syntax import CellDecl
from rnncc.ir.typed import Typed
from rnncc.language.diagnostics import Diagnostic


@dataclass(slots=True)
class Compilation:
    """What the stages made of a request so far. A field is there once its stage has run. It holds one entry for each
    cell, in the order of the text; adjoints and recurrence classes hold one for each segment of a cell.

    typed            cells whose names, sizes and types are known
    cells            cut into parts, then with zoneout and recurrent dropout
    warnings         of each cell: those of `check`, then those of `partition` as well; errors are raised
    masked           the variant of each cell that restarts (`reset`) and stops (`lengths`) by batch entry
    adjoints         backward programs of `cells`; `masked_adjoints` those of `masked`
    plans            all loops, as kernels run them
    scans, fused     GPU kernels of loops without products, and fused kernels for `request.problems`
    files, bundle    the package's own files, and its kernels
    """

    request: Request
    declarations: tuple[CellDecl, ...] = field(init=False)
    typed: tuple[Typed, ...] = field(init=False)
    cells: tuple[Cell, ...] = field(init=False)
    warnings: tuple[tuple[Diagnostic, ...], ...] = field(init=False)
    recurrences: tuple[tuple[Recurrence, ...], ...] = field(init=False)
    masked: tuple[Cell, ...] = field(init=False)
    adjoints: tuple[tuple[Adjoint, ...], ...] = field(init=False)
    masked_adjoints: tuple[tuple[Adjoint, ...], ...] = field(init=False)
    plans: tuple[KernelPlan, ...] = field(init=False)
    scans: tuple[tuple[ScanKernels, ...], ...] = field(init=False)
    fused: tuple[tuple[FusedKernels, ...], ...] = field(init=False)
    files: tuple[File, ...] = field(init=False)
    bundle: Bundle = field(init=False)

    def package(self) -> Package:
        """What `render` makes files of."""
        cells = map(CompiledCell, self.cells, self.masked, self.recurrences, self.adjoints, self.masked_adjoints)
        kernels = map(CellKernels, self.plans, self.scans, self.fused)
        request = self.request
        made_for = (request.instructions, request.compute_types, request.is_for_gpus)
        return Package(request.name, tuple(cells), tuple(kernels), *made_for)
