"""A text in which the types of parameters are others."""

from __future__ import annotations

from collections.abc import Mapping

from rnncc.ir.syntax import CellDecl, ParamDecl, WeightsDecl

# What may become another type: it says nothing of the matrix but its mask.
_MATRICES = ("matrix", "sparse", "mask")


def with_types(cell: CellDecl, types: Mapping[str, str]) -> str:
    """The text of a cell, with all around it, where the matrices of these groups and params have these types. What the
    text does not declare (`R`, `W`) is declared in front of the cell's first statement. Raises ValueError."""
    text = cell.source.text
    found = {s.name: s.type for s in cell.statements if isinstance(s, (ParamDecl, WeightsDecl)) and s.name in types}
    changes = []
    for name, written in found.items():
        if written.name not in _MATRICES or written.arguments:
            given = text[written.span.start : written.span.end]
            raise ValueError(f"{name} of {cell.name} is {given}: a matrix of that type takes no mask")
        changes.append((written.span.start, written.span.end, types[name]))
    if undeclared := [f"{name}: {of_type}" for name, of_type in types.items() if name not in found]:
        first = text.rfind("\n", 0, min(statement.span.start for statement in cell.statements)) + 1
        changes.append((first, first, f"weights {', '.join(undeclared)}\n"))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text
