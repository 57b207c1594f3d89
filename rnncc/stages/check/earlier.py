"""What earlier releases made of a cell: a value of width 1, whose width nothing declares, was spread over H elements.

Most cells mean the same either way. This warns of the others, and goes with the next release.
"""

from __future__ import annotations

from rnncc.ir.dim import HEADS, show
from rnncc.ir.term import Equation, names
from rnncc.language.report import Report
from rnncc.language.source import Span
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.resolve import Resolved
from rnncc.stages.check.shapes import Shapes, infer


def warn_of_widths(
    shapes: Shapes, ordered: tuple[Equation, ...], resolved: Resolved, symbols: Symbols, report: Report
) -> None:
    """Add a warning for each value that was wide where its width matters."""
    if not shapes.narrow:
        return
    unread = Report(report.source)
    before = infer(ordered, resolved, symbols, unread, spread=True)
    if unread.has_errors:
        return
    warned: set[str] = set()
    for (term, width), (_, earlier) in zip(shapes.reads, before.reads, strict=True):
        for name in dict.fromkeys(names(term)):
            if name in shapes.narrow and width != earlier and name not in warned:
                warned.add(name)
                _warn(shapes, name, term.span, report)
    output = symbols.output
    if output is None or output.name not in shapes.narrow or output.name in warned:
        return
    if shapes.values[output.name].width != before.values[output.name].width:
        _warn(shapes, output.name, output.span, report)


def _warn(shapes: Shapes, name: str, place: Span, report: Report) -> None:
    equation, width = shapes.narrow[name], shapes.values[name].width
    base = equation.written.partition("[")[0]
    number = "one number per head" if width == HEADS else "one number"
    message = f"'{equation.written}' is {number}, and was spread over H elements by earlier releases"
    help = f"'local {base}: {show(width)}' says that this is meant; 'local {base}: H' spreads it"
    report.warn("RNN265", message, place, number, help)
