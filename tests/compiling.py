"""Stages run on texts and on cells, for tests that begin in the middle."""

from __future__ import annotations

from collections.abc import Mapping

from rnncc.ir.cell import Cell
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.request import Request
from rnncc.language.diagnostics import Diagnostic
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.differentiate import differentiate
from rnncc.stages.lower import lower
from rnncc.stages.mask import mask


def front(source: Source, constants: Mapping[str, float | int | str] = {}) -> list[tuple[Cell, tuple[Diagnostic, ...]]]:
    """The cells of a text, each with its warnings."""
    made = compile_cells(Request(source, "cell", constants), "partition")
    return [(each.cell, each.warnings) for each in made.cells]


def cell_of(text: str, name: str = "cell.rnn", constants: Mapping[str, float | int | str] = {}) -> Cell:
    """The only cell of a text."""
    ((cell, _),) = front(Source(name, text), constants)
    return cell


def kernel_plan(cell: Cell) -> LoweredCell:
    """All loops of a cell, as kernels run them."""
    masked = mask(cell)
    return lower(cell, differentiate(cell), masked, differentiate(masked))


def plan_of(name: str) -> LoweredCell:
    """Those of a file's first cell; `name` may be that of a shipped one."""
    return compile_cells(read_request(name), "lower").cells[0].plan


def lowered(source: Source) -> LoweredCell:
    """Those of a text's first cell."""
    return compile_cells(Request(source, "cell"), "lower").cells[0].plan
