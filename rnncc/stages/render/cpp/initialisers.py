"""Brace initialisers of C++. A struct's initialiser names the members that it sets: this is C++20, but compilers take
it in C++17."""

from __future__ import annotations

from collections.abc import Iterable

from rnncc.stages.render.notation import listed

Member = str | int | bool | None


def members(**values: Member) -> list[str]:
    """The members as `.name = value`, which must be in the order of the struct. A value that is None or false is left
    out, and C++ sets it to zero."""
    return [
        f".{name} = {'true' if value is True else value}"
        for name, value in values.items()
        if value is not None and value is not False
    ]


def designated(**values: Member) -> str:
    """A struct's initialiser."""
    return f"{{{', '.join(members(**values))}}}"


def struct(type: str, name: str, **values: Member) -> str:
    """A constant struct."""
    return listed(f"static constexpr {type} {name} = {{", members(**values), "};", 4)


def row(label: str, **values: Member) -> str:
    """An element of an array of structs; the label stands before it as a comment."""
    start = f"/* {label} */ " if label else ""
    return listed(f"    {start}{{", members(**values), "},", 8)


def rows(type: str, name: str, entries: Iterable[str]) -> str:
    """A constant array of structs."""
    return "\n".join((f"static constexpr {type} {name}[] = {{", *entries, "};"))


def numbers(name: str, entries: Iterable[str | int]) -> str:
    """A constant array of indices."""
    return listed(f"static constexpr int16_t {name}[] = {{", map(str, entries), "};", 4)
