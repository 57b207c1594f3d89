"""Which values of a loop are bounded whatever the inputs: enough to tell a stabilised `exp` from one that overflows,
and which saved values 16 bits hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rnncc.ir.cell import Contraction, Node, Placement, Pointwise, RowOp, RowOperator, Segment
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.sums import Signed, terms


@dataclass(frozen=True, slots=True)
class Bound:
    """Whether there is a bound from above and from below, and which sign is certain."""

    above: bool = False
    below: bool = False
    not_negative: bool = False
    not_positive: bool = False

    @property
    def both(self) -> bool:
        return self.above and self.below

    @property
    def negated(self) -> Bound:
        """That of the value with the other sign."""
        return Bound(self.below, self.above, self.not_positive, self.not_negative)

    def plus(self, other: Bound) -> Bound:
        """That of a sum, and of what is at most (or at least) one of two values."""
        return Bound(
            self.above and other.above,
            self.below and other.below,
            self.not_negative and other.not_negative,
            self.not_positive and other.not_positive,
        )

    def times(self, other: Bound) -> Bound:
        """That of a product."""
        same = (self.not_negative and other.not_negative) or (self.not_positive and other.not_positive)
        opposite = (self.not_negative and other.not_positive) or (self.not_positive and other.not_negative)
        above, below = opposite, same
        for factor, rest in ((self, other), (other, self)):
            # A bounded factor of one sign keeps the other's bounds, or swaps them.
            kept = rest if factor.not_negative else rest.negated
            if factor.both and (factor.not_negative or factor.not_positive):
                above, below = above or kept.above, below or kept.below
        both = self.both and other.both
        return Bound(above or both, below or both, same, opposite)


_FREE = Bound()
_UNIT = Bound(True, True, True)  # [0, 1]
_SIGNED = Bound(True, True)  # [-1, 1], or a parameter
_RAY = Bound(False, True, True)  # [0, inf)
_BY_OPERATOR = {
    "sigmoid": _UNIT, "hardsigmoid": _UNIT, "heaviside": _UNIT, "tanh": _SIGNED, "hardtanh": _SIGNED, "sin": _SIGNED,
    "cos": _SIGNED, "sign": _SIGNED, "erf": _SIGNED, "relu": _RAY, "exp": _RAY, "softplus": _RAY, "abs": _RAY,
    "sqrt": _RAY, "logsigmoid": Bound(above=True, not_positive=True), "silu": Bound(below=True),
    "gelu": Bound(below=True), "lt": _UNIT, "le": _UNIT, "gt": _UNIT, "ge": _UNIT, "eq": _UNIT, "ne": _UNIT,
}  # fmt: skip


class Bounds:
    """Bounds of the values and expressions of the loops. Parameters and constants count as bounded; `prologue`
    is what parameters alone make, `not_negative` are inputs to be taken as such."""

    def __init__(
        self,
        segments: Sequence[Segment],
        placement: Mapping[str, Placement],
        prologue: Sequence[Node],
        not_negative: frozenset[str],
    ) -> None:
        self.nodes: dict[str, Node] = {node.target: node for segment in segments for node in segment.nodes}
        self.fixed = {name for name, placed in placement.items() if placed is Placement.P}
        for segment in segments:
            self.fixed.update(segment.constants, *(weight.members for weight in segment.weights))
        self.known: dict[str, Bound] = dict.fromkeys(not_negative, _RAY)
        # Of what parameters alone make, the sign: it is bounded anyway.
        for node in prologue:
            self.known[node.target] = replace(self._node(node), above=True, below=True)
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
                return Bound(True, True, value >= 0, value <= 0)
            case Ref(name):
                return self.known.get(name, _SIGNED if name in self.fixed else _FREE)
            case Apply("add" | "sub", _) if self._not_positive(expr):
                return Bound(above=True, not_positive=True)
            case Apply("mul", (left, right)) if left == right:
                return self._square(left)
            case Apply("mul", (Apply("neg", (left,)), right)) if left == right:
                return self._square(left).negated  # -v*v
            case Apply("pow", (base, Const(exponent))) if exponent > 0 and exponent % 2 == 0:
                return self._square(base)
            case Apply(operator, arguments):
                return self._apply(operator, tuple(self.of(argument) for argument in arguments))

    def _square(self, base: Expr) -> Bound:
        return Bound(self.of(base).both, True, True)

    def _apply(self, operator: str, bounds: tuple[Bound, ...]) -> Bound:
        if operator in _BY_OPERATOR or operator.startswith("heaviside_"):
            found = _BY_OPERATOR.get(operator, _UNIT)
            return Bound(bounds[0].above, True, True) if found is _RAY and bounds[0].both else found
        match operator, bounds:
            case "neg", (a,):
                return a.negated
            case "add", (a, b):
                return a.plus(b)
            case "sub", (a, b):
                return a.plus(b.negated)
            case "mul", (a, b):
                return a.times(b)
            case "max", (a, b):
                all_of = a.plus(b)
                return Bound(
                    all_of.above, a.below or b.below, a.not_negative or b.not_negative, all_of.not_positive
                )  # fmt: skip
            case "min", (a, b):
                all_of = a.plus(b)
                return Bound(
                    a.above or b.above, all_of.below, all_of.not_negative, a.not_positive or b.not_positive
                )  # fmt: skip
            case "where", (_, a, b):
                return a.plus(b)
            case "clamp", (_, low, high):
                return Bound(high.above, low.below, low.not_negative, high.not_positive)
            case "log" | "log1p", (a,):
                return Bound(above=a.above)
            case _:
                return _FREE

    def _not_positive(self, expr: Expr) -> bool:
        """Whether a sum is at most 0: `a - m` where m is at least a (`max(…, a, …)`), `m - a` where m is at most a."""
        signed = terms(expr)
        for position, (negative, term) in enumerate(signed):
            rest = signed[:position] + signed[position + 1 :]
            if negative and _is_among(rest, self._parts(term, ("max", "logaddexp"))):
                return True
            # What stands beside the minimum, with the other sign.
            turned = [(not sign, other) for sign, other in rest]
            if not negative and _is_among(turned, self._parts(term, ("min",))):
                return True
        return False

    def _parts(self, expr: Expr, operators: tuple[str, ...]) -> tuple[Expr, ...]:
        """Of what a value is the maximum (minimum): nothing, where it is none."""
        match expr:
            case Ref(name):
                match self.nodes.get(name):
                    case Pointwise(_, Apply() as inner):
                        return self._parts(inner, operators)
                    case RowOp(_, RowOperator.MAX, (operand,)) if "max" in operators:
                        return (Ref(operand),)
            case Apply(operator, (left, right)) if operator in operators:
                return tuple(part for side in (left, right) for part in (side, *self._parts(side, operators)))
        return ()


def _is_among(signed: Sequence[Signed], candidates: tuple[Expr, ...]) -> bool:
    """Whether a sum is one of the candidates, whatever the order of its terms."""
    wanted = sorted(map(repr, signed))
    return any(sorted(map(repr, terms(candidate))) == wanted for candidate in candidates)
