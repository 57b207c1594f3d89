"""Where a cell's values or derivatives jump: the values that its relus, comparisons, spikes, maxima and the like look
at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.cell import Cell, Contraction, Delay, Node, Pointwise, RowOp, operands
from rnncc.ir.expr import Apply, Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.language.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Branch:
    """At `points` of the expression `value`, which is part of the node of `target`, something jumps."""

    target: str
    value: Expr
    points: tuple[float, ...]


def branches(cell: Cell) -> tuple[Branch, ...]:
    """The branches of a step, in order."""
    return _of([node for s in cell.segments for node in (*s.batched, *s.nodes)] + list(cell.epilogue))


def fixed_branches(cell: Cell) -> tuple[Branch, ...]:
    """The branches of what is made of parameters alone, in order."""
    return _of(cell.prologue)


def _of(nodes: Iterable[Node]) -> tuple[Branch, ...]:
    nodes = tuple(nodes)
    followed = {name for node in nodes for name in _followed(node)}
    detached = {name for node in nodes for name in operands(node)} - followed
    return tuple(
        Branch(target, value, points)
        for node in nodes
        for target, value, points in _of_node(node, has_gradient=node.target not in detached)
    )


def _of_node(node: Node, has_gradient: bool) -> Iterator[tuple[str, Expr, tuple[float, ...]]]:
    match node:
        case Pointwise(target, expr):
            yield from ((target, value, points) for value, points in _within(expr))
        case RowOp(target, RowOperator.MAX, (operand,)) if has_gradient:
            # The gradient jumps where the largest element changes; that element itself is exactly the maximum.
            yield operand, apply("sub", Ref(operand), Ref(target)), (0.0,)
        case RowOp() | Contraction() | Delay():
            return
        case _:
            assert_never(node)


def _followed(node: Node) -> Iterator[str]:
    """The values that a node reads and passes a gradient to."""
    yield from _followed_in(node.expr) if isinstance(node, Pointwise) else operands(node)


def _followed_in(expr: Expr) -> Iterator[str]:
    match expr:
        case Const() | Apply("detach", _):
            return
        case Ref(name):
            yield name
        case Apply(_, arguments):
            for argument in arguments:
                yield from _followed_in(argument)
        case _:
            assert_never(expr)


def _within(expr: Expr) -> Iterator[tuple[Expr, tuple[float, ...]]]:
    match expr:
        case Const() | Ref():
            return
        case Apply(operator, arguments):
            for argument in arguments:
                yield from _within(argument)
            row = OPERATORS[operator]
            if row.period:
                for kink in row.kinks:
                    yield _from_whole(apply("div", apply("sub", arguments[0], Const(kink)), Const(row.period))), (0.0,)
            elif row.kinks:
                yield arguments[0], row.kinks
            if row.ties:
                yield from ((apply("sub", arguments[0], other), (0.0,)) for other in arguments[1:])
            if operator == "mod":
                # It jumps where the quotient is whole.
                yield _from_whole(apply("div", *arguments)), (0.0,)
        case _:
            assert_never(expr)


def _from_whole(expr: Expr) -> Expr:
    """The distance from the nearest whole number."""
    return apply("sub", apply("mod", apply("add", expr, Const(0.5)), Const(1.0)), Const(0.5))
