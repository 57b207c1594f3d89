"""docs/errors.md from the table of codes. `python benchmarks/report.py` writes it."""

from __future__ import annotations

from rnncc.ir.request import Request
from rnncc.language.codes import CODES, Code
from rnncc.language.diagnostics import Diagnostic, RnnccError, render
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells

_HEAD = """\
# Diagnostics

What does a message of rnncc mean, and what do I write instead? Every finding has a code. `rnncc explain CODE` prints
its section of this page, which is generated from the table in `rnncc/language/codes`. The hundreds digit is the origin:
1 is the text, 2 the cell (from 251 on warnings, from 271 on notes on performance), 4 the kernels, 6 the build, and 7
loading and sizes.
"""


def errors_page() -> str:
    """The page: a table of contents and a section for each code, with what its example prints."""
    contents = [f"| [{row.code}](#{row.code.lower()}) | {row.severity.value} | {row.title} |" for row in CODES.values()]
    table = "\n".join(("| Code | | What |", "|---|---|---|", *contents))
    return "\n".join((_HEAD, table, "", *(_section(row) for row in CODES.values())))


def _section(row: Code) -> str:
    parts = [f"## {row.code}", f"**{row.title[0].upper()}{row.title[1:]}.** {row.explanation}"]
    if row.example is not None:
        parts += [_block(row.example), "prints", _block("\n\n".join(map(render, _found(row, row.example))))]
    if row.mended is not None:
        parts += ["Instead:", _block(row.mended)]
    return "\n\n".join(parts) + "\n"


def _found(row: Code, text: str) -> list[Diagnostic]:
    try:
        request = Request(Source("example.rnn", text), "example", dict(row.shaping))
        found = [one for cell in compile_cells(request, "partition").cells for one in cell.warnings]
    except RnnccError as error:
        found = list(error.diagnostics)
    return [one for one in found if one.code == row.code]


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
