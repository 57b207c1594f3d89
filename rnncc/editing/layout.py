"""One statement's lines: on one where it fits, else broken inside brackets.

What is too long is broken before the operators that bind least, and after commas, as far out as possible. As much as
fits stands on each line. A declaration of several names becomes several declarations. A right side that is broken
stands in brackets of its own, and one that fits does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rnncc.editing.pieces import (
    CLOSE,
    COMMENT,
    OPEN,
    OPENING,
    Piece,
    matching,
    outside,
    width,
    without_space,
)
from rnncc.ir.syntax import DEEPEST

# Columns of a line of code; comments may be longer.
WIDEST = 120
# Declarations that list names, each of which may stand in a declaration of its own.
_LISTS = frozenset({"INPUT", "STATE", "DIM", "CONST", "LOCAL", "PARAM", "BUFFER", "WEIGHTS"})
# Where a line may be broken, from what binds least on. A comma ends its line, an operator begins one.
_BREAKS = (("COMMA",), ("IF", "ELSE"), ("COMPARE",), ("PLUS", "MINUS"), ("STAR", "SLASH", "AT"))


@dataclass(slots=True)
class Line:
    """A line of the text: code, and a comment behind it. One without code is a comment's own, and knows its indent."""

    code: str
    comment: str = ""


def lay_out(pieces: list[Piece], indent: str) -> list[Line]:
    """The lines of a statement."""
    has_comments = any(piece.kind == COMMENT for piece in pieces)
    if pieces[0].kind in _LISTS:
        if not has_comments and len(indent) + width(pieces) > WIDEST:
            return [line for part in _split_list(pieces, indent) for line in _filled(part, indent)]
    elif (right := _right_side(pieces)) is not None:
        pieces = [*pieces[:right], *_bracketed(pieces[right:], len(indent) + width(pieces[:right]) + 1)]
    return _filled(pieces, indent)


def _right_side(pieces: Sequence[Piece]) -> int | None:
    """Where the expression of an equation, a `def` or an `init` begins."""
    return next((index + 1 for index in outside(pieces) if pieces[index].kind == "EQUAL"), None)


def _bracketed(right: list[Piece], column: int) -> list[Piece]:
    """A right side that begins at a column: in brackets where it must be broken, without those that do nothing."""
    if any(piece.kind == COMMENT for piece in right):
        if right[0].kind in OPENING and matching(right, 0) == len(right) - 1:
            return right
    else:
        while right[0].kind == "LPAR" and matching(right, 0) == len(right) - 1:
            right = [Piece(right[1].kind, right[1].text, space=True), *right[2:-1]]
    if column + width(right) <= WIDEST or not _can_be_broken(right) or _depth(right) == DEEPEST:
        return right
    return [OPEN, *without_space(right), CLOSE]


def _can_be_broken(right: Sequence[Piece]) -> bool:
    """Whether an expression has operators outside of brackets."""
    return any(piece.binary or piece.kind in ("IF", "COMPARE", "STAR", "SLASH", "AT") for piece in _outside(right))


def _outside(pieces: Sequence[Piece]) -> Iterator[Piece]:
    return (pieces[index] for index in outside(pieces))


def _depth(pieces: Sequence[Piece]) -> int:
    deepest = depth = 0
    for piece in pieces:
        depth += (piece.kind in OPENING) - (piece.kind in ("RPAR", "RSQB"))
        deepest = max(deepest, depth)
    return deepest


def _split_list(pieces: list[Piece], indent: str) -> Iterator[list[Piece]]:
    """`param a: vector, b: vector` as declarations that each fit on a line, where that is possible."""
    word = pieces[0]
    items: list[list[Piece]] = [[]]
    commas = {index for index in outside(pieces) if pieces[index].kind == "COMMA"}
    for index, piece in enumerate(pieces[1:], 1):
        if index in commas:
            items.append([])
        else:
            items[-1].append(piece)
    comma = Piece("COMMA", ",")
    made = [word, *items[0]]
    for item in items[1:]:
        longer = [*made, comma, *item]
        if len(indent) + width(longer) > WIDEST:
            yield made
            made = [word, *item]
        else:
            made = longer
    yield made


