"""Text to syntax: the only stage that knows lark.

Input: a Source. Output: its cells, nothing resolved, each node with its span. Fails with RNN1xx: all that are found,
since each statement is parsed on its own.
"""

from __future__ import annotations

from rnncc.ir.syntax import CellDecl
from rnncc.language.diagnostics import RnnccError
from rnncc.language.greek import as_written
from rnncc.language.read import LARGEST, too_large
from rnncc.language.source import Source
from rnncc.stages.parse.blocks import Reader
from rnncc.stages.parse.lexer import lex

# A text that is no cell at all gives an error a line; nobody reads more than these.
_MOST_ERRORS = 50


def parse(source: Source) -> tuple[CellDecl, ...]:
    """The cells of a text, in order.

    Raises:
        RnnccError: RNN1xx, sorted by place; at most 50 of them.
    """
    if len(source.text.encode("utf-8", "surrogatepass")) > LARGEST:
        raise RnnccError(too_large(source.name))
    reader = Reader(lex(source), _MOST_ERRORS)
    cells = reader.cells()
    if reader.diagnostics:
        found = sorted(reader.diagnostics, key=lambda diagnostic: (diagnostic.span, diagnostic.code))
        raise RnnccError(*map(as_written, found[:_MOST_ERRORS]))
    return cells


__all__ = ["parse"]
