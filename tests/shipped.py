"""The shipped cells, checked."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rnncc.ir.cell import Cell
from rnncc.ir.dim import HEADS, ONE
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.source import Source
from tests.compiling import front

FOLDER = Path(__file__).parents[1] / "cells"
STEMS = sorted(path.stem for path in FOLDER.glob("*.rnn"))


@cache
def cells(stem: str) -> tuple[Cell, ...]:
    """The cells of `cells/<stem>.rnn`."""
    path = FOLDER / f"{stem}.rnn"
    return tuple(cell for cell, _ in front(Source(path.name, path.read_text())))


def is_one_head_only(cell: Cell) -> bool:
    """Whether a product on states ends in one number, which no two heads can share (LMU's u)."""
    return any(
        diagonal_blocks(value.structure) == HEADS and ONE in (value.width, value.columns) for value in cell.values
    )
