"""Finds norms and softmax that a text writes out. Each becomes one node, and so does a variance.

A variance that waits for its mean would be a second pass over the units. As a node, it can be taken in the pass of the
mean. Only the form of the equations counts, and what they have a name for does not.
"""

from __future__ import annotations

from dataclasses import replace

from rnncc.ir.cell import Node, Pointwise, RowOp
from rnncc.ir.dim import Dim
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.ir.row_operator import RowOperator
from rnncc.stages.partition.flat import FlatCell, live

_OF_SQUARES = {RowOperator.SUM: RowOperator.SQUARES, RowOperator.MEAN: RowOperator.VARIANCE}


def with_norms(flat: FlatCell) -> FlatCell:
    """The cell with a node for each norm, softmax and variance, and without what only their parts read."""
    finder = _Finder(flat)
    finder.nodes = {name: finder.variance(node) for name, node in flat.nodes.items()}
    return live(replace(flat, nodes={name: finder.norm(node) for name, node in finder.nodes.items()}))


class _Finder:
    """Looks through names. A number that is spread over units on the way has the same equations, but not the same
    means: so an operand must be as wide as what is made of it."""

    def __init__(self, flat: FlatCell) -> None:
        self.nodes, self.shapes = flat.nodes, flat.shapes

    def variance(self, node: Node) -> Node:
        """The node; where it is the sum or the mean of (v - mean(v))², as an operator of v."""
        match node:
            case RowOp(_, RowOperator.SUM | RowOperator.MEAN as operator, (squares,)):
                width = self.shapes[squares].width
                deviation = self.deviation(self.root_of_square(Ref(squares)), width)
                if deviation is not None:
                    return replace(node, operator=_OF_SQUARES[operator], operands=deviation)
        return node

    def norm(self, node: Node) -> Node:
        """The node; where it is a layernorm or a softmax, as one operator."""
        if not isinstance(node, Pointwise):
            return node
        width = self.shapes[node.target].width
        match node.expr:
            case Apply("div", (left, right)):
                found = self.softmax(left, right, width) or self.layernorm(left, self.root(right), width)
            case Apply("mul", (left, right)):
                one, other = self.inverse_root(left), self.inverse_root(right)
                found = self.layernorm(left, other, width) or self.layernorm(right, one, width)
            case _:
                found = None
        return node if found is None else replace(found, target=node.target, span=node.span)

    def layernorm(self, centred: Expr, radicand: Expr | None, width: Dim) -> RowOp | None:
        """The layernorm of v, where `centred` is v - mean(v), and `radicand` is its variance and a number."""
        match self.meaning(radicand):
            case Apply("add", (Ref() as variance, Const(epsilon))) | Apply("add", (Const(epsilon), Ref() as variance)):
                row = self.reduction(variance, RowOperator.VARIANCE)
                if row is not None and row.operands == self.deviation(centred, width):
                    return RowOp("", RowOperator.LAYERNORM, row.operands[:1], epsilon=epsilon)
        return None

    def softmax(self, powers: Expr, total: Expr, width: Dim) -> RowOp | None:
        """The softmax of v, where `powers` are exp(v - detach(max(v))), and `total` is their sum."""
        row = self.reduction(total, RowOperator.SUM)
        if row is None or self.meaning(powers) != self.meaning(Ref(row.operands[0])):
            return None
        match self.meaning(powers):
            case Apply("exp", (moved,)):
                match self.meaning(moved):
                    case Apply("sub", (value, Apply("detach", (largest,)))):
                        of = self.operand(value, self.reduction(largest, RowOperator.MAX), width)
                        return RowOp("", RowOperator.SOFTMAX, (of,)) if of else None
        return None

    def deviation(self, expr: Expr | None, width: Dim) -> tuple[str, str] | None:
        """The names of v and mean(v), where the expression is v - mean(v)."""
        match self.meaning(expr):
            case Apply("sub", (value, mean)):
                row = self.reduction(mean, RowOperator.MEAN)
                of = self.operand(value, row, width)
                return (of, row.target) if row is not None and of else None
        return None

    def operand(self, value: Expr, row: RowOp | None, width: Dim) -> str:
        """What a reduction is of, where that is this value, and as wide as it is to be; else nothing."""
        if row is None or self.shapes[row.operands[0]].width != width:
            return ""
        return row.operands[0] if self.meaning(value) == self.meaning(Ref(row.operands[0])) else ""

    def reduction(self, expr: Expr, operator: RowOperator) -> RowOp | None:
        """The operator that an expression stands for."""
        match self.meaning(expr):
            case Ref(name) if isinstance(node := self.nodes.get(name), RowOp) and node.operator is operator:
                return node
        return None

    def root(self, expr: Expr) -> Expr | None:
        """What the expression is the square root of."""
        match self.meaning(expr):
            case Apply("sqrt", (square,)) | Apply("pow", (square, Const(0.5))):
                return square
        return None

    def inverse_root(self, expr: Expr) -> Expr | None:
        """What the expression is the inverse square root of."""
        match self.meaning(expr):
            case Apply("rsqrt", (square,)) | Apply("pow", (square, Const(-0.5))):
                return square
            case Apply("div", (Const(1.0), root)):
                return self.root(root)
        return None

    def root_of_square(self, expr: Expr) -> Expr | None:
        """What the expression is the square of."""
        match self.meaning(expr):
            case Apply("pow", (base, Const(2.0))):
                return base
            case Apply("mul", (left, right)) if self.meaning(left) == self.meaning(right):
                return left
        return None

    def meaning(self, expr: Expr | None) -> Expr | None:
        """The expression that a name stands for, if it is a name and stands for one."""
        while isinstance(expr, Ref) and isinstance(node := self.nodes.get(expr.name), Pointwise):
            expr = node.expr
        return expr
