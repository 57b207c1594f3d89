"""Expressions and constraints as their user would write them, for messages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import assert_never

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

BINDING = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2, "**": 4}
ATOM = 5
LONGEST_TABLE = 8


def expression(tree: Node) -> str:
    """An expression with no more brackets than it needs."""
    return _bound(tree, 0)


def _bound(tree: Node, binding: int) -> str:
    """The text of a tree, in brackets if it binds looser than its surroundings."""
    text, own = _text(tree)
    return f"({text})" if own < binding else text


def _text(tree: Node) -> tuple[str, int]:
    """The text of a tree and how strongly its outermost operator binds."""
    match tree:
        case Constant(value):
            return str(value), ATOM if value >= 0 else BINDING["*"]
        case Variable(name, _, _):
            return name, ATOM
        case Apply("-", (Constant(0), right)):
            return f"-{_bound(right, BINDING['*'])}", BINDING["*"]
        case Apply(operator, (left, right)) if operator in BINDING:
            own = BINDING[operator]
            # Left-associative, but for the power, whose left side needs the brackets; `a*(b*c)` keeps them too.
            sides = (own + 1, own) if operator == "**" else (own, own + 1)
            return f"{_bound(left, sides[0])} {operator} {_bound(right, sides[1])}".replace(" ** ", "**"), own
        case Apply(operator, arguments):
            return f"{operator}({', '.join(map(expression, arguments))})", ATOM
        case Lookup(keys, table):
            pairs = [f"{_row(row)}: {result}" for row, result in islice(table.items(), LONGEST_TABLE)]
            pairs += ["…"] * (len(table) > LONGEST_TABLE)
            return f"{{{', '.join(pairs)}}}[{', '.join(map(expression, keys))}]", ATOM
        case Truth(condition):
            return f"truth({constraint(condition)})", ATOM
        case _:
            assert_never(tree)


def _row(values: tuple[int, ...]) -> str:
    text = ", ".join(map(str, values))
    return text if len(values) == 1 else f"({text})"


def constraint(tree: Relation, show: Callable[[Node], str] = expression) -> str:
    """A constraint; `show` writes the expressions it compares."""
    match tree:
        case Comparison(operator, left, right):
            return f"{show(left)} {operator} {show(right)}"
        case Table(expressions, rows, allowed):
            names = ", ".join(map(show, expressions))
            names = names if len(expressions) == 1 else f"({names})"
            shown = [*map(_row, rows[:LONGEST_TABLE]), *["…"] * (len(rows) > LONGEST_TABLE)]
            return f"{names} {'in' if allowed else 'not in'} {{{', '.join(shown)}}}"
        case Conjunction(parts):
            return " and ".join(_part(part, show) for part in parts) or "true"
        case Disjunction(parts):
            return " or ".join(_part(part, show) for part in parts) or "false"
        case _:
            assert_never(tree)


def _part(tree: Relation, show: Callable[[Node], str]) -> str:
    text = constraint(tree, show)
    return f"({text})" if isinstance(tree, Conjunction | Disjunction) and len(tree.parts) > 1 else text
