"""Errors and warnings as data, and the one place that renders them.

A user's mistake is a `Diagnostic` (raised in an `RnnccError`, which carries all that were found); a bug of rnncc is an
`InternalError`. The text of each code, for `rnncc explain CODE` and docs/errors.md, stands in `rnncc.codes.CODES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rnncc.source import NOWHERE, Source, Span, line_and_column


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
    """What the user did wrong: one or more diagnostics. `str()` is the rendered text."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        self.diagnostics = diagnostics
        super().__init__("\n".join(render(diagnostic) for diagnostic in diagnostics))


class InternalError(Exception):
    """A bug in rnncc, never the user's fault."""

    def __init__(self, message: str) -> None:
        super().__init__(f"this is a bug in rnncc, please report it: {message}")


_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}


def _line(source: Source, offset: int) -> str:
    start = source.text.rfind("\n", 0, offset) + 1
    end = source.text.find("\n", offset)
    return source.text[start : end if end >= 0 else len(source.text)]


def _place(source: Source, span: Span, label: str, mark: str) -> list[str]:
    line_number, column = line_and_column(source, span.start)
    text = _line(source, span.start)
    # Carets stay on the first line of a span; tabs keep their width so that columns agree.
    length = max(1, min(span.end - span.start, len(text) - (column - 1)))
    # A line of a megabyte (a pasted blob) is shown as the window around the column.
    if len(text) > 160:
        cut = max(0, column - 60)
        text, column = text[cut : cut + 120], column - cut
        length = max(1, min(length, len(text) - (column - 1)))
    gutter = " " * len(str(line_number))
    indent = "".join("\t" if character == "\t" else " " for character in text[: column - 1])
    return [
        f"{gutter} |",
        f"{line_number} | {text}",
        f"{gutter} | {indent}{mark * length}{' ' + label if label else ''}",
    ]


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
    if colour:
        head = f"\x1b[1;{_COLOURS[diagnostic.severity]}m{head}\x1b[0m"
    lines = [f"{head}: {diagnostic.message}"]
    if diagnostic.source is not None:
        line_number, column = line_and_column(diagnostic.source, diagnostic.span.start)
        lines.append(f" --> {diagnostic.source.name}:{line_number}:{column}")
        lines += _place(diagnostic.source, diagnostic.span, diagnostic.label, "^")
        for note in diagnostic.notes:
            lines += _place(diagnostic.source, note.span, note.text, "-")
    if diagnostic.help:
        lines.append(f"  = help: {diagnostic.help}")
    return "\n".join(lines)
