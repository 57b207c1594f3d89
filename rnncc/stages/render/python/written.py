"""Calls as Python text: in one line, or with one line per argument where that is too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Call:
    """A call; arguments without a name come first."""

    function: str
    arguments: tuple[Written, ...]
    named: tuple[tuple[str, Written], ...]


# An expression as it is, a call, or a tuple.
Written = str | Call | tuple["Written", ...]


def call(function: str, *arguments: Written, **named: Written | None) -> Call:
    """A call. A named argument that is None is left out, and has its default."""
    given = tuple((name, value) for name, value in named.items() if value is not None)
    return Call(function, arguments, given)


def string(text: str) -> str:
    """A string literal. It stands between double quotes, unless it contains some."""
    literal = repr(text)
    return literal if literal.startswith('"') or '"' in literal else f'"{literal[1:-1]}"'


def strings(texts: Sequence[str]) -> tuple[Written, ...]:
    """A tuple of string literals."""
    return tuple(map(string, texts))


def written(value: Written, margin: int = 0, start: str = "") -> str:
    """`start` and the value, from column `margin` on. A comma may follow on the same line, and no more."""
    line = start + _line(value)
    if margin + len(line) < _WIDTH or isinstance(value, str):
        return line
    entries = _entries(value)
    opening = start + (f"{value.function}(" if isinstance(value, Call) else "(")
    lines = [f"{' ' * (margin + 4)}{written(entry, margin + 4, name)},\n" for name, entry in entries]
    return f"{opening}\n{''.join(lines)}{' ' * margin})"


def _entries(value: Call | tuple[Written, ...]) -> list[tuple[str, Written]]:
    if isinstance(value, Call):
        return [("", each) for each in value.arguments] + [(f"{name}=", each) for name, each in value.named]
    return [("", each) for each in value]


def _line(value: Written) -> str:
    if isinstance(value, str):
        return value
    text = ", ".join(name + _line(entry) for name, entry in _entries(value))
    if isinstance(value, Call):
        return f"{value.function}({text})"
    return f"({text},)" if len(value) == 1 else f"({text})"
