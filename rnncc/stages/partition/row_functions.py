"""Functions across the units of a vector as row operators."""

from __future__ import annotations

import math
from dataclasses import replace

from rnncc.analysis.norms import LAYERNORM_EPSILON
from rnncc.analysis.widths import canonical, reduced
from rnncc.ir import dim as dims
from rnncc.ir.cell import Node, Pointwise, RowOp
from rnncc.ir.dim import HEADS, ONE, Dim
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.term import PerHead, Row
from rnncc.ir.typed import Shape, Typed
from rnncc.language.diagnostics import InternalError
from rnncc.stages.partition.nodes import Nodes

# What a length is bounded by before something is divided by it, as in torch.nn.functional.normalize.
_SHORTEST = 1e-12


class RowFunctions:
    """Makes the nodes of functions. Equal calls share their result."""

    def __init__(self, typed: Typed, nodes: Nodes) -> None:
        self.nodes = nodes
        self.solved = {size.name: size.solved for size in typed.sizes if size.solved is not None}
        self.divisible = typed.divisible
        # By function, operands, `times` and `places`.
        self.known: dict[tuple[str, tuple[str, ...], int, Dim], str] = {}
        # By function and width.
        self.vectors: dict[tuple[str, Dim], str] = {}
        # By operand and the number of groups.
        self.copies: dict[tuple[str, Dim], str] = {}

    def value(self, term: Row, operands: tuple[str, ...]) -> str:
        """The name of the function's value; `operands` are the names of its arguments'."""
        key = (term.function, operands, term.times, term.places)
        if key not in self.known:
            node, shape = self.last(term, operands)
            self.known[key] = self.nodes.temporary(replace(node, target=self.nodes.name()), shape)
        return self.known[key]

    def node(self, term: Row, operands: tuple[str, ...], target: str) -> Node:
        """The node that defines `target` as the function's value."""
        key = (term.function, operands, term.times, term.places)
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
            case "norm":
                return Pointwise("", self.length(first), term.span), Shape(narrow)
            case "normalize":
                length = Ref(self.value(Row("norm", ()), operands))
                unit = apply("div", Ref(first), apply("max", length, Const(_SHORTEST)))
                return Pointwise("", unit, term.span), Shape(width)
            case "logsumexp":
                return Pointwise("", self.logsumexp(first), term.span), Shape(narrow)
            case "cumsum":
                return RowOp("", RowOperator.CUMSUM, operands, span=term.span), Shape(width)
            case "roll":
                return self.rolled(term, operands), Shape(width)
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

    def rolled(self, term: Row, operands: tuple[str, ...]) -> Node:
        """What moves units by `places`, without a name."""
        vector, width = operands[0], self.width(operands[0])
        places = term.places
        if not places.terms or (width == ONE and len(operands) == 1):
            return Pointwise("", Ref(vector), term.span)
        if len(operands) == 1:
            return RowOp("", RowOperator.ROLL, operands, places, span=term.span)
        named = self.nodes.made.get(operands[1])
        fill = named.expr if isinstance(named, Pointwise) else Ref(operands[1])
        if width == ONE:
            return Pointwise("", fill, term.span)
        moved = RowOp("", RowOperator.SHIFT, (vector,), places, span=term.span)
        if fill == Const(0.0):
            return moved
        # Zeros come in, and are replaced where a vector of ones that moves as far has them too.
        value = self.nodes.temporary(replace(moved, target=self.nodes.name()), Shape(width))
        ones = Row("roll", (), places=places)
        inside = self.value(ones, (self.filled("ones", width), self.nodes.named(Const(0.0))))
        return Pointwise("", apply("where", Ref(inside), Ref(value), fill), term.span)

    def filled(self, function: str, dim: Dim) -> str:
        """The name of a vector of numbers alone."""
        key = (function, self.canonical(dim))
        if key not in self.vectors:
            counts = function == "arange" and key[1] != ONE
            operands = (self.filled("ones", dim),) if counts else ()
            number = Const(0.0 if function == "arange" else 1.0)
            target, span = self.nodes.name(), self.nodes.span
            node = RowOp(target, RowOperator.ARANGE, operands, span=span) if counts else Pointwise(target, number, span)
            self.vectors[key] = self.nodes.temporary(node, Shape(key[1]))
        return self.vectors[key]

    def per_head(self, term: PerHead, operand: str) -> str:
        """The name of the copies of a vector for each head."""
        key = (operand, term.groups)
        if key not in self.copies:
            width = dims.multiply(dims.floor_divide(self.width(operand), term.groups), HEADS)
            node = RowOp(self.nodes.name(), RowOperator.PER_HEAD, (operand,), span=term.span)
            self.copies[key] = self.nodes.temporary(node, Shape(self.canonical(width)))
        return self.copies[key]

    def length(self, vector: str) -> Expr:
        """The length of each head's units. Its derivative is 0 where it is 0, and a NaN stays one."""
        squares = self.nodes.named(apply("mul", Ref(vector), Ref(vector)))
        total = Ref(self.value(Row("sum", ()), (squares,)))
        is_zero = apply("eq", total, Const(0.0))
        return apply("where", is_zero, Const(0.0), apply("sqrt", apply("where", is_zero, Const(1.0), total)))

    def logsumexp(self, vector: str) -> Expr:
        """The logarithm of the sum of the exponentials of each head's units. The largest is taken out, so that none
        overflows; it is not where it is infinite, because infinity minus infinity is no number."""
        largest = Ref(self.value(Row("max", ()), (vector,)))
        is_finite = apply("lt", apply("abs", largest), Const(math.inf))
        moved = Ref(self.nodes.named(apply("where", is_finite, apply("detach", largest), Const(0.0))))
        powers = self.nodes.named(apply("exp", apply("sub", Ref(vector), moved)))
        return apply("add", apply("log", Ref(self.value(Row("sum", ()), (powers,)))), moved)

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
