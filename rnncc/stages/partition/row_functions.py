"""Functions across the units of a vector, decomposed into row operators and elementwise arithmetic (torch's
definitions)."""

from __future__ import annotations

from dataclasses import replace

from rnncc.analysis.widths import canonical, reduced
from rnncc.ir import dim as dims
from rnncc.ir.cell import Node, Pointwise, RowOp, RowOperator
from rnncc.ir.dim import ONE, Dim
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.term import Row
from rnncc.ir.typed import Shape, Typed
from rnncc.language.diagnostics import InternalError
from rnncc.stages.partition.nodes import Nodes

# torch.nn.functional.layer_norm's default.
LAYERNORM_EPSILON = 1e-5


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
            case "sum" | "mean" | "max" | "cumsum" if width == ONE:
                return Pointwise("", Ref(first), term.span), Shape(ONE)  # one number for all heads has no row of a head
            case "sum":
                return RowOp("", RowOperator.SUM, operands, span=term.span), Shape(narrow)
            case "mean":
                return RowOp("", RowOperator.MEAN, operands, span=term.span), Shape(narrow)
            case "max":
                return RowOp("", RowOperator.MAX, operands, span=term.span), Shape(narrow)
            case "min":
                opposite = self.nodes.named(apply("neg", Ref(first)))
                least = apply("neg", self.reduce(RowOperator.MAX, opposite, narrow))
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
            case "layernorm":
                return Pointwise("", self.layernorm(first, narrow), term.span), Shape(width)
            case "rmsnorm":
                return Pointwise("", self.rmsnorm(first, narrow), term.span), Shape(width)
            case "softmax":
                return Pointwise("", self.softmax(first, narrow), term.span), Shape(width)
            case _:
                raise InternalError(f"the row function {term.function}")

    def width(self, name: str) -> Dim:
        return self.nodes.shapes[name].width

    def canonical(self, width: Dim) -> Dim:
        return canonical(width, self.solved, self.divisible)

    def reduce(self, operator: RowOperator, operand: str, narrow: Dim) -> Ref:
        if self.width(operand) == ONE:
            return Ref(operand)
        node = RowOp(self.nodes.name(), operator, (operand,), span=self.nodes.span)
        return Ref(self.nodes.temporary(node, Shape(narrow)))

    def layernorm(self, operand: str, narrow: Dim) -> Expr:
        """(v - mean) / sqrt(variance + 1e-5), the variance biased."""
        mean = self.reduce(RowOperator.MEAN, operand, narrow)
        centred = Ref(self.nodes.named(apply("sub", Ref(operand), mean)))
        squares = self.nodes.named(apply("mul", centred, centred))
        variance = self.reduce(RowOperator.MEAN, squares, narrow)
        return apply("mul", centred, apply("rsqrt", apply("add", variance, Const(LAYERNORM_EPSILON))))

    def rmsnorm(self, operand: str, narrow: Dim) -> Expr:
        """v / sqrt(mean of squares + machine epsilon)."""
        value = Ref(operand)
        squares = self.reduce(RowOperator.MEAN, self.nodes.named(apply("mul", value, value)), narrow)
        return apply("mul", value, apply("rsqrt", apply("add", squares, apply("epsilon", value))))

    def softmax(self, operand: str, narrow: Dim) -> Expr:
        """exp(v - max) / sum. The gradient through the maximum would cancel, so there is none."""
        largest = self.reduce(RowOperator.MAX, operand, narrow)
        powers = Ref(self.nodes.named(apply("exp", apply("sub", Ref(operand), apply("detach", largest)))))
        return apply("div", powers, self.reduce(RowOperator.SUM, powers.name, narrow))
