"""The text of a `.rnn` file and positions in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of character offsets in a source text. Where it stands in a `def`, or is given to one,
    `origins` are the other places to look at."""

    start: int
    end: int
    origins: tuple[Origin, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """Another place to look at, and what is there."""

    span: Span
    text: str


NOWHERE = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Source:
    """A named text. `name` is what diagnostics print: a path as the user gave it, or `<text>`."""

    name: str
    text: str


# A hundred thousand diagnostics of one text must not search it a hundred thousand times.
@lru_cache(maxsize=4)
def _line_starts(text: str) -> tuple[int, ...]:
    return (0, *(match.end() for match in re.finditer("\n", text)))


def line_and_column(source: Source, offset: int) -> tuple[int, int]:
    """The 1-based line and column of a character offset."""
    starts = _line_starts(source.text)
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1


def line_span(source: Source, line: int) -> Span:
    """Where the 1-based line stands, without its end."""
    starts = _line_starts(source.text)
    return Span(starts[line - 1], starts[line] - 1 if line < len(starts) else len(source.text))


def file_name(source: Source) -> str:
    """The name of a text's file alone: what is made of a text does not depend on where it lay."""
    return PurePath(source.name).name


def escaped(text: str) -> str:
    """A text of the user's as generated code may print it: in a docstring between three double quotes, which then says
    the text itself, and in a C++ comment, before something else on the same line. What can be read stays as it is."""
    text = "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in text)
    # One quote within a docstring is harmless; at its end or beside another it could close it.
    return re.sub(r'""+|"\Z', lambda quotes: '\\"' * len(quotes.group()), text)


def fenced(language: str, text: str) -> str:
    """A text as a block of code in Markdown, whatever the text says."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
