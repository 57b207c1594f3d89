"""What a notebook shows: as HTML, SVG or LaTeX where it can, and as text everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rnncc.language.diagnostics import Diagnostic, render_all

# Colours of a terminal's codes that are legible on white and on black.
_COLOURS = {"31": "#d9372c", "33": "#9e6c00", "34": "#2f72dc", "36": "#007d87"}
_CODE = re.compile(r"\x1b\[([\d;]*)m")
_BLOCK = "white-space: pre; overflow-x: auto; font-family: monospace; line-height: 1.35; margin: 0"


@dataclass(frozen=True, slots=True)
class Picture:
    """One step of a cell, as SVG."""

    cell: str
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<picture of {self.cell}; its attribute svg has the text>"


@dataclass(frozen=True, slots=True)
class Equations:
    """A cell's equations. `tex` is all of `rnncc latex`; a notebook shows the equations alone."""

    tex: str

    def _repr_latex_(self) -> str:
        # Numbers of equations have no meaning in a notebook.
        shown = re.findall(r"\\begin{align}.*?\\end{align}", self.tex, re.DOTALL)
        return "\n".join(each.replace("{align}", "{align*}").replace(r" \notag", "") for each in shown)

    def __repr__(self) -> str:
        return self.tex.rstrip("\n")


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the compiler decided. `facts` are those of `rnncc explain --json`, one entry for each cell."""

    text: str
    facts: tuple[dict[str, Any], ...]

    def _repr_html_(self) -> str:
        rows = []
        for line in self.text.splitlines():
            # A cell's own line is the one without an indent.
            shown = escape(line)
            rows.append(shown if line.startswith(" ") or not line else f"<b>{shown}</b>")
        return f'<pre style="{_BLOCK}">' + "\n".join(rows) + "</pre>"

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Findings:
    """Diagnostics: with colours in a notebook, plain elsewhere."""

    diagnostics: tuple[Diagnostic, ...]

    def _repr_html_(self) -> str:
        shown = "\n\n".join(render_all(self.diagnostics, colour=True))
        return f'<pre style="{_BLOCK}">{coloured(shown)}</pre>'

    def __repr__(self) -> str:
        return "\n\n".join(render_all(self.diagnostics))


def coloured(text: str) -> str:
    """Text with a terminal's colours as HTML."""
    parts: list[str] = []
    is_open, place = False, 0
    for code in _CODE.finditer(text):
        parts.append(escape(text[place : code.start()]))
        place = code.end()
        if is_open:
            parts.append("</span>")
        styles = _styles(code[1].split(";"))
        is_open = bool(styles)
        if is_open:
            parts.append(f'<span style="{"; ".join(styles)}">')
    parts.append(escape(text[place:]))
    return "".join(parts) + ("</span>" if is_open else "")


def _styles(codes: Sequence[str]) -> list[str]:
    found = ["font-weight: bold"] if "1" in codes else []
    return found + [f"color: {_COLOURS[code]}" for code in codes if code in _COLOURS]
