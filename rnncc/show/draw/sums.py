"""Terms as signed sums, and as powers of factors."""

from __future__ import annotations

from rnncc.ir.term import Num, Op, Term


def addends(term: Term, sign: int) -> list[tuple[int, Term]]:
    """The terms of a sum, each with its sign."""
    match term:
        case Op("add", (left, right)):
            return [*addends(left, sign), *addends(right, sign)]
        case Op("sub", (left, right)):
            return [*addends(left, sign), *addends(right, -sign)]
        case Op("neg", (operand,)):
            return addends(operand, -sign)
        case Num(value) if value < 0:
            return [(-sign, Num(-value))]
        case _:
            return [(sign, term)]


def factors(term: Term, power: int) -> list[tuple[int, Term]]:
    """The factors of a product, each with its power: 1, or -1 where it divides."""
    match term:
        case Op("mul", (left, right)):
            return [*factors(left, power), *factors(right, power)]
        case Op("div", (left, right)):
            return [*factors(left, power), *factors(right, -power)]
        case _:
            return [(power, term)]
