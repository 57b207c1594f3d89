"""What expressions and constraints mean: their value when every variable has one. The definition the solver is tested
against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from rnncc.constrint.errors import ModelError
from rnncc.constrint.expr import (
    Apply,
    Comparison,
    Conjunction,
    Constant,
    Disjunction,
    Lookup,
    Node,
    Relation,
    Table,
    Truth,
    Variable,
)

OPERATORS: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "ceil_div": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
}


def value(expression: Node, values: Sequence[int], known: dict[Node, int] | None = None) -> int:
    """The value of an expression, given the values of the variables by their index.

    `known` keeps the values of expressions, so that what several share is evaluated once.
    """
    if known is None:
        known = {}
    found = known.get(expression)
    if found is None:
        found = known[expression] = _value(expression, values, known)
    return found


def _value(expression: Node, values: Sequence[int], known: dict[Node, int]) -> int:
    match expression:
        case Constant(number):
            return number
        case Variable(_, index, _):
            return values[index]
        case Apply("min" | "max" as operator, arguments):
            return OPERATORS[operator]([value(argument, values, known) for argument in arguments])
        case Apply(operator, (left, right)):
            return OPERATORS[operator](value(left, values, known), value(right, values, known))
        case Apply(operator, arguments):
            raise ModelError(f"{operator} takes two arguments, not {len(arguments)}")
        case Lookup(keys, table):
            return table[tuple(value(key, values, known) for key in keys)]
        case Truth(constraint):
            return int(holds(constraint, values, known))
        case _:
            assert_never(expression)


def holds(constraint: Relation, values: Sequence[int], known: dict[Node, int] | None = None) -> bool:
    """Whether a constraint holds, given the values of the variables by their index; `known` as in `value`."""
    if known is None:
        known = {}
    match constraint:
        case Comparison(operator, left, right):
            return COMPARISONS[operator](value(left, values, known), value(right, values, known))
        case Table(expressions, rows, allowed):
            return (tuple(value(expression, values, known) for expression in expressions) in rows) == allowed
        case Conjunction(parts):
            return all(holds(part, values, known) for part in parts)
        case Disjunction(parts):
            return any(holds(part, values, known) for part in parts)
        case _:
            assert_never(constraint)


def variables(tree: Node | Relation) -> Iterator[Variable]:
    """Every variable of a tree, in the order written, repeats included."""
    match tree:
        case Constant():
            return
        case Variable():
            yield tree
        case Truth(constraint):
            yield from variables(constraint)
        case Comparison(_, left, right):
            yield from variables(left)
            yield from variables(right)
        case Apply(_, parts) | Lookup(parts, _) | Table(parts, _, _) | Conjunction(parts) | Disjunction(parts):
            for part in parts:
                yield from variables(part)
        case _:
            assert_never(tree)
