"""Arithmetic on literal numbers, done once at compile time, and the zeros that a static `if` leaves behind."""

from __future__ import annotations

import math

from rnncc.ir.term import Num, Op, Term
from rnncc.language.operators import OPERATORS
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span

_ARITHMETIC = ("add", "sub", "mul", "div", "pow")


def fold(operator: str, arguments: tuple[Term, ...], span: Span) -> Term:
    """The term; `2*3` becomes 6 and `0 + v` becomes v (what `(W@x if l == 1 else 0) + …` leaves)."""
    match operator, arguments:
        case _, (Num(left), Num(right)) if operator in _ARITHMETIC:
            value = _number(operator, left, right)
            if value is not None:
                return Num(value, span)
        case "add", (Num(0.0), term) | (term, Num(0.0)):
            return term
        case "sub", (term, Num(0.0)):
            return term
    return Op(operator, arguments, span)


def _number(operator: str, left: float, right: float) -> float | None:
    """The value where it is an ordinary number; the rest is left to IEEE arithmetic at run time."""
    value_of = OPERATORS[operator].value
    assert value_of is not None
    try:
        value = value_of(float(left), float(right))
    except (ZeroDivisionError, OverflowError):
        return None
    return value if isinstance(value, float) and math.isfinite(value) else None


def refuse_zero_divisor(operator: str, arguments: tuple[Term, ...], report: Report) -> Reported | None:
    """An error where numbers alone make a divisor that is zero."""
    if operator not in ("div", "mod") or _value(arguments[1]) != 0.0:
        return None
    help = "write 'inf' where infinity is meant; a divisor that only may be zero is bounded by 'max(v, 1e-6)'"
    return report.error("RNN237", "the divisor is zero", arguments[1].span, help=help)


def leaves_the_numbers(term: Op) -> bool:
    """Whether finite numbers alone make an infinity or a NaN here: `1/0`, `log(-1)`, `10**400`."""
    value = _value(term)
    if value is None or math.isfinite(value):
        return False
    return all(math.isfinite(known) for argument in term.arguments if (known := _value(argument)) is not None)


def _value(term: Term) -> float | None:
    """The value of a constant expression, NaN for all that is no finite number; None for what is not known here."""
    match term:
        case Num(value):
            return value
        case Op(operator, arguments) if (value_of := OPERATORS[operator].value) is not None:
            # The last first: a sum of many lies in its first argument, and one that is no number ends the search.
            found: list[float] = []
            for argument in reversed(arguments):
                known = _value(argument)
                if known is None:
                    return None
                found.append(known)
            try:
                result = value_of(*reversed(found))
            except (ZeroDivisionError, OverflowError, ValueError):
                return math.nan
            return result if isinstance(result, float) else math.nan
        case _:
            return None
