"""Collects what a stage finds in a cell, and in all cells of a text, so that all of it is reported in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from rnncc.language.diagnostics import Diagnostic, Label, RnnccError, Severity
from rnncc.language.greek import as_written
from rnncc.language.source import Source, Span, line_and_column

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Reported:
    """Evidence of an error. A Report alone makes it, and whatever marks a place as wrong holds it: so each mark has a
    diagnostic that explains it."""

    diagnostic: Diagnostic


class Report:
    """What one stage finds in one cell. Its passes add to it; the stage raises what has the severity of an error."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._errors: dict[Diagnostic, Diagnostic] = {}
        self._warnings: dict[Diagnostic, Diagnostic] = {}

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        label: str = "",
        help: str = "",
        notes: tuple[Label, ...] = (),
    ) -> Reported:
        """An error of the user's; the same one at the same place is kept once."""
        found = Diagnostic(code, message, span, label or _usual(code), help, notes, Severity.ERROR, self.source)
        return Reported(_keep(found, self._errors))

    def once(self, code: str, message: str, span: Span, help: str = "") -> Reported:
        """An error of the user's, which is kept at its first place alone."""
        for found in self._errors:
            if (found.code, found.message) == (code, message):
                return Reported(found)
        return self.error(code, message, span, help=help)

    def warn(
        self,
        code: str,
        message: str,
        span: Span,
        label: str = "",
        help: str = "",
        severity: Severity = Severity.WARNING,
    ) -> None:
        """A warning, or a performance note."""
        found = Diagnostic(code, message, span, label or _usual(code), help, (), severity, self.source)
        _keep(found, self._warnings)

    def found_at(self, span: Span) -> Reported | None:
        """An error that was found at this very place, if there is one."""
        return next((Reported(found) for found in self._errors.values() if found.span == span), None)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings, then the notes, each in the order of the text."""
        return in_order(self._warnings.values())

    def stop(self) -> None:
        """Raise the errors found so far, in the order of the text, if there are any."""
        if self._errors:
            raise RnnccError(*in_order(self._errors.values()))

    def stop_at(self, *codes: str) -> None:
        """Raise the errors of these codes, if there are any, and no other ones."""
        found = [each for each in self._errors.values() if each.code in codes]
        if found:
            raise RnnccError(*in_order(found))

    def line(self, span: Span) -> int:
        """The 1-based line of a span."""
        return line_and_column(self.source, span.start)[0]

    def text(self, span: Span) -> str:
        """The user's text of a span, brought onto one line."""
        return " ".join(self.source.text[span.start : span.end].split()) or "?"


class Attempt(NamedTuple, Generic[Made]):
    """What a stage made of the cells without an error, its warnings of each of these, and its errors in the others."""

    made: tuple[Made, ...]
    warnings: tuple[tuple[Diagnostic, ...], ...]
    errors: tuple[Diagnostic, ...]


def attempt(stage: Callable[..., tuple[Made, tuple[Diagnostic, ...]]], *given: Iterable[Any]) -> Attempt[Made]:
    """Run a stage on every cell of a text; `given` are its arguments, each for all cells."""
    done: list[tuple[Made, tuple[Diagnostic, ...]]] = []
    errors: list[Diagnostic] = []
    for arguments in zip(*given, strict=True):
        try:
            done.append(stage(*arguments))
        except RnnccError as error:
            errors += error.diagnostics
    return Attempt(tuple(made for made, _ in done), tuple(warnings for _, warnings in done), tuple(errors))


def in_order(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Errors, then warnings, then notes, each in the order of the text."""
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    return tuple(sorted(findings, key=lambda found: (order[found.severity], found.span, found.code)))


def _keep(found: Diagnostic, kept: dict[Diagnostic, Diagnostic]) -> Diagnostic:
    """Enter a finding, with the other places that it has to do with. A mistake in a `def` is found at every call, and
    said of the first one."""
    spans = (found.span, *(note.span for note in found.notes))
    others = dict.fromkeys(Label(origin.span, origin.text) for span in spans for origin in span.origins)
    return kept.setdefault(replace(found, notes=()), as_written(replace(found, notes=(*found.notes, *others))))


def _usual(code: str) -> str:
    """What the table of codes puts under the carets. Read where there is a finding, and not before."""
    from rnncc.language.codes import CODES

    return CODES[code].label
