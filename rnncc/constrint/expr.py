"""What a user writes: integer expressions, and constraints between them. Immutable trees; no meaning, no search.

Python's operators build them: `+ - * // % **` and comparison. Comparing gives a `Constraint`, which has no truth
value of its own, so `if x == 3` and `1 <= x <= 3` are refused. Constraints combine by `&`, `|`, `~` and `implies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn, TypeAlias, Union

from rnncc.constrint.domain import Domain
from rnncc.constrint.errors import ModelError

OPPOSITE = {"==": "!=", "!=": "==", "<=": ">", ">": "<=", "<": ">=", ">=": "<"}


class Expression:
    """An integer that depends on variables. Compared by identity, since `==` builds a constraint."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __add__(self, other: Operand) -> Expression:
        return Apply("+", (_node(self), as_expression(other)))

    def __radd__(self, other: int) -> Expression:
        return Apply("+", (Constant(other), _node(self)))

    def __sub__(self, other: Operand) -> Expression:
        return Apply("-", (_node(self), as_expression(other)))

    def __rsub__(self, other: int) -> Expression:
        return Apply("-", (Constant(other), _node(self)))

    def __neg__(self) -> Expression:
        return Apply("-", (Constant(0), _node(self)))

    def __mul__(self, other: Operand) -> Expression:
        return Apply("*", (_node(self), as_expression(other)))

    def __rmul__(self, other: int) -> Expression:
        return Apply("*", (Constant(other), _node(self)))

    def __floordiv__(self, other: Operand) -> Expression:
        return Apply("//", (_node(self), as_expression(other)))

    def __rfloordiv__(self, other: int) -> Expression:
        return Apply("//", (Constant(other), _node(self)))

    def __mod__(self, other: Operand) -> Expression:
        return Apply("%", (_node(self), as_expression(other)))

    def __rmod__(self, other: int) -> Expression:
        return Apply("%", (Constant(other), _node(self)))

    def __pow__(self, other: Operand) -> Expression:
        return Apply("**", (_node(self), as_expression(other)))

    def __rpow__(self, other: int) -> Expression:
        return Apply("**", (Constant(other), _node(self)))

    def __eq__(self, other: object) -> Comparison:  # type: ignore[override]
        return Comparison("==", _node(self), as_expression(other))

    def __ne__(self, other: object) -> Comparison:  # type: ignore[override]
        return Comparison("!=", _node(self), as_expression(other))

    def __le__(self, other: Operand) -> Comparison:
        return Comparison("<=", _node(self), as_expression(other))

    def __lt__(self, other: Operand) -> Comparison:
        return Comparison("<", _node(self), as_expression(other))

    def __ge__(self, other: Operand) -> Comparison:
        return Comparison(">=", _node(self), as_expression(other))

    def __gt__(self, other: Operand) -> Comparison:
        return Comparison(">", _node(self), as_expression(other))


Operand: TypeAlias = Expression | int


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Expression):
    """An integer."""

    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Expression):
    """An unknown: made by a model, which numbers its variables in order."""

    name: str
    index: int
    domain: Domain


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Expression):
    """An operator: `+ - * // % **`, `ceil_div`, each of two arguments, or `min`, `max` of one or more."""

    operator: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lookup(Expression):
    """The value that a table gives for the values of some expressions."""

    keys: tuple[Node, ...]
    table: Mapping[tuple[int, ...], int]


@dataclass(frozen=True, slots=True, eq=False)
class Truth(Expression):
    """1 where a constraint holds, else 0."""

    constraint: Relation


Node: TypeAlias = Constant | Variable | Apply | Lookup | Truth


class Constraint:
    """Something that holds or does not."""

    __slots__ = ()

    def __and__(self, other: Constraint) -> Constraint:
        return Conjunction((as_relation(self), as_relation(other)))

    def __or__(self, other: Constraint) -> Constraint:
        return Disjunction((as_relation(self), as_relation(other)))

    def __invert__(self) -> Constraint:
        return negation(as_relation(self))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a constraint has no truth value: write `model.require(...)`, split `a <= x <= b` in two,"
            " and use `&`, `|`, `~` for `and`, `or`, `not`"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(Constraint):
    """`left operator right`, the operator one of `== != <= < >= >`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Table(Constraint):
    """The expressions together take the values of one of the rows (`allowed`), or of none of them."""

    expressions: tuple[Node, ...]
    rows: tuple[tuple[int, ...], ...]
    allowed: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Conjunction(Constraint):
    """All of the parts."""

    parts: tuple[Relation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Disjunction(Constraint):
    """At least one of the parts."""

    parts: tuple[Relation, ...]


Relation: TypeAlias = Union[Comparison, Table, "Conjunction", "Disjunction"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A constraint, what to call it, and why it must hold."""

    name: str
    reason: str
    constraint: Relation

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else self.name


