"""Which values of a loop are bounded whatever the inputs: enough to tell a stabilised `exp` from one that overflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.cell import Contraction, Node, Placement, Pointwise, RowOp, RowOperator, Segment
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.stages.check.sums import terms


@dataclass(frozen=True, slots=True)
class Bound:
    """Whether there is a bound from above and from below, and which sign is certain."""

    above: bool = False
    below: bool = False
    not_negative: bool = False

    @property
    def both(self) -> bool:
        return self.above and self.below


_FREE = Bound()
_UNIT = Bound(True, True, True)  # [0, 1], or a constant
_SIGNED = Bound(True, True)  # [-1, 1]
_RAY = Bound(False, True, True)  # [0, inf)
_BY_OPERATOR = {
    "sigmoid": _UNIT, "hardsigmoid": _UNIT, "heaviside": _UNIT, "tanh": _SIGNED, "hardtanh": _SIGNED, "sin": _SIGNED,
    "cos": _SIGNED, "sign": _SIGNED, "erf": _SIGNED, "relu": _RAY, "exp": _RAY, "softplus": _RAY, "abs": _RAY,
    "sqrt": _RAY, "logsigmoid": Bound(above=True), "silu": Bound(below=True), "gelu": Bound(below=True),
    "lt": _UNIT, "le": _UNIT, "gt": _UNIT, "ge": _UNIT, "eq": _UNIT, "ne": _UNIT,
}  # fmt: skip


class Bounds:
    """Bounds of the values and expressions of the loops. Parameters and constants count as bounded."""

    def __init__(self, segments: Sequence[Segment], placement: Mapping[str, Placement]) -> None:
        self.nodes: dict[str, Node] = {node.target: node for segment in segments for node in segment.nodes}
        self.fixed = {name for name, placed in placement.items() if placed is Placement.P}
        for segment in segments:
            self.fixed.update(segment.constants, *(weight.members for weight in segment.weights))
        self.known: dict[str, Bound] = {}
        # In the loops' order, so that what a node reads is known before it.
        for name, node in self.nodes.items():
            self.known[name] = self._node(node)

    def _node(self, node: Node) -> Bound:
        match node:
            case Pointwise(_, expr):
                return self.of(expr)
            case RowOp(_, RowOperator.SLICE | RowOperator.REPEAT | RowOperator.MEAN | RowOperator.MAX, (operand,)):
                return self.known.get(operand, _FREE)
            case RowOp() | Contraction():
                return _FREE
            case _:
                return _FREE

    def of(self, expr: Expr) -> Bound:
        """What is certain of an expression."""
        match expr:
            case Const(value):
                return Bound(True, True, value >= 0)
            case Ref(name):
                return _SIGNED if name in self.fixed else self.known.get(name, _FREE)
            case Apply("add" | "sub", _) if self._below_maximum(expr):
                return Bound(above=True)
            case Apply(operator, arguments):
                return self._apply(operator, tuple(self.of(argument) for argument in arguments))

    def _apply(self, operator: str, bounds: tuple[Bound, ...]) -> Bound:
        if operator in _BY_OPERATOR or operator.startswith("heaviside_"):
            found = _BY_OPERATOR.get(operator, _UNIT)
            return Bound(bounds[0].above, True, True) if found is _RAY and bounds[0].both else found
        match operator, bounds:
            case "neg", (a,):
                return Bound(a.below, a.above)
            case "add", (a, b):
                return Bound(a.above and b.above, a.below and b.below, a.not_negative and b.not_negative)
            case "sub", (a, b):
                return Bound(a.above and b.below, a.below and b.above)
            case "mul", (a, b):
                both = a.both and b.both
                return Bound(both, both or (a.not_negative and b.not_negative), a.not_negative and b.not_negative)
            case "max", (a, b):
                return Bound(a.above and b.above, a.below or b.below, a.not_negative or b.not_negative)
            case "min", (a, b):
                return Bound(a.above or b.above, a.below and b.below, a.not_negative and b.not_negative)
            case "where", (_, a, b):
                return Bound(a.above and b.above, a.below and b.below, a.not_negative and b.not_negative)
            case "clamp", (_, low, high):
                return Bound(high.above, low.below, low.not_negative)
            case "log" | "log1p", (a,):
                return Bound(above=a.above)
            case _:
                return _FREE

    def _below_maximum(self, expr: Expr) -> bool:
        """Whether `a - m` is at most 0 because m is `max(…, a, …)`."""
        signed = terms(expr)
        for position, (negative, term) in enumerate(signed):
            node = self.nodes.get(term.name) if isinstance(term, Ref) else None
            if not negative or node is None:
                continue
            rest = sorted(map(repr, signed[:position] + signed[position + 1 :]))
            if any(sorted(map(repr, terms(candidate))) == rest for candidate in _maximum_of(node)):
                return True
        return False


def _maximum_of(node: Node) -> tuple[Expr, ...]:
    """What a value is the maximum of (one thing, where it is no maximum)."""
    match node:
        case Pointwise(_, expr):
            return _candidates(expr)
        case RowOp(_, RowOperator.MAX, (operand,)):
            return (Ref(operand),)
        case _:
            return ()


def _candidates(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Apply("max", (left, right)):
            return _candidates(left) + _candidates(right)
        case _:
            return (expr,)