def _filled(pieces: list[Piece], indent: str) -> list[Line]:
    page = _Page(indent)
    # Outside of brackets no line can be broken.
    page.place_operand(pieces, len(indent) + 4, 0)
    return page.lines


class _Page:
    """The lines that are being written. `column` is where a line of the run being placed goes on."""

    def __init__(self, indent: str) -> None:
        self.lines = [Line(indent)]
        self.fresh = True
        self.must_break = False

    def place(self, run: Sequence[Piece], column: int, after: int) -> None:
        """Write a run of pieces; `after` more columns of code follow on its last line."""
        has_comments = any(piece.kind == COMMENT for piece in run)
        if not has_comments and self._fits(run, after):
            for piece in run:
                self._write(piece, column)
            return
        chunks = _chunks(run)
        if len(chunks) == 1:
            self.place_operand(run, column, after)
            return
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1
            follows = after if last else 0
            if number and self._begins_a_line(chunk, column, follows):
                self._newline(column)
            # What binds tighter is broken further in.
            self.place(chunk, column + 2, follows)

    def _begins_a_line(self, chunk: Sequence[Piece], column: int, after: int) -> bool:
        """Whether a part goes to the next line: where it does not fit here, unless it must be broken there too and its
        first bracket fits here."""
        code = _first_code(chunk)
        after = after if len(code) == len(chunk) else 0
        if self._fits(code, after):
            return False
        opening = next((index for index, piece in enumerate(code) if piece.kind == "LPAR"), None)
        fits_there = column + width(code) + after <= WIDEST
        return fits_there or opening is None or not self._fits(code[: opening + 1], 0)

    def place_operand(self, run: Sequence[Piece], column: int, after: int) -> None:
        """Write a run without operators outside of its brackets, each bracket's inside as a run of its own."""
        index = 0
        while index < len(run):
            piece = run[index]
            if piece.kind == COMMENT:
                self._comment(piece, column)
            else:
                self._write(piece, column)
            if piece.kind in OPENING:
                closing = matching(run, index)
                rest = width(_first_code(run[closing:]))
                self.place(run[index + 1 : closing], len(self.lines[-1].code), rest + after)
                index = closing - 1
            index += 1

    def _fits(self, run: Sequence[Piece], after: int) -> bool:
        if self.must_break or not run:
            return not self.must_break
        start = len(self.lines[-1].code) + (run[0].space and not self.fresh)
        return start + width(run) + after <= WIDEST

    def _write(self, piece: Piece, column: int) -> None:
        if self.must_break:
            self._newline(column)
        line = self.lines[-1]
        line.code += (" " if piece.space and not self.fresh else "") + piece.text
        self.fresh = False

    def _comment(self, piece: Piece, column: int) -> None:
        if piece.own_line or self.must_break:
            self._newline(column)
        self.lines[-1].comment = piece.text
        self.must_break = True

    def _newline(self, column: int) -> None:
        if self.fresh and not self.lines[-1].comment:
            self.lines[-1].code = " " * column
        else:
            self.lines.append(Line(" " * column))
        self.fresh = True
        self.must_break = False


def _first_code(run: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces before the first comment."""
    first = next((index for index, piece in enumerate(run) if piece.kind == COMMENT), len(run))
    return run[:first]


def _chunks(run: Sequence[Piece]) -> list[Sequence[Piece]]:
    """The parts of a run between the places where it is broken first."""
    places = list(outside(run))
    for kinds in _BREAKS:
        starts = [_chunk_start(run, index) for index in places if _is_break(run, index, kinds)]
        starts = [start for start in starts if 0 < start < len(run)]
        if starts:
            return [run[start:end] for start, end in zip([0, *starts], [*starts, len(run)], strict=True)]
    return [run]


def _is_break(run: Sequence[Piece], index: int, kinds: Sequence[str]) -> bool:
    piece = run[index]
    return piece.kind in kinds and (piece.binary or piece.kind not in ("PLUS", "MINUS"))


def _chunk_start(run: Sequence[Piece], index: int) -> int:
    """Where the part begins that an operator or a comma separates from what stands before: a comma, and a comment
    behind it, belong to what they end."""
    if run[index].kind != "COMMA":
        return index
    index += 1
    while index < len(run) and run[index].kind == COMMENT and not run[index].own_line:
        index += 1
    return index
