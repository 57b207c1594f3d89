"""A text in the one style of cells. Its meaning stays, and so does every comment.

What the author decides: how names and numbers are spelled, brackets inside an expression, the order of statements, one
empty line between them. Everything else follows from the syntax.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rnncc.editing.layout import Line, lay_out
from rnncc.editing.pieces import COMMENT, Piece, canonical, pieces_of
from rnncc.ir.syntax import CellDecl, ForDecl
from rnncc.ir.syntax import Statement as Decl
from rnncc.language.diagnostics import InternalError
from rnncc.language.read import decode
from rnncc.language.source import Source, line_and_column, line_span
from rnncc.stages.parse import parse
from rnncc.stages.parse.lexer import Lexed, Statement, comment_lines, lex

_INDENT = "    "
_BOM = b"\xef\xbb\xbf"
# A comment behind longer code stands two columns behind it. The others of a paragraph begin in one column.
_LONG = 60


def format_bytes(name: str, data: bytes) -> bytes:
    """A file's bytes in the style. A byte order mark stays, and all lines end as the first one does.

    Raises:
        RnnccError: RNN101 or RNN102 for what is no text of a cell, RNN1xx for every mistake of syntax.
    """
    made = format_source(decode(name, data))
    end = re.search(rb"\r?\n", data)
    if end is not None and end.group() == b"\r\n":
        made = made.replace("\n", "\r\n")
    return (_BOM if data.startswith(_BOM) else b"") + made.encode()


def format_source(source: Source) -> str:
    """A text, whose lines end with `\\n`, in the style. Raises RnnccError: every RNN1xx of the text."""
    cells = parse(source)
    items = _Items(source, cells).all()
    if _are_tied(items):
        return source.text
    made = Source(source.name, "".join(f"{line}\n" for line in _lines(items)))
    if parse(made) != cells or _comments(made) != _comments(source):
        raise InternalError(f"the formatted text of '{source.name}' would mean something else")
    return made.text


def _comments(source: Source) -> Counter[str]:
    """Every comment, and how often it is there."""
    return Counter(map(canonical, _written_comments(source, lex(source)).values()))


def _written_comments(source: Source, lexed: Lexed) -> dict[int, str]:
    """Every comment of a text by its line, from its `#` on."""
    ends: dict[int, int] = {}
    for statement in lexed.statements:
        for token in statement.tokens:
            ends[line_and_column(source, token.start_pos or 0)[0]] = token.end_pos or 0
    found = {}
    for line in sorted({*lexed.comments, *lexed.trailing_comments}):
        span = line_span(source, line)
        found[line] = source.text[source.text.index("#", ends.get(line, span.start)) : span.end]
    return found


def _loops(statements: Iterable[Decl]) -> Iterator[ForDecl]:
    for statement in statements:
        if isinstance(statement, ForDecl):
            yield statement
            yield from _loops(statement.body)


@dataclass(slots=True)
class _Item:
    """What has lines of its own: a comment, or a statement (several, where two headers share a line). `first` and
    `last` are its lines in the text that was given, `column` is where it began there."""

    first: int
    last: int
    column: int
    indent: str = ""
    lines: list[Line] = field(default_factory=list)
    statements: tuple[Statement, ...] = ()
    # A header has the lines of its cell's comment: they are above it, or behind and below it.
    owned: tuple[int, ...] = ()

    @property
    def is_header(self) -> bool:
        return bool(self.statements) and self.statements[0].tokens[0].type == "CELL"

    def stands_apart(self, before: _Item) -> bool:
        """Whether an empty line stands between two items: where there is one, and before each cell."""
        if self.is_header and not set(self.owned) & set(before.owned):
            return True
        return min((self.first, *self.owned)) - max((before.last, *before.owned)) > 1


class _Items:
    """Takes a text apart into items, and lays each out."""

    def __init__(self, source: Source, cells: Iterable[CellDecl]) -> None:
        self.source = source
        self.lexed = lex(source)
        self.comments = _written_comments(source, self.lexed)
        self.loops = [loop.span for cell in cells for loop in _loops(cell.statements)]

    def all(self) -> list[_Item]:
        """The items in order."""
        items: list[_Item] = []
        for statement in self.lexed.statements:
            self._add(items, self._item(statement))
        starts = [item.statements[0].span.start for item in items]
        # What a cell's comment is depends on its place beside the header, so it stays there.
        owned = {line for item in items for line in item.owned}
        inside: dict[int, list[int]] = {}
        behind: dict[int, int] = {}
        alone: list[int] = []
        for line in self.comments:
            at = bisect_right(starts, self._offset(line)) - 1
            if line in owned:
                continue
            if at >= 0 and self._offset(line) < items[at].statements[-1].span.end:
                inside.setdefault(at, []).append(line)
            elif line in self.lexed.trailing_comments:
                behind[at] = line
            else:
                alone.append(line)
        for at, item in enumerate(items):
            item.lines = self._lay_out(item, inside.get(at, ()), behind.get(at))
        return self._with_comments(items, alone)

    def _offset(self, line: int) -> int:
        """Where a line's comment begins."""
        return line_span(self.source, line).end - len(self.comments[line])

    def _line(self, offset: int) -> int:
        return line_and_column(self.source, offset)[0]

    def _item(self, statement: Statement) -> _Item:
        first, last = self._line(statement.span.start), self._line(statement.span.end - 1)
        depth = sum(loop.start < statement.span.start < loop.end for loop in self.loops)
        item = _Item(first, last, _columns(statement.indent), _INDENT * depth, statements=(statement,))
        if item.is_header:
            item.owned = comment_lines(self.lexed, first)
        return item

    def _add(self, items: list[_Item], item: _Item) -> None:
        """Add an item. Headers on one line stay there, with what is between them: both have the same comment."""
        same = next((i for i, each in enumerate(items) if each.is_header and each.last == item.first), None)
        if item.is_header and same is not None:
            between = tuple(statement for each in items[same:] for statement in each.statements)
            item.statements = (*between, *item.statements)
            del items[same:]
        items.append(item)

    def _lay_out(self, item: _Item, inside: Iterable[int], behind: int | None) -> list[Line]:
        comments = [
            (self._offset(line), Piece(COMMENT, canonical(self.comments[line]), own_line=line in self.lexed.comments))
            for line in inside
        ]
        lines: list[Line] = []
        for statement in item.statements:
            made = lay_out(pieces_of(self.source, statement, comments), item.indent)
            if lines:
                made[0].code = f"{lines.pop().code}; {made[0].code}"
            lines += made
        behind = item.first if item.first in item.owned else behind
        if behind is not None:
            lines[-1].comment = canonical(self.comments[behind])
        above = [self._own_line(line) for line in item.owned if line < item.first]
        below = [self._own_line(line) for line in item.owned if line > item.first]
        return [*above, *lines, *below]

    def _own_line(self, line: int, indent: str = "") -> Line:
        return Line(indent, canonical(self.comments[line]))

    def _with_comments(self, items: list[_Item], alone: Iterable[int]) -> list[_Item]:
        """The items in order with the comments that belong to none. A comment behind the last line of a loop's body
        belongs to the body where its author indented it so."""
        columns = {line: _columns(self.source.text[self._start(line) : self._offset(line)]) for line in alone}
        found = sorted([*items, *(_Item(line, line, columns[line]) for line in columns)], key=lambda item: item.first)
        following = ""
        for at in reversed(range(len(found))):
            item = found[at]
            if item.statements:
                following = item.indent
                continue
            earlier = (each for each in reversed(found[:at]) if each.statements and each.column <= item.column)
            level = next((each.indent for each in earlier), "")
            item.lines = [self._own_line(item.first, max(level, following, key=len))]
        return found

    def _start(self, line: int) -> int:
        return line_span(self.source, line).start


