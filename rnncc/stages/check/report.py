"""Collects what a check finds, so that all of it is reported in one go."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rnncc.language.diagnostics import Diagnostic, Label, RnnccError, Severity
from rnncc.language.source import Source, Span, line_and_column


class Report:
    """The findings of one cell. The passes add to it; `check` raises what has the severity of an error."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._errors: dict[Diagnostic, None] = {}
        self._warnings: dict[Diagnostic, None] = {}

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        label: str = "",
        help: str = "",
        notes: tuple[Label, ...] = (),
    ) -> None:
        """An error of the user's; the same one at the same place is kept once."""
        found = Diagnostic(code, message, span, label or _usual(code), help, notes, Severity.ERROR, self.source)
        self._errors[found] = None

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
        self._warnings[found] = None

    @property
    def failed(self) -> bool:
        """Whether an error was found."""
        return bool(self._errors)

    def marks(self, span: Span) -> bool:
        """Whether an error was found at this very place."""
        return any(found.span == span for found in self._errors)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings, then the notes, each in the order of the text."""
        order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
        return tuple(sorted(self._warnings, key=lambda found: (order[found.severity], found.span, found.code)))

    def stop(self) -> None:
        """Raise the errors found so far, in the order of the text, if there are any."""
        if self._errors:
            raise RnnccError(*sorted(self._errors, key=lambda found: (found.span, found.code)))

    def line(self, span: Span) -> int:
        """The 1-based line of a span."""
        return line_and_column(self.source, span.start)[0]


def _usual(code: str) -> str:
    """What the table of codes puts under the carets. Read where there is a finding, and not before."""
    from rnncc.language.codes import CODES

    return CODES[code].label


def closest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'sigmoid'?`, or nothing where no known name is near."""
    # Nobody misspells a name of a hundred letters, and difflib's time grows with the square of the length.
    names = sorted(set(known))
    # `sigm` is rather the beginning of `sigmoid` than a misspelt `sign`.
    begun = [other for other in names if len(name) >= 3 and other.startswith(name)]
    found = begun or (difflib.get_close_matches(name, names, n=1) if len(name) <= 64 else [])
    return f"did you mean '{found[0]}'?" if found else ""
