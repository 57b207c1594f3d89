"""Functions across the units of a vector as row operators."""

from __future__ import annotations

from dataclasses import replace

from rnncc.analysis.norms import LAYERNORM_EPSILON
from rnncc.analysis.widths import canonical, reduced
from rnncc.ir import dim as dims
from rnncc.ir.cell import Node, Pointwise, RowOp, RowOperator
from rnncc.ir.dim import ONE, Dim
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.term import Row
from rnncc.ir.typed import Shape, Typed
from rnncc.language.diagnostics import InternalError
from rnncc.stages.partition.nodes import Nodes


class RowFunctions:
    """Makes the nodes of functions. Equal calls share their result."""

    def __init__(self, typed: Typed, nodes: Nodes) -> None:
        self.nodes = nodes
        self.solved = {size.name: size.solved for size in typed.sizes if size.solved is not None}
        self.divisible = typed.divisible
        # By function, operands and `times`.
        self.known: dict[tuple[str, tuple[str, ...], int], str] = {}

    def value(self, term: Row, operands: tuple[str, ...]) -> str:
        """The name of the function's value; `operands` are the names of its arguments'."""
        key = (term.function, operands, term.times)
        if key not in self.known:
            node, shape = self.last(term, operands)
            self.known[key] = self.nodes.temporary(replace(node, target=self.nodes.name()), shape)
        return self.known[key]

    def node(self, term: Row, operands: tuple[str, ...], target: str) -> Node:
        """The node that defines `target` as the function's value."""
        key = (term.function, operands, term.times)
        if key not in self.known:
            node, shape = self.last(term, operands)
            if shape.width == self.nodes.shapes[target].width:
                self.known[key] = target
                return replace(node, target=target)
            self.known[key] = self.nodes.temporary(replace(node, target=self.nodes.name()), shape)
        return Pointwise(target, Ref(self.known[key]), term.span)

    def last(self, term: Row, operands: tuple[str, ...]) -> tuple[Node, Shape]:
        """The node that yields the value, without a name, after the nodes it needs."""
        first = operands[0]
        width = self.width(first)
        narrow = reduced(width, self.nodes.input_dims)
        match term.function:
            case "sum" | "mean" | "max" | "min" | "cumsum" if width == ONE:
                return Pointwise("", Ref(first), term.span), Shape(ONE)  # one number for all heads has no row of a head
            case "sum":
                return RowOp("", RowOperator.SUM, operands, span=term.span), Shape(narrow)
            case "mean":
                return RowOp("", RowOperator.MEAN, operands, span=term.span), Shape(narrow)
            case "max":
                return RowOp("", RowOperator.MAX, operands, span=term.span), Shape(narrow)
            case "min":
                opposite = self.nodes.named(apply("neg", Ref(first)))
                largest = RowOp(self.nodes.name(), RowOperator.MAX, (opposite,), span=self.nodes.span)
                least = apply("neg", Ref(self.nodes.temporary(largest, Shape(narrow))))
                return Pointwise("", least, term.span), Shape(narrow)
            case "cumsum":
                return RowOp("", RowOperator.CUMSUM, operands, span=term.span), Shape(width)
            case "repeat":
                wide = self.canonical(dims.scale(width, term.times))
                return RowOp("", RowOperator.REPEAT, operands, times=term.times, span=term.span), Shape(wide)
            case "concat":
                total = dims.constant(0)
                for operand in operands:
                    total = dims.add(total, self.width(operand))
                return RowOp("", RowOperator.CONCAT, operands, span=term.span), Shape(self.canonical(total))
            case "layernorm" | "rmsnorm" | "softmax" if width == ONE:
                return Pointwise("", _norm_of_one(term.function, Ref(first)), term.span), Shape(ONE)
            case "layernorm" | "rmsnorm" | "softmax":
                operator = RowOperator(term.function)
                epsilon = LAYERNORM_EPSILON if operator is RowOperator.LAYERNORM else 0.0
                return RowOp("", operator, operands, epsilon=epsilon, span=term.span), Shape(width)
            case _:
                raise InternalError(f"the row function {term.function}")

    def width(self, name: str) -> Dim:
        return self.nodes.shapes[name].width

    def canonical(self, width: Dim) -> Dim:
        return canonical(width, self.solved, self.divisible)


def _norm_of_one(function: str, value: Ref) -> Expr:
    """The norm, or the softmax, of one number for all heads."""
    match function:
        case "layernorm":
            return apply("sub", value, value)
        case "softmax":
            return apply("add", apply("sub", value, value), Const(1.0))
    square = apply("add", apply("mul", value, value), apply("epsilon", value))
    return apply("mul", value, apply("rsqrt", square))