def _columns(space: str) -> int:
    return len(space.expandtabs(8))


def _are_tied(items: Sequence[_Item]) -> bool:
    """Whether a comment is that of two cells with a statement between, as in `cell A; state h`, `# both`, `cell B`: on
    lines of their own one cell would lose it."""
    headers = [at for at, item in enumerate(items) if item.is_header]
    return any(b - a > 1 and set(items[a].owned) & set(items[b].owned) for a, b in pairwise(headers))


def _lines(items: Sequence[_Item]) -> list[str]:
    """The lines of all items, with empty lines between them."""
    lines: list[Line] = []
    for at, item in enumerate(items):
        if at and item.stands_apart(items[at - 1]):
            lines.append(Line(""))
        # A comment that two headers have in common is the first one's.
        shared = len(set(item.owned) & set(items[at - 1].owned)) if at and item.is_header else 0
        lines += item.lines[shared:]
    _align(lines)
    return [(line.code + line.comment).rstrip() for line in lines]


def _align(lines: Sequence[Line]) -> None:
    """Put spaces between code and the comments behind it. On lines that follow each other these begin in one column."""
    paragraph: list[Line] = []
    for line in [*lines, Line("")]:
        if line.code.strip():
            paragraph.append(line)
            continue
        commented = [each for each in paragraph if each.comment]
        column = max((len(each.code) for each in commented if len(each.code) <= _LONG), default=0)
        for each in commented:
            each.code = each.code.ljust(column) + "  "
        paragraph = []
