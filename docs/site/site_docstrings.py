"""Docstrings that list names beside their meanings, as lists of Markdown. mkdocstrings loads this file, for the API.

name    what it is
        and more of that
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_BESIDE = re.compile(r"(\S(?:.*?\S)?)(?:  +(\S.*))?$")


class NamesBesideMeanings(Extension):  # type: ignore[misc]  # as in pyproject.toml
    """Changes the docstring of whatever has such a paragraph."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """The docstring with Markdown's lists in place of such paragraphs."""
    return "\n\n".join(_list(paragraph.splitlines()) or paragraph for paragraph in text.split("\n\n"))


def _list(lines: list[str]) -> str:
    """The list, or nothing where a line is no entry: a name, and its meaning beside or below it."""
    entries: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and entries:
            entries[-1].append(line.strip())
        elif (found := _BESIDE.match(line)) is not None:
            entries.append([found[1].strip("`"), *([found[2]] if found[2] else [])])
    is_section = entries[:1] and entries[0][0].endswith(":")
    if not entries or is_section or any(len(entry) == 1 for entry in entries):
        return ""
    return "\n".join(f"- `{name}`: {' '.join(meaning)}" for name, *meaning in entries)
