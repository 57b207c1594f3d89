"""What is legal and suspicious: warnings and performance notes."""

from __future__ import annotations

from rnncc.ir.cell import Segment
from rnncc.ir.syntax import CellDecl
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.place import Placed, Program
from rnncc.stages.check.report import Report
from rnncc.stages.check.resolve import Resolved


def lint(
    decl: CellDecl,
    resolved: Resolved,
    symbols: Symbols,
    program: Program,
    segments: tuple[Segment, ...],
    placed: Placed,
    report: Report,
) -> None:
    """Add warnings to the report."""
