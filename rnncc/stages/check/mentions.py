"""Every name that a cell's text mentions, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from rnncc.ir.syntax import Call, CellDecl, FunctionDecl, Index, Name


def mentioned_names(decl: CellDecl) -> frozenset[str]:
    """The names in expressions and types; the name that a declaration introduces is none of them."""
    return names_in(decl.statements)


def names_in(part: object) -> frozenset[str]:
    """The names in a part of the text."""
    return frozenset(_names(part))


def _names(part: object) -> Iterator[str]:
    waiting = [part]
    while waiting:
        part = waiting.pop()
        match part:
            case FunctionDecl(_, parameters, body):
                yield from names_in(body) - {each.name for each in parameters}
                continue
            case Name(name):
                yield name
            case Call(function):
                yield function
            case Index(base):
                yield base
            case _:
                pass
        if isinstance(part, tuple):
            waiting += part
        elif is_dataclass(part):
            waiting += (getattr(part, each.name) for each in fields(part))
