"""Sums over all heads that nothing in a step waits for.

The gradient of a stream with one number per batch entry is a sum over the units of all heads. It is linear in what the
units have, so the units write their terms, and the sum is taken after the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.expr import Apply, Const, Expr, Ref, apply, references
from rnncc.ir.plan import Unfit

# Why a step has no fused form where a value of the step needs such a sum.
OVER_ALL_HEADS = (
    "a step needs a number of all heads, but heads never wait for each other: give each head its own number"
)
# The same where nothing in the step needs it, but it is no plain sum of one value of the units.
NO_PLAIN_SUM = (
    "the gradient of an input with one number per batch entry is more than one sum over all heads: give each head its "
    "own number (`input gap: num_heads`)"
)


@dataclass(frozen=True, slots=True)
class LateSum:
    """`parts` are the terms of a unit: one for each of its numbers. Their record is that of `slot`."""

    parts: tuple[Expr, ...]
    slot: str


class LateSums:
    """The late sums of a step by name, and what scales or adds them. All methods raise Unfit."""

    def __init__(self) -> None:
        self.known: dict[str, LateSum] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def reads(self, expr: Expr) -> bool:
        """Whether an expression reads one."""
        return any(name in self.known for name in references(expr))

    def of(self, expr: Expr) -> LateSum:
        """An expression as a sum of its own."""
        taken = [self.known[name] for name in references(expr) if name in self.known]
        parts = (self._term(expr, part) for part in range(len(taken[0].parts)))
        if any(len(each.parts) != len(taken[0].parts) for each in taken):
            raise Unfit(NO_PLAIN_SUM)
        return LateSum(tuple(parts), taken[0].slot)

    def _term(self, expr: Expr, part: int) -> Expr:
        """What a unit adds to an expression."""
        match expr:
            case Const(0.0):
                return expr
            case Ref(name) if name in self.known:
                return self.known[name].parts[part]
            case Apply("neg", (value,)):
                return apply("neg", self._term(value, part))
            case Apply("add" | "sub" as operator, (left, right)):
                return apply(operator, self._term(left, part), self._term(right, part))
            case Apply("mul" | "div" as operator, (left, right)) if not self.reads(right):
                return apply(operator, self._term(left, part), right)
            case Apply("mul", (left, right)) if not self.reads(left):
                return apply("mul", left, self._term(right, part))
            case Apply("where", (condition, left, right)) if not self.reads(condition):
                return apply("where", condition, self._term(left, part), self._term(right, part))
        raise Unfit(OVER_ALL_HEADS)
