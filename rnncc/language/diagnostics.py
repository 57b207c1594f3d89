"""Errors and warnings as data, and the one place that renders them.

A user's mistake is a `Diagnostic` (raised in an `RnnccError`, which carries all that were found); a bug of rnncc is an
`InternalError`. The text of each code, for `rnncc explain CODE` and docs/errors.md, stands in
`rnncc.language.codes.CODES`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rnncc.language.source import NOWHERE, Source, Span, line_and_column, line_span


class Severity(Enum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"  # performance


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that a diagnostic points at."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `message` starts lower case and has no full stop; `label` stands under the carets and is shorter."""

    code: str
    message: str
    span: Span = NOWHERE
    label: str = ""
    help: str = ""
    notes: tuple[Label, ...] = ()
    severity: Severity = Severity.ERROR
    source: Source | None = None


class RnnccError(Exception):
    """What the user did wrong: one or more diagnostics. `str()` is their rendered text."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        self.diagnostics = diagnostics
        super().__init__(*diagnostics)

    def __str__(self) -> str:
        shown = render_all(self.diagnostics[:_MOST_SHOWN])
        if len(self.diagnostics) > _MOST_SHOWN:
            shown.append(f"and {len(self.diagnostics) - _MOST_SHOWN} more")
        return "\n\n".join(shown)


class InternalError(Exception):
    """This is a bug in rnncc, never the user's fault."""

    def __init__(self, message: str) -> None:
        super().__init__(f"this is a bug in rnncc, please report it: {message}")


_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}


# A traceback holds the text of this many diagnostics; the command line prints all.
_MOST_SHOWN = 50
# Longer lines (a pasted blob) are shown as a window around the place.
_WIDEST = 160
_WINDOW = 120
_BEFORE = 60
# What is said again of other places names this many lines.
_MOST_LINES = 6


def printable(text: str) -> str:
    """The text in one line: a character that would move the cursor or cannot be encoded is replaced by one that is
    seen."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(c if c == "\t" or unicodedata.category(c) not in hidden else "\ufffd" for c in text)


def _columns(character: str) -> int:
    """How many columns a terminal gives a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _place(source: Source, span: Span, label: str, mark: str, gutter: int, colour: str) -> list[str]:
    """The source line of a span with the span underlined; `gutter` is the width of the line numbers' column."""
    line_number, column = line_and_column(source, span.start)
    line = line_span(source, line_number)
    start = column - 1
    # Marks stay on the first line of a span, and there is always one.
    end = max(start + 1, min(span.end, line.end) - line.start)
    cut = 0
    if line.end - line.start > _WIDEST:
        cut = max(0, min(start - _BEFORE, line.end - line.start - _WINDOW))
        line = Span(line.start + cut, line.start + cut + _WINDOW)
    text, start, end = source.text[line.start : line.end], start - cut, min(end - cut, line.end - line.start + 1)
    text = printable(text)
    # Tabs keep their width, so that columns agree however wide they are.
    indent = "".join("\t" if character == "\t" else " " * _columns(character) for character in text[:start])
    marks = mark * max(1, sum(map(_columns, text[start:end])))
    under = f"{marks} {label}".rstrip()
    if colour:
        under = f"\x1b[{colour}m{under}\x1b[0m"
    return [f"{line_number:>{gutter}} | {text}", f"{'':>{gutter}} | {indent}{under}"]


def render(diagnostic: Diagnostic, *, colour: bool = False) -> str:
    """The diagnostic as text:

    error[RNN203]: unknown function 'sigmod'
     --> lstm.rnn:7:5
      |
    7 | i = sigmod(f)
      |     ^^^^^^ not a known function
      = help: did you mean 'sigmoid'?
    """
    head = f"{diagnostic.severity.value}[{diagnostic.code}]"
    paint = _COLOURS[diagnostic.severity] if colour else ""
    if colour:
        head = f"\x1b[1;{paint}m{head}\x1b[0m"
    lines = [f"{head}: {printable(diagnostic.message)}"]
    gutter = 1
    if diagnostic.source is not None:
        source = diagnostic.source
        spans = [diagnostic.span, *(note.span for note in diagnostic.notes)]
        gutter = max(len(str(line_and_column(source, span.start)[0])) for span in spans)
        line_number, column = line_and_column(source, diagnostic.span.start)
        lines.append(f"{'':>{gutter}}--> {printable(source.name)}:{line_number}:{column}")
        lines.append(f"{'':>{gutter}} |")
        lines += _place(source, diagnostic.span, diagnostic.label, "^", gutter, paint)
        for note in diagnostic.notes:
            lines += _place(source, note.span, note.text, "-", gutter, paint and "34")
    if diagnostic.help:
        lines.append(f"{'':>{gutter}} = help: {printable(diagnostic.help)}")
    return "\n".join(lines)


def render_all(diagnostics: Iterable[Diagnostic], *, colour: bool = False) -> list[str]:
    """Each diagnostic as text, in order. What is said of several places of a source alike is shown at the first one,
    with the lines of the others:

    error[RNN202]: 'U' is not defined
     --> lstm.rnn:5:13
      |
    5 | i = sigmoid(U@h[t-1])
      |             ^ not defined
      = help: declare it: 'weights U: matrix' (one for each equation) or 'param U: matrix' (one for all)
      = the same in lines 6 and 7
    """
    alike: dict[Diagnostic, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        # Notes point at places of their own.
        key = diagnostic if diagnostic.notes else replace(diagnostic, span=NOWHERE)
        alike.setdefault(key, []).append(diagnostic)
    shown = []
    for first, *others in alike.values():
        text = render(first, colour=colour)
        if others and first.source is not None:
            text += "\n" + _again(first.source, first, others)
        shown.append(text)
    return shown


def _again(source: Source, first: Diagnostic, others: Sequence[Diagnostic]) -> str:
    """The last line of a message that stands for several: where the others are."""
    line, *rest = (line_and_column(source, each.span.start)[0] for each in (first, *others))
    lines = sorted({other for other in rest if other != line})
    gutter = " " * len(str(line))
    if not lines:
        return f"{gutter} = the same again in this line"
    named = [str(other) for other in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        named.append(f"{len(lines) - _MOST_LINES} more")
    if len(named) == 1:
        return f"{gutter} = the same in line {named[0]}"
    return f"{gutter} = the same in lines {', '.join(named[:-1])} and {named[-1]}"
