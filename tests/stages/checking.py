"""Helpers of the tests of `check` and `partition`: cells from text, and what is found in them."""

from __future__ import annotations

from rnncc.ir.cell import Cell, Node
from rnncc.ir.request import Request
from rnncc.ir.typed import Typed
from rnncc.ir.verify import verify
from rnncc.language.diagnostics import Diagnostic, RnnccError, Severity
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from tests.compiling import front

ELMAN = "h[t] = tanh(W@x + R@h[t-1] + b)"


def diagnose(text: str, **constants: int | float | str) -> tuple[Cell | None, tuple[Diagnostic, ...]]:
    """The one cell of a text (None where it has errors) and everything that both stages say of it."""
    try:
        ((cell, warnings),) = front(Source("cell.rnn", text), constants)
    except RnnccError as error:
        assert all(found.severity is Severity.ERROR for found in error.diagnostics)
        return None, error.diagnostics
    assert all(found.severity is not Severity.ERROR for found in warnings)
    return verify(cell), warnings


def body(*lines: str) -> str:
    """A cell called Cell with these statements."""
    return "\n".join(("cell Cell", *lines, ""))


def typed(*lines: str, **constants: int | float | str) -> Typed:
    """What `check` makes of these statements, which must be right."""
    (made,) = compile_cells(Request(Source("cell.rnn", body(*lines)), "cell", constants), "check").cells
    return made.typed


def partitioned(*lines: str, **constants: int | float | str) -> Cell:
    """The cell of these statements, which must be right."""
    cell, found = diagnose(body(*lines), **constants)
    assert cell is not None, [diagnostic.message for diagnostic in found]
    return cell


def codes(*lines: str, **constants: int | float | str) -> list[str]:
    """The codes of everything found in these statements, without the pedantic missing bias."""
    _, found = diagnose(body(*lines), **constants)
    return [diagnostic.code for diagnostic in found if diagnostic.code != "RNN258"]


def errors(*lines: str, **constants: int | float | str) -> tuple[Diagnostic, ...]:
    """The errors of these statements, of which there must be some."""
    cell, found = diagnose(body(*lines), **constants)
    assert cell is None
    return found


def the_error(*lines: str) -> Diagnostic:
    """The only error of these statements."""
    (found,) = errors(*lines)
    return found


def marked(found: Diagnostic) -> str:
    """The text that an error points at."""
    assert found.source is not None
    return found.source.text[found.span.start : found.span.end]


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
