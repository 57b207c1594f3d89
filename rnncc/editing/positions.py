"""Places in a text as the language server protocol counts them: lines and, within a line, units of an encoding."""

from __future__ import annotations

import re
from bisect import bisect_right

from rnncc.language.source import Span

# How many units of each encoding a character beyond ASCII takes.
_CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


class Positions:
    """The lines of a text; they end with `\\n`, `\\r\\n` or `\\r`, and with nothing else."""

    def __init__(self, text: str, encoding: str) -> None:
        self.text = text
        self.codec, self.unit = _CODECS[encoding]
        self.starts = [0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", text))]

    def position(self, offset: int) -> tuple[int, int]:
        """The line and the unit of a character offset, both from 0."""
        line = bisect_right(self.starts, offset) - 1
        return line, self._units(self.text[self.starts[line] : offset])

    def offset(self, line: int, unit: int) -> int:
        """The character offset of a position. A line ends where the next one begins, and the text where it ends."""
        if line >= len(self.starts):
            return len(self.text)
        start = self.starts[line]
        end = self.starts[line + 1] if line + 1 < len(self.starts) else len(self.text)
        content = self.text[start:end].rstrip("\r\n")
        if content.isascii():
            return start + min(unit, len(content))
        for at, character in enumerate(content):
            unit -= self._units(character)
            if unit < 0:
                return start + at
        return start + len(content)

    def span(self, span: Span) -> tuple[tuple[int, int], tuple[int, int]]:
        """The positions of a span's ends."""
        return self.position(span.start), self.position(span.end)

    def lines(self) -> list[str]:
        """The lines with their ends."""
        return [self.text[start:end] for start, end in zip(self.starts, [*self.starts[1:], None], strict=True)]

    def _units(self, text: str) -> int:
        return len(text) if text.isascii() else len(text.encode(self.codec, "surrogatepass")) // self.unit
