"""Operations on single units, and the names of what they make and take.

A value of k*H units lies as [k, heads, head_dim], so unit u of a head has k numbers of it, its *parts*: `v__0of4`, ….
A *scalar* is a value with one number per head, which every unit has.

A sum over all heads is no operation, since heads never wait for each other. Where nothing in a step waits for it, it is
taken after the loop: the gradient of a stream with one number per batch entry is such a sum. It is linear in what the
units have, so the units write their terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.expr import Apply, Const, Expr, Ref, apply, references
from rnncc.ir.fused import FusedReduction, MatrixPart, MatrixRule, head_dim_name
from rnncc.ir.lowered import Unfit
from rnncc.ir.step import Statement


@dataclass(frozen=True, slots=True)
class PartProduct:
    """sum += matrix @ operand. The widths are numbers of Units.widths. `transposed`: None where a rule gives the
    matrix."""

    sum: str
    operand: str
    matrix: MatrixPart | MatrixRule
    transposed: bool | None
    sum_width: int
    operand_width: int


Operation = Statement | PartProduct | FusedReduction


def made_by(operation: Operation) -> tuple[str, ...]:
    """The names of what an operation makes."""
    match operation:
        case PartProduct(name) | Statement(name):
            return (name,)
        case FusedReduction(results):
            return results
    assert_never(operation)


def taken_by(operation: Operation) -> tuple[str, ...]:
    """The names of what an operation takes."""
    match operation:
        case PartProduct(_, operand):
            return (operand,)
        case FusedReduction(_, _, sources):
            return sources
        case Statement(_, expr):
            return tuple(references(expr))
    assert_never(operation)


def part_names(name: str, count: int) -> tuple[str, ...]:
    """The names of `count` parts of a value; its own name where it has one, or is a scalar."""
    return (name,) if count < 2 else tuple(f"{name}__{part}of{count}" for part in range(count))


def late_names(name: str, count: int) -> tuple[str, ...]:
    """The names of the terms of a sum over all heads."""
    return part_names(f"{name}__of_unit", count)


def elements_per_head(count: int, width: int) -> Expr:
    """How many elements a head has of a value of `count` parts, each of the width with that number. A scalar, which has
    no parts, is one element."""
    head_dim = Ref(head_dim_name(width))
    if not count:
        return Const(1.0)
    return head_dim if count < 2 else apply("mul", Const(float(count)), head_dim)


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


class LateSums(dict[str, LateSum]):
    """The late sums of a step by name, and what scales or adds them. All methods raise Unfit."""

    def reads(self, expr: Expr) -> bool:
        """Whether an expression reads one."""
        return any(name in self for name in references(expr))

    def of(self, expr: Expr) -> LateSum:
        """An expression as a sum of its own."""
        taken = [self[name] for name in references(expr) if name in self]
        parts = (self._term(expr, part) for part in range(len(taken[0].parts)))
        if any(len(each.parts) != len(taken[0].parts) for each in taken):
            raise Unfit(NO_PLAIN_SUM)
        return LateSum(tuple(parts), taken[0].slot)

    def _term(self, expr: Expr, part: int) -> Expr:
        """What a unit adds to an expression."""
        match expr:
            case Const(0.0):
                return expr
            case Ref(name) if name in self:
                return self[name].parts[part]
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
