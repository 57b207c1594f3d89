"""Operations on single units, and the names of what they make and take.

A value of k*H units lies as [k, heads, head_dim], so unit u of a head has k numbers of it, its *parts*: `v__0of4`, ….
A *scalar* is a value with one number per head, which every unit has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.expr import Const, Expr, Ref, apply, references
from rnncc.ir.fused import FusedReduction, MatrixPart, MatrixRule, head_dim_name
from rnncc.ir.step import Statement


@dataclass(frozen=True, slots=True)
class Product:
    """sum += matrix @ operand. The widths are numbers of Units.widths. `transposed`: None where a rule gives the
    matrix."""

    sum: str
    operand: str
    matrix: MatrixPart | MatrixRule
    transposed: bool | None
    sum_width: int
    operand_width: int


Operation = Statement | Product | FusedReduction


def made_by(operation: Operation) -> tuple[str, ...]:
    """The names of what an operation makes."""
    match operation:
        case Product(name) | Statement(name):
            return (name,)
        case FusedReduction(results):
            return results
    assert_never(operation)


def taken_by(operation: Operation) -> tuple[str, ...]:
    """The names of what an operation takes."""
    match operation:
        case Product(_, operand):
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
