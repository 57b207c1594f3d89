"""What a stage made of a text, as `rnncc show` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.recurrence import Recurrence
from rnncc.ir.request import Request
from rnncc.ir.syntax import CellDecl
from rnncc.ir.typed import Typed
from rnncc.machine.targets import ARCHITECTURES
from rnncc.pipeline import STAGES, compile_cells
from rnncc.show.compiled import show_adjoint, show_plan, show_recurrence
from rnncc.show.syntax import show_declaration
from rnncc.show.typed import show_typed
from rnncc.show.values import show_cell

if TYPE_CHECKING:
    from rnncc.ir.problem import Problem
    from rnncc.ir.target import Target


def stage_text(request: Request, stage: str, size: tuple[Problem, Target] | None = None) -> str:
    """What `stage`, one of STAGES, made of every cell. `size`: what the schedule is for."""
    if stage == "render":
        # Everything that there may be: also the kernels for GPUs, whose text is the same for all of them.
        request = replace(request, architectures=tuple(sorted(set(ARCHITECTURES.values()))))
    made = compile_cells(request, stage)
    match stage:
        case "schedule":
            return "\n".join(_schedules(made.cells, size))
        case "render":
            own = (file for file in made.bundle.files if not file.path.startswith(made.bundle.include))
            return "\n".join(f"// {file.path}\n{file.text}" for file in own)
    values = (getattr(cell, STAGES[stage]) for cell in made.cells)
    by_segment = stage in ("classify", "differentiate")
    return "\n".join(show(value) for entry in values for value in (entry if by_segment else (entry,)))


def show(value: CellDecl | Typed | Cell | Recurrence | Adjoint | LoweredCell) -> str:
    """The value as text, without a final newline: the same value always gives the same text."""
    match value:
        case CellDecl():
            return show_declaration(value)
        case Typed():
            return "\n".join(show_typed(value))
        case Cell():
            return "\n".join(show_cell(value))
        case Recurrence():
            return "\n".join(show_recurrence(value))
        case Adjoint():
            return "\n".join(show_adjoint(value))
        case LoweredCell():
            return "\n".join(show_plan(value))
        case _:
            assert_never(value)


def _schedules(cells: Sequence[CompiledCell], size: tuple[Problem, Target] | None) -> Iterable[str]:
    from rnncc.show.schedule import show_kernels
    from rnncc.stages.schedule.kernels import family_names, planned

    for cell in cells:
        if size is not None:
            yield show_kernels(planned(cell.plan, *size))
            continue
        # Work is divided when the sizes are known, at run time.
        for loop, on_gpu in family_names(cell.plan):
            for family, target in (("sequential", "cpu"), (on_gpu, "any GPU")):
                yield f"{cell.name}, segment {loop.segment}: {family}, target {target}, every size at run time"
