"""One row of the table of diagnostic codes."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.language.diagnostics import Severity

ELMAN = "h[t] = tanh(W@x + R@h[t-1] + b)"


def cell_text(*lines: str) -> str:
    """The text of a cell with these lines."""
    return "\n".join(("cell Example", *lines, ""))


@dataclass(frozen=True, slots=True)
class Code:
    """What `rnncc explain CODE` and docs/errors.md say of one code.

    title        lower case, no full stop
    explanation  what is wrong, why it matters, how to mend it: paragraphs of Markdown
    example      a `.rnn` text that triggers the code; None where no text alone can (a file, a machine or a size does)
    mended       the same text without the mistake; None where the explanation says enough
    pedantic     reported only on request
    shaping      constants given with the example, as name and value
    label        what stands under the carets where the finding itself says nothing shorter
    """

    code: str
    title: str
    explanation: str
    example: str | None = None
    mended: str | None = None
    severity: Severity = Severity.ERROR
    pedantic: bool = False
    shaping: tuple[tuple[str, int | float | str], ...] = ()
    label: str = ""
