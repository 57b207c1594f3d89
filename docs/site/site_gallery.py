"""The gallery: a page for every shipped cell, and an index with small pictures by what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from site_cells import Shipped, image, page, pictures

from rnncc.ir.recurrence import RecurrenceKind

_INTRODUCTION = """\
---
title: Gallery of cells
hide: [toc]
---

# Gallery of cells

Each page has the equations of a cell, a picture of one step, its parameters, measured times and its source. All of it
is made from the {count} files in `cells/` by the compiler. The cells stand under what it finds out about their loops
([recurrence classes](../language.md#what-the-compiler-finds-out-by-itself)).
[One table](../cells.md) has all of them too.
"""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A part of the index. `takes` looks at the classes of a cell's loops, and at the phases of a step."""

    title: str
    words: str
    takes: Callable[[frozenset[RecurrenceKind], int], bool]


_KINDS = (
    _Kind(
        "Scans",
        "AFFINE: the new state is an affine function of the old one. All steps can run at once, as a parallel scan.",
        lambda kinds, _: kinds == {RecurrenceKind.AFFINE},
    ),
    _Kind(
        "Walks",
        "ELEMENTWISE: no matrix mixes the units of a state. Every channel is a chain of its own.",
        lambda kinds, _: kinds == {RecurrenceKind.ELEMENTWISE},
    ),
    _Kind(
        "Several loops",
        "States that do not depend on each other have loops of their own, here of different classes.",
        lambda kinds, _: len(kinds) > 1,
    ),
    _Kind(
        "Matrices",
        "MATRIX: a state is a matrix, which products with vectors write and read.",
        lambda kinds, _: kinds == {RecurrenceKind.MATRIX},
    ),
    _Kind(
        "Dense, one phase",
        "DENSE: a step mixes units of a state, by a recurrent matrix as a rule. All its products can run at once.",
        lambda kinds, phases: kinds == {RecurrenceKind.DENSE} and phases <= 1,
    ),
    _Kind(
        "Dense, several phases",
        "DENSE, where products of a step wait for each other.",
        lambda kinds, phases: kinds == {RecurrenceKind.DENSE} and phases > 1,
    ),
)


def files(cells: Sequence[Shipped]) -> Iterator[tuple[Path, str]]:
    """The gallery's files, by their paths in the site's source. `cells` stand in the order of their pages."""
    folder = Path("gallery")
    for index, cell in enumerate(cells):
        before, after = cells[index - 1].entry, cells[(index + 1) % len(cells)].entry
        yield folder / f"{cell.entry.file}.md", page(cell, before, after)
        yield from ((folder / name, svg) for name, svg in pictures(cell).items())
    yield folder / "index.md", _index(cells)


def _index(cells: Sequence[Shipped]) -> str:
    parts = [_INTRODUCTION.format(count=len(cells)).strip()]
    for kind in _KINDS:
        own = [cell for cell in cells if kind.takes(_kinds(cell), cell.entry.phases)]
        if own:
            cards = "".join(map(_card, own))
            parts += [f"## {kind.title}", kind.words, f'<div class="cards">{cards}</div>']
    return "\n\n".join(parts) + "\n"


def _kinds(cell: Shipped) -> frozenset[RecurrenceKind]:
    return frozenset(recurrence.kind for recurrence in cell.made.recurrences)


def _card(cell: Shipped) -> str:
    entry = cell.entry
    small = image(entry.file, "", loading="lazy")
    return (
        f'<a class="card" href="{entry.file}.html"><span class="small">{small}</span>'
        f"<strong>{escape(entry.cell)}</strong><span>{escape(entry.citation)}</span></a>"
    )
