"""Labels: a line of text in which `_{…}` is below and `^{…}` above, and how wide it is.

Widths are those of a wide font (DejaVu Sans): in the reader's font a label is as wide or narrower.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from rnncc.show.symbols import in_letters, symbol

SMALL = 0.72
_RUN = re.compile(r"(?P<mark>[_^])\{(?P<inside>[^{}]*)\}|(?P<plain>[^_^]+|[_^])")
_NARROW = frozenset("iljtfrI.,:;|!'()[]/ -·")
_WIDE = frozenset("mwMW@⊙⊗…∞→")
_SIGNS = frozenset("+−=<>≤≥≠×÷Θωψφ&%")


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a label at one height: 0 on the line, -1 below, 1 above."""

    text: str
    height: int


def runs(label: str) -> Iterator[Run]:
    """The parts of a label from left to right."""
    for match in _RUN.finditer(label):
        if match["mark"]:
            yield Run(match["inside"], -1 if match["mark"] == "_" else 1)
        else:
            yield Run(match["plain"], 0)


def width(label: str, size: float) -> float:
    """How wide a label is at most, at a size of the font."""
    return sum(sum(map(_advance, run.text)) * size * (SMALL if run.height else 1) for run in runs(label))


def plain(label: str) -> str:
    """A label as plain text: `h_t-1`."""
    return re.sub(r"([_^])\{([^{}]*)\}", r"\1\2", label)


def _advance(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if character in _NARROW:
        return 0.42
    if character in _WIDE:
        return 1.0
    if character in _SIGNS:
        return 0.84
    return 0.72 if character.isupper() else 0.645


def name_label(name: str, *below: str, above: str = "") -> str:
    """A name with its subscripts and further ones."""
    parts = symbol(name)
    under = ",".join([*map(in_letters, parts.subscripts), *below])
    return in_letters(parts.base) + (f"_{{{under}}}" if under else "") + (f"^{{{above}}}" if above else "")
