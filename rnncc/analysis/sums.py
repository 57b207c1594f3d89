"""Sums as lists of signed terms, and back."""

from __future__ import annotations

from collections.abc import Sequence

from rnncc.ir.expr import Apply, Const, Expr, Ref, apply, references

Signed = tuple[bool, Expr]  # (is subtracted, term)


def terms(expr: Expr, negative: bool = False) -> list[Signed]:
    """The terms of a chain of `+`, `-` and negations, left to right."""
    match expr:
        case Apply("add", (left, right)):
            return terms(left, negative) + terms(right, negative)
        case Apply("sub", (left, right)):
            return terms(left, negative) + terms(right, not negative)
        case Apply("neg", (operand,)) if isinstance(operand, Apply) and operand.operator in ("add", "sub", "neg"):
            return terms(operand, not negative)
        case _:
            return [(negative, expr)]


def total(signed: Sequence[Signed]) -> Expr:
    """The sum of terms, added up left to right."""
    negative, result = signed[0]
    if negative:
        result = Const(-result.value) if isinstance(result, Const) else apply("neg", result)
    for is_subtracted, term in signed[1:]:
        result = apply("sub" if is_subtracted else "add", result, term)
    return result


def is_linear_in(term: Expr, name: str) -> bool:
    """Whether a value stands in a term under products, quotients and sums only."""
    match term:
        case Ref(other):
            return other == name
        case Apply("mul" | "add" | "sub" | "neg", arguments):
            return any(is_linear_in(argument, name) for argument in arguments)
        case Apply("div", (numerator, denominator)):
            return is_linear_in(numerator, name) and name not in set(references(denominator))
        case _:
            return False
