"""Which values of a loop are bounded whatever the inputs: enough to tell a stabilised `exp` from one that overflows,
and which saved values 16 bits hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rnncc.analysis.sums import Signed, terms
from rnncc.ir.cell import Contraction, Node, Placement, Pointwise, RowOp, Segment
from rnncc.ir.expr import Apply, Const, Expr, Ref, references
from rnncc.ir.row_operator import RowOperator
from rnncc.language.bound import FREE, RAY, SIGNED, UNIT, Bound
from rnncc.language.operators import OPERATORS

# What each unit is one of the operand's, or lies among them.
_TAKES = (
    RowOperator.SLICE,
    RowOperator.REPEAT,
    RowOperator.MEAN,
    RowOperator.MAX,
    RowOperator.ROLL,
    RowOperator.BY_ROW,
    RowOperator.BY_COLUMN,
    RowOperator.ROW_MAXIMA,
    RowOperator.COLUMN_MAXIMA,
    RowOperator.TRANSPOSE,
    RowOperator.DIAGONAL,
)
# A vector as a matrix, and the function that gives the largest element along what the vector fills.
_MAXIMA = {RowOperator.BY_ROW: RowOperator.ROW_MAXIMA, RowOperator.BY_COLUMN: RowOperator.COLUMN_MAXIMA}


class Bounds:
    """Bounds of the values and expressions of the loops, and of what inputs make for them. Parameters, constants and
    what is made of them count as bounded; `prologue` is what parameters alone make, `not_negative` are inputs to be
    taken as such."""

    def __init__(
        self,
        segments: Sequence[Segment],
        placement: Mapping[str, Placement],
        prologue: Sequence[Node],
        not_negative: frozenset[str],
    ) -> None:
        made = [node for segment in segments for node in (*segment.batched, *segment.nodes)]
        self.nodes: dict[str, Node] = {node.target: node for node in made}
        self.fixed = {name for name, placed in placement.items() if placed is Placement.P}
        for segment in segments:
            self.fixed.update(segment.constants, *(weight.members for weight in segment.weights))
        self.known: dict[str, Bound] = dict.fromkeys(not_negative, RAY)
        # What parameters alone make is bounded (`of`); only its sign is asked for.
        for node in prologue:
            self.known[node.target] = replace(self._node(node), above=True, below=True)
        # In the loops' order, so that what a node reads is known before it.
        for name, node in self.nodes.items():
            self.known[name] = self._node(node)

    def _node(self, node: Node) -> Bound:
        match node:
            case Pointwise(_, expr):
                return self.of(expr)
            case RowOp(_, operator, (operand,)) if operator in _TAKES:
                return self.known.get(operand, FREE)
            case RowOp(_, RowOperator.SQUARES | RowOperator.VARIANCE):
                return RAY
            case RowOp(_, RowOperator.SOFTMAX):
                return UNIT
            case RowOp() | Contraction():
                return FREE
            case _:
                return FREE

    def of(self, expr: Expr) -> Bound:
        """What is certain of an expression."""
        bound = self._of(expr)
        return replace(bound, above=True, below=True) if self.fixed.issuperset(references(expr)) else bound

    def _of(self, expr: Expr) -> Bound:
        match expr:
            case Const(value):
                return Bound(True, True, value >= 0, value <= 0)
            case Ref(name):
                return self.known.get(name, SIGNED if name in self.fixed else FREE)
            case Apply("add" | "sub", _) if self._not_positive(expr):
                return Bound(above=True, not_positive=True)
            case Apply("mul", (left, right)) if left == right:
                return self._square(left)
            case Apply("mul", (Apply("neg", (left,)), right)) if left == right:
                return self._square(left).negated  # -v*v
            case Apply("pow", (base, Const(exponent))) if exponent > 0 and exponent % 2 == 0:
                return self._square(base)
            case Apply(operator, arguments):
                return OPERATORS[operator].bound(*(self.of(argument) for argument in arguments))

    def _square(self, base: Expr) -> Bound:
        return Bound(self.of(base).both, True, True)

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
        """The values whose maximum (minimum) this one is; none where it is no maximum."""
        match expr:
            case Ref(name):
                match self.nodes.get(name):
                    case Pointwise(_, Apply() as inner):
                        return self._parts(inner, operators)
                    case RowOp(_, RowOperator.MAX, (operand,)) if "max" in operators:
                        return (Ref(operand),)
                    case RowOp(_, spread, (vector,)) if spread in _MAXIMA and "max" in operators:
                        return self._maxima(vector, _MAXIMA[spread])
            case Apply("detach", (value,)):
                return self._parts(value, operators)
            # What logsumexp takes out: the largest, or 0 where that is infinite, and then so is what it comes from.
            case Apply("where", (Apply("lt", (Apply("abs", (largest,)), Const(math.inf))), value, Const(0.0))) if (
                value in (largest, Apply("detach", (largest,)))
            ):
                return self._parts(largest, operators)
            case Apply(operator, (left, right)) if operator in operators:
                return tuple(part for side in (left, right) for part in (side, *self._parts(side, operators)))
        return ()

    def _maxima(self, vector: str, operator: RowOperator) -> tuple[Expr, ...]:
        """The matrix whose largest elements a vector has; none where it has others."""
        match self.nodes.get(vector):
            case Pointwise(_, Apply("detach", (Ref(inner),)) | Ref(inner)):
                return self._maxima(inner, operator)
            case RowOp(_, found, (matrix,)) if found is operator:
                return (Ref(matrix),)
        return ()


def _is_among(signed: Sequence[Signed], candidates: tuple[Expr, ...]) -> bool:
    """Whether a sum is one of the candidates, whatever the order of its terms."""
    wanted = sorted(map(repr, signed))
    return any(sorted(map(repr, terms(candidate))) == wanted for candidate in candidates)
