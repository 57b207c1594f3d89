"""The shipped cells as a list: what `rnncc cells` prints and docs/cells.md shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell: the name to load its file by, the cell's name, its recurrence classes in segment order (the same one
    once), recurrent matmul phases of a step, and where it was published."""

    file: str
    cell: str
    kinds: str
    phases: int
    citation: str


def catalogue(source: Source) -> tuple[Entry, ...]:
    """Make an entry for every cell of a file."""
    file = Path(source.name).stem
    return tuple(
        Entry(
            file,
            made.name,
            " + ".join(dict.fromkeys(recurrence.kind.value for recurrence in made.recurrences)),
            max(segment.phases for segment in made.cell.segments),
            citation(made.cell.comment),
        )
        for made in compile_cells(Request(source, file), "classify").cells
    )


def citation(comment: str) -> str:
    """What a cell's comment says before `Form:`, on one line."""
    text = " ".join(comment.split())
    return text.split(" Form:")[0].rstrip(".")
