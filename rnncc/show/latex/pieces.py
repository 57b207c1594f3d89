"""Formulas as pieces of TeX with an estimated width, and the lines that they are broken into.

Widths are in em at the size of the text. They decide where a line is broken, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# Heights of what brackets go around: a line of letters, a fraction, a case distinction.
FLAT, FRACTION, CASES = range(3)
_OPEN = {FLAT: "(", FRACTION: r"\Bigl(", CASES: r"\Biggl("}
_CLOSE = {FLAT: ")", FRACTION: r"\Bigr)", CASES: r"\Biggr)"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a formula. A line may be broken before it where `level` is a number: the depth of brackets there."""

    tex: str
    width: float
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Formula:
    """Pieces from left to right. `nested`: how deep round brackets stand in it."""

    pieces: tuple[Piece, ...]
    height: int = FLAT
    nested: int = 0

    @property
    def tex(self) -> str:
        """The formula on one line."""
        return _joined(self.pieces)

    @property
    def width(self) -> float:
        """Its width on one line, in em."""
        return sum(piece.width for piece in self.pieces)


def text(tex: str, width: float) -> Formula:
    """A formula of one piece."""
    return Formula((Piece(tex, width),))


def unbroken(tex: str, width: float, inside: Iterable[Formula], height: int | None = None) -> Formula:
    """One piece that is made of other formulas: it is as high and as deep as these, or of the given height."""
    parts = tuple(inside)
    highest = max((part.height for part in parts), default=FLAT)
    nested = max((part.nested for part in parts), default=0)
    return Formula((Piece(tex, width),), highest if height is None else max(height, highest), nested)


def side_by_side(*parts: Formula) -> Formula:
    """The formulas one after the other."""
    return Formula(
        tuple(piece for part in parts for piece in part.pieces),
        max((part.height for part in parts), default=FLAT),
        max((part.nested for part in parts), default=0),
    )


def operator(tex: str, width: float) -> Formula:
    """An operator between two operands, before which a line may be broken."""
    return Formula((Piece(f" {tex} ", width, 0),))


def in_brackets(formula: Formula) -> Formula:
    """The formula in round brackets, which grow with what is in them. A line may be broken inside."""
    opening, closing = _OPEN[formula.height], _CLOSE[formula.height]
    if formula.height == FLAT and formula.nested:
        opening, closing = (r"\bigl(", r"\bigr)") if formula.nested == 1 else (r"\Bigl(", r"\Bigr)")
    inner = tuple(piece if piece.level is None else replace(piece, level=piece.level + 1) for piece in formula.pieces)
    return Formula((Piece(opening, 0.4), *inner, Piece(closing, 0.4)), formula.height, formula.nested + 1)


def lines(formula: Formula, first: float, width: float) -> tuple[str, ...]:
    """The formula in lines: the first of at most `first` em, the others of at most `width`. Lines are broken outside of
    brackets where that is enough, and as late as fits. What has no place for a break stays whole."""
    found: list[str] = []
    rest: Sequence[Piece] = formula.pieces
    room = first
    while sum(piece.width for piece in rest) > room and (place := _break(rest, room)):
        found.append(_joined(rest[:place]))
        rest, room = rest[place:], width
    return (*found, _joined(rest))


def _break(pieces: Sequence[Piece], room: float) -> int | None:
    """Where the next line begins."""
    ends, places = 0.0, list[tuple[int, int]]()
    later: tuple[int, int] | None = None
    for index, piece in enumerate(pieces):
        if index and piece.level is not None:
            if ends <= room:
                places.append((piece.level, index))
            elif later is None or piece.level < later[0]:
                later = (piece.level, index)
        ends += piece.width
    if not places:
        return None if later is None else later[1]
    shallowest = min(level for level, _ in places)
    return max(index for level, index in places if level == shallowest)


def _joined(pieces: Sequence[Piece]) -> str:
    return "".join(piece.tex for piece in pieces).strip()
