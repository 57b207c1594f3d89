"""What expressions and constraints mean: their value when every variable has one. The definition the solver is tested
against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
    "min": lambda *arguments: min(arguments),
    "max": lambda *arguments: max(arguments),
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
            return OPERATORS[operator](*[value(argument, values, known) for argument in arguments])
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


# The value of an expression by that of one variable; a number where it does not depend on the variable.
Along = Callable[[int], int] | int


def along(variable: Variable, expression: Node, values: Sequence[int], known: dict[Node, Along]) -> Along:
    """The value of an expression by that of one variable, where the others have their `values`; `known` as in `value`.

    Who asks for many values of the variable saves the evaluation of all that does not depend on it.
    """
    found = known.get(expression)
    if found is None:
        found = known[expression] = _along(variable, expression, values, known)
    return found


def _along(variable: Variable, expression: Node, values: Sequence[int], known: dict[Node, Along]) -> Along:
    match expression:
        case Constant(number):
            return number
        case Variable(_, index, _):
            return (lambda own: own) if index == variable.index else values[index]
        case Apply(operator, parts):
            function = OPERATORS[operator]
        case Lookup(parts, table):
            function = partial(_entry, table)
        case Truth(constraint):
            before, after = values[: variable.index], values[variable.index + 1 :]
            return lambda own: int(holds(constraint, (*before, own, *after)))
        case _:
            assert_never(expression)
    arguments = [along(variable, part, values, known) for part in parts]
    numbers = [argument for argument in arguments if isinstance(argument, int)]
    if len(numbers) == len(arguments):
        return function(*numbers)
    functions = [function_of(argument) for argument in arguments]
    match functions:
        case [left, right]:
            return lambda own: function(left(own), right(own))
        case _:
            return lambda own: function(*(of(own) for of in functions))


def function_of(along: Along) -> Callable[[int], int]:
    """The function of what may be a number."""
    return along if callable(along) else partial(_same, along)


def _same(number: int, _: int) -> int:
    return number


def _entry(table: Mapping[tuple[int, ...], int], *key: int) -> int:
    return table[key]


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
