"""Helpers of the tests of `check`: cells from text, and what is found in them."""

from __future__ import annotations

from rnncc.ir.cell import Cell, Node
from rnncc.ir.verify import verify
from rnncc.language.diagnostics import Diagnostic, RnnccError, Severity
from rnncc.language.source import Source
from rnncc.stages.check import check
from rnncc.stages.parse import parse


def diagnose(text: str, **shaping: int | float | str) -> tuple[Cell | None, tuple[Diagnostic, ...]]:
    """The one cell of a text (None where it has errors) and everything that `check` says of it."""
    (declaration,) = parse(Source("cell.rnn", text))
    try:
        cell, warnings = check(declaration, shaping)
    except RnnccError as error:
        assert all(found.severity is Severity.ERROR for found in error.diagnostics)
        return None, error.diagnostics
    assert all(found.severity is not Severity.ERROR for found in warnings)
    return verify(cell), warnings


def body(*lines: str) -> str:
    """A cell called Cell with these statements."""
    return "\n".join(("cell Cell", *lines, ""))


def checked(*lines: str, **shaping: int | float | str) -> Cell:
    """The cell of these statements, which must be right."""
    cell, found = diagnose(body(*lines), **shaping)
    assert cell is not None, [diagnostic.message for diagnostic in found]
    return cell


def codes(*lines: str, **shaping: int | float | str) -> list[str]:
    """The codes of everything found in these statements, without the pedantic missing bias."""
    _, found = diagnose(body(*lines), **shaping)
    return [diagnostic.code for diagnostic in found if diagnostic.code != "RNN258"]


def node(cell: Cell, target: str) -> Node:
    """The node that defines a value."""
    parts = [cell.prologue, cell.epilogue]
    for segment in cell.segments:
        parts += [segment.batched, segment.nodes]
    (found,) = [each for part in parts for each in part if each.target == target]
    return found


def targets(nodes: tuple[Node, ...]) -> list[str]:
    """What nodes define, in order."""
    return [each.target for each in nodes]
