"""Functions across units, decomposed into row operators and elementwise arithmetic (torch's definitions)."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from rnncc.ir import dim as dims
from rnncc.ir.cell import Node, Pointwise, RowOp, RowOperator
from rnncc.ir.dim import Dim
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import Span
from rnncc.stages.check.shape import Shape, reduced
from rnncc.stages.check.terms import Row, Term

# torch.nn.functional.layer_norm's default.
LAYERNORM_EPSILON = 1e-5


class Owner(Protocol):
    """What `Rows` asks of the flattener that owns it."""

    shapes: dict[str, Shape]
    span: Span

    @property
    def input_dims(self) -> frozenset[str]:
        """Dims that are those of inputs."""

    def canonical(self, dim: Dim) -> Dim:
        """A dim as the cell's sizes have it."""

    def name(self) -> str:
        """A new name."""

    def operand(self, term: Term) -> str:
        """The name of a term's value."""

    def named(self, expr: Expr) -> str:
        """The name of an expression's value."""

    def temporary(self, node: Node, shape: Shape) -> str:
        """Adds a node; its name."""


class Rows:
    """Makes the nodes of row functions."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        # Equal calls share their result: the key is the last node without its name.
        self.known: dict[tuple[str, tuple[str, ...], int], str] = {}

    def value(self, term: Row) -> str:
        """The name of the function's value."""
        operands = self.operands(term)
        key = (term.function, operands, term.times)
        if key not in self.known:
            node, shape = self.last(term, operands)
            self.known[key] = self.owner.temporary(replace(node, target=self.owner.name()), shape)
        return self.known[key]

    def node(self, term: Row, target: str) -> Node:
        """The node that defines `target` as the function's value."""
        operands = self.operands(term)
        key = (term.function, operands, term.times)
        if key not in self.known:
            node, shape = self.last(term, operands)
            if shape.width == self.owner.shapes[target].width:
                self.known[key] = target
                return replace(node, target=target)
            self.known[key] = self.owner.temporary(replace(node, target=self.owner.name()), shape)
        return Pointwise(target, Ref(self.known[key]), term.span)

    def operands(self, term: Row) -> tuple[str, ...]:
        return tuple(self.owner.operand(argument) for argument in term.arguments)

    def last(self, term: Row, operands: tuple[str, ...]) -> tuple[Node, Shape]:
        """The node that yields the value, without a name, after the nodes it needs."""
        first = operands[0]
        width = self.owner.shapes[first].width
        narrow = reduced(width, self.owner.input_dims)
        match term.function:
            case "sum":
                return RowOp("", RowOperator.SUM, operands, span=term.span), Shape(narrow)
            case "mean":
                return RowOp("", RowOperator.MEAN, operands, span=term.span), Shape(narrow)
            case "cumsum":
                return RowOp("", RowOperator.CUMSUM, operands, span=term.span), Shape(width)
            case "repeat":
                wide = self.owner.canonical(dims.scale(width, term.times))
                return RowOp("", RowOperator.REPEAT, operands, times=term.times, span=term.span), Shape(wide)
            case "concat":
                total = dims.constant(0)
                for operand in operands:
                    total = dims.add(total, self.owner.shapes[operand].width)
                return RowOp("", RowOperator.CONCAT, operands, span=term.span), Shape(self.owner.canonical(total))
            case "layernorm":
                return Pointwise("", self.layernorm(first, narrow), term.span), Shape(width)
            case "rmsnorm":
                return Pointwise("", self.rmsnorm(first, narrow), term.span), Shape(width)
            case "softmax":
                return Pointwise("", self.softmax(first, narrow), term.span), Shape(width)
            case _:
                raise InternalError(f"the row function {term.function}")

    def reduce(self, operator: RowOperator, operand: str, narrow: Dim) -> Ref:
        owner = self.owner
        return Ref(owner.temporary(RowOp(owner.name(), operator, (operand,), span=owner.span), Shape(narrow)))

    def layernorm(self, operand: str, narrow: Dim) -> Expr:
        """(v - mean) / sqrt(variance + 1e-5), the variance biased."""
        mean = self.reduce(RowOperator.MEAN, operand, narrow)
        centred = Ref(self.owner.named(apply("sub", Ref(operand), mean)))
        squares = self.owner.named(apply("mul", centred, centred))
        variance = self.reduce(RowOperator.MEAN, squares, narrow)
        root = apply("sqrt", apply("add", variance, Const(LAYERNORM_EPSILON)))
        return apply("mul", centred, apply("div", Const(1.0), root))

    def rmsnorm(self, operand: str, narrow: Dim) -> Expr:
        """v / sqrt(mean of squares + machine epsilon)."""
        value = Ref(operand)
        squares = self.reduce(RowOperator.MEAN, self.owner.named(apply("mul", value, value)), narrow)
        root = apply("sqrt", apply("add", squares, apply("epsilon", value)))
        return apply("mul", value, apply("div", Const(1.0), root))

    def softmax(self, operand: str, narrow: Dim) -> Expr:
        """exp(v - max) / sum."""
        largest = self.reduce(RowOperator.MAX, operand, narrow)
        powers = Ref(self.owner.named(apply("exp", apply("sub", Ref(operand), largest))))
        return apply("div", powers, self.reduce(RowOperator.SUM, powers.name, narrow))
