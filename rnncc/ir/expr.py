"""Elementwise expressions: three kinds of node. What an operator means stands in `rnncc.language.operators`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never


def exact(value: float) -> str:
    """What tells a number from all others. 0.0 and -0.0 are two, because 1/x differs; NaN is one."""
    return float(value).hex()


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A literal number (may be ±inf)."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and exact(self.value) == exact(other.value)

    def __hash__(self) -> int:
        return hash(exact(self.value))


@dataclass(frozen=True, slots=True)
class Ref:
    """A value by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator of `rnncc.language.operators.OPERATORS` applied to arguments."""

    operator: str
    arguments: tuple[Expr, ...]


Expr = Const | Ref | Apply


def apply(operator: str, *arguments: Expr) -> Apply:
    """`Apply` without the tuple."""
    return Apply(operator, arguments)


def references(expr: Expr) -> list[str]:
    """The names an expression reads, left to right, with repetitions."""
    found: list[str] = []
    waiting = [expr]
    while waiting:
        part = waiting.pop()
        match part:
            case Const():
                pass
            case Ref(name):
                found.append(name)
            case Apply(_, arguments):
                waiting += reversed(arguments)
            case _:
                assert_never(part)
    return found


def operators(expr: Expr) -> Iterator[str]:
    """The operators an expression applies, outermost first, with repetitions."""
    if isinstance(expr, Apply):
        yield expr.operator
        for argument in expr.arguments:
            yield from operators(argument)


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace names by expressions; the same object comes back where nothing changed."""
    match expr:
        case Const():
            return expr
        case Ref(name):
            return values.get(name, expr)
        case Apply(operator, arguments):
            new = tuple(substitute(argument, values) for argument in arguments)
            return expr if all(a is b for a, b in zip(new, arguments, strict=True)) else Apply(operator, new)
        case _:
            assert_never(expr)
