"""The tokens and comments of one statement, with what the style says of spaces between them.

Sums and comparisons have spaces, products and powers have none, and neither has an index: `f*h[t-1] + (1 - f)*n`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rnncc.language.source import Source
from rnncc.stages.parse.lexer import Statement

COMMENT = "COMMENT"
OPENING, CLOSING = ("LPAR", "LSQB"), ("RPAR", "RSQB")
_TIGHT = frozenset({"STAR", "SLASH", "AT", "POWER", "DOTS"})
# What an operand may end with: a sign behind it is a sum's.
_ENDS_OPERAND = frozenset({"NAME", "NUMBER", *CLOSING})


@dataclass(frozen=True, slots=True)
class Piece:
    """A token as its author spelled it, or a comment inside brackets.

    `space` says whether a space stands before it where no line begins. `binary` tells a sum's sign from an operand's.
    A comment with `own_line` stands alone on its line.
    """

    kind: str
    text: str
    space: bool = False
    binary: bool = False
    own_line: bool = False


# The brackets that a long right side gets, and that a short one loses.
OPEN, CLOSE = Piece("LPAR", "(", space=True), Piece("RPAR", ")")


def pieces_of(source: Source, statement: Statement, comments: Sequence[tuple[int, Piece]]) -> list[Piece]:
    """A statement's pieces. `comments` are those between its tokens, each with its offset in the text."""
    waiting = list(comments)
    found: list[Piece] = []
    for token, piece in zip(statement.tokens, _spaced(source, statement), strict=True):
        while waiting and waiting[0][0] < (token.start_pos or 0):
            found.append(waiting.pop(0)[1])
        found.append(piece)
    return [*found, *(comment for _, comment in waiting)]


def canonical(comment: str) -> str:
    """A comment, from its `#` on: with a space before a word, and none at its end."""
    text = comment.rstrip()
    return f"# {text[1:]}" if text[1:2].isalnum() else text


def width(pieces: Sequence[Piece]) -> int:
    """How many columns the code takes on one line, without comments and the space before it."""
    code = [piece for piece in pieces if piece.kind != COMMENT]
    return sum(len(piece.text) + piece.space for piece in code) - (bool(code) and code[0].space)


def matching(pieces: Sequence[Piece], opening: int) -> int:
    """The index of the bracket that closes the one at `opening`."""
    depth = 0
    for index in range(opening, len(pieces)):
        depth += (pieces[index].kind in OPENING) - (pieces[index].kind in CLOSING)
        if depth == 0:
            return index
    raise AssertionError("a statement that was parsed closes its brackets")


def outside(pieces: Sequence[Piece]) -> Iterator[int]:
    """The indices of the pieces that stand in no bracket; of brackets, neither."""
    depth = 0
    for index, piece in enumerate(pieces):
        depth -= piece.kind in CLOSING
        if depth == 0 and piece.kind not in (*OPENING, *CLOSING):
            yield index
        depth += piece.kind in OPENING


def without_space(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces, the first without a space before it."""
    return [replace(piece, space=piece.space and index > 0) for index, piece in enumerate(pieces)]


def _spaced(source: Source, statement: Statement) -> Iterator[Piece]:
    brackets: list[str] = []
    in_range = False
    before: Piece | None = None
    for token in statement.tokens:
        text = source.text[token.start_pos : token.end_pos]
        kind = token.type
        is_sign = kind in ("PLUS", "MINUS")
        is_binary = is_sign and before is not None and before.kind in _ENDS_OPERAND
        piece = Piece(kind, text, binary=is_binary)
        if kind in CLOSING:
            brackets.pop()
        inside = brackets[-1] if brackets else ""
        is_tight = inside == "LSQB" or in_range
        space = before is not None and _has_space(before, piece, inside, is_tight)
        before = replace(piece, space=space)
        yield before
        if kind in OPENING:
            brackets.append(kind)
        in_range = in_range or kind == "IN"


def _has_space(before: Piece, piece: Piece, inside: str, is_tight: bool) -> bool:
    """Whether a space stands between two pieces. `inside` is the innermost bracket around them; in an index and in the
    range of a loop sums are tight."""
    kinds = (before.kind, piece.kind)
    if "DOTS" in kinds:
        # `2. .. 3`: the dots of a number are not those of a range.
        return before.text.endswith(".") and piece.text.startswith(".")
    if before.kind in OPENING or piece.kind in ("COMMA", "COLON", *CLOSING):
        return False
    if piece.kind in OPENING and before.kind in ("NAME", *CLOSING):
        return False
    if any(kind in _TIGHT for kind in kinds):
        return False
    if "EQUAL" in kinds:
        return not inside
    if before.kind in ("PLUS", "MINUS"):
        return before.binary and not is_tight
    if piece.binary:
        return not is_tight
    return True
