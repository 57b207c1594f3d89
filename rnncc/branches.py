"""Where a cell's values or derivatives jump: the values that its relus, comparisons, spikes and the like look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from rnncc.functions import OPERATORS
from rnncc.ir.cell import Cell, Pointwise, value_table
from rnncc.ir.dim import Dim
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply


@dataclass(frozen=True, slots=True)
class Branch:
    """At `points` of the expression `value`, which has `width` units, something jumps."""

    width: Dim
    value: Expr
    points: tuple[float, ...]


def branches(cell: Cell) -> tuple[Branch, ...]:
    """Those of a step, in order; what is made of parameters alone is left out, and the jumps of `mod`."""
    widths = value_table(cell)
    nodes = [node for segment in cell.segments for node in (*segment.batched, *segment.nodes)] + list(cell.epilogue)
    return tuple(
        Branch(widths[node.target].width, value, points)
        for node in nodes
        if isinstance(node, Pointwise)
        for value, points in _within(node.expr)
    )


def _within(expr: Expr) -> Iterator[tuple[Expr, tuple[float, ...]]]:
    match expr:
        case Const() | Ref():
            return
        case Apply(operator, arguments):
            for argument in arguments:
                yield from _within(argument)
            row = OPERATORS[operator]
            if row.kinks:
                yield arguments[0], row.kinks
            if row.ties:
                yield from ((apply("sub", arguments[0], other), (0.0,)) for other in arguments[1:])
        case _:
            assert_never(expr)