def as_expression(value: object) -> Node:
    """An operand as a tree; a constraint counts as 1 or 0 only through `truth`."""
    if isinstance(value, Constant | Variable | Apply | Lookup | Truth):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Constant(value)
    raise TypeError(f"an integer expression is needed, not {value!r}")


def _node(expression: Expression) -> Node:
    return as_expression(expression)


def as_relation(constraint: Constraint) -> Relation:
    """A constraint as a tree."""
    if isinstance(constraint, Comparison | Table | Conjunction | Disjunction):
        return constraint
    raise TypeError(f"a constraint is needed, not {constraint!r}")


def minimum(*operands: Operand) -> Expression:
    """The least of the operands."""
    return Apply("min", tuple(as_expression(operand) for operand in operands))


def maximum(*operands: Operand) -> Expression:
    """The greatest of the operands."""
    return Apply("max", tuple(as_expression(operand) for operand in operands))


def ceil_div(dividend: Operand, divisor: Operand) -> Expression:
    """`dividend / divisor`, rounded up."""
    return Apply("ceil_div", (as_expression(dividend), as_expression(divisor)))


def round_up(value: Operand, multiple: Operand) -> Expression:
    """The least multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple


def lookup(key: Operand | Sequence[Operand], table: Mapping[Any, int]) -> Expression:
    """What `table` gives for the value of `key`, or for the values of several keys, a tuple. It must cover every value
    that they can take."""
    keys = tuple(map(as_expression, key if isinstance(key, Sequence) else (key,)))
    entries = {value if isinstance(value, tuple) else (value,): result for value, result in table.items()}
    return Lookup(keys, dict(sorted(entries.items())))


def by(keys: Operand | tuple[Operand, ...], function: Callable[..., int]) -> Expression:
    """A function of a variable, or of several variables and numbers, as a table over the values that they may take."""
    several = keys if isinstance(keys, tuple) else (keys,)
    domains: list[Iterable[int]] = []
    for key in several:
        if not isinstance(key, int | Variable):
            raise ModelError("a function is tabled by variables and numbers: make an expression a variable first")
        domains.append(key.domain if isinstance(key, Variable) else (key,))
    return lookup(several, {values: int(function(*values)) for values in product(*domains)})


def truth(constraint: Constraint) -> Expression:
    """1 where the constraint holds, else 0."""
    return Truth(as_relation(constraint))


def divides(divisor: Operand, number: Operand) -> Comparison:
    """`number` is a multiple of `divisor`."""
    return as_expression(number) % divisor == 0


def table(expressions: Sequence[Operand], rows: Iterable[Sequence[int]]) -> Table:
    """The expressions together take the values of one of the rows."""
    nodes = tuple(as_expression(expression) for expression in expressions)
    unique = tuple(dict.fromkeys(tuple(row) for row in rows))
    if any(len(row) != len(nodes) for row in unique):
        raise ModelError(f"every row of the table needs {len(nodes)} values, one an expression")
    return Table(nodes, unique)


def member(expression: Operand, values: Iterable[int]) -> Table:
    """The expression takes one of the values."""
    return table((expression,), ((value,) for value in values))


def all_of(constraints: Iterable[Constraint]) -> Constraint:
    """Every one of the constraints."""
    return Conjunction(tuple(as_relation(constraint) for constraint in constraints))


def any_of(constraints: Iterable[Constraint]) -> Constraint:
    """At least one of the constraints."""
    return Disjunction(tuple(as_relation(constraint) for constraint in constraints))


def implies(condition: Constraint, consequence: Constraint) -> Constraint:
    """If the condition holds, so does the consequence."""
    return ~condition | consequence


def distinct(operands: Iterable[Operand]) -> Constraint:
    """No two of the operands are equal."""
    nodes = tuple(as_expression(operand) for operand in operands)
    return Conjunction(tuple(Comparison("!=", a, b) for i, a in enumerate(nodes) for b in nodes[i + 1 :]))


def negation(constraint: Relation) -> Relation:
    """What holds exactly where the constraint does not."""
    match constraint:
        case Comparison(operator, left, right):
            return Comparison(OPPOSITE[operator], left, right)
        case Table(expressions, rows, allowed):
            return Table(expressions, rows, not allowed)
        case Conjunction(parts):
            return Disjunction(tuple(negation(part) for part in parts))
        case Disjunction(parts):
            return Conjunction(tuple(negation(part) for part in parts))
