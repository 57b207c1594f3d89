"""Writes what documents take from elsewhere: tables from benchmarks/results, the shipped cells and the operator table,
docs/errors.md from the table of codes, and docs/editors from the words of the language.

    python benchmarks/report.py

A document says `<!-- table: NAME -->` where a table begins, and `<!-- end -->` where it ends. `pytest tests/docs
tests/codes` fails where one is not up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

import report_build
import report_cells
import report_cpu
import report_dense
import report_gpu_cells
import report_language
import report_layers
import report_readme
import report_scan
import report_sparse
from report_text import ROOT, sources

from rnncc.editing.grammars import files
from rnncc.language.codes.page import errors_page
from rnncc.machine.paths import shipped_cells

TABLES = {
    "files": sources,
    **report_readme.TABLES,
    **report_cells.TABLES,
    **report_gpu_cells.TABLES,
    **report_language.TABLES,
    **report_dense.TABLES,
    **report_scan.TABLES,
    **report_sparse.TABLES,
    **report_layers.TABLES,
    **report_cpu.TABLES,
    **report_build.TABLES,
}
_COUNT = re.compile(r"\d+(?= \[shipped cells\])")
_MARKED = re.compile(r"(<!-- table: (?P<name>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """The documents that have such tables."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in found if names(path.read_text(encoding="utf-8"))]


def names(text: str) -> list[str]:
    """The tables of a document, in order."""
    return [found["name"] for found in _MARKED.finditer(text)]


def filled(text: str) -> str:
    """A document with its tables, and the number of shipped cells, as they are now. Raises KeyError for a name that no
    table has."""
    counted = _COUNT.sub(str(len(shipped_cells())), text)
    return _MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found['name']]()}\n\n{found[3]}", counted)


def main() -> None:
    """Write all tables, docs/errors.md, and what editors read."""
    for path in documents():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs" / "errors.md").write_text(errors_page(), encoding="utf-8")
    for name, text in files().items():
        path = ROOT / "docs" / "editors" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
