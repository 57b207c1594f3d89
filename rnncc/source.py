"""The text of a `.rnn` file and positions in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of character offsets in a source text."""

    start: int
    end: int


NOWHERE = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Source:
    """A named text. `name` is what diagnostics print: a path as the user gave it, or `<text>`."""

    name: str
    text: str


def line_and_column(source: Source, offset: int) -> tuple[int, int]:
    """The 1-based line and column of a character offset."""
    before = source.text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
