"""A cell's equations as a paper prints them (`rnncc latex FILE`), for amsmath and amssymb."""

from __future__ import annotations

from collections.abc import Iterable

from rnncc.ir.compilation import CompiledCell
from rnncc.show.latex.document import document, escaped
from rnncc.show.latex.equations import align
from rnncc.show.latex.scope import Names
from rnncc.show.latex.where import Where, joined


def latex(cells: Iterable[CompiledCell], *, standalone: bool = False) -> str:
    """The cells in TeX. Each has its equations in an `align` environment, and a paragraph that says what the symbols
    are. What the text says of the cell, such as where it was published, stands above as a comment of TeX. With
    `standalone` there is a document around the cells, and it stands there as a paragraph."""
    parts = []
    for cell in cells:
        written = cell.declaration
        equations = _equations(Names(written, cell.typed))
        if standalone:
            comment = escaped(" ".join(written.comment.split()))
            head = f"\\section*{{{escaped(written.name)}}}"
            parts.append("\n".join([head, *([comment] if comment else []), equations]))
        else:
            lines = [f"% {line}".rstrip() for line in (written.name, *written.comment.splitlines())]
            parts.append("\n".join([*lines, equations]))
    return document(parts) if standalone else "\n\n".join(parts) + "\n"


def _equations(names: Names) -> str:
    used: set[str] = set()
    equations = align(names, used)
    return f"{equations}\n{joined(Where(names, used).sentences())}"
