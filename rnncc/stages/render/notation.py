"""What C++ and Python write alike: dims, and expressions without brackets that are not needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from rnncc.ir.dim import Dim, code


def dim_name(dim: Dim, words: Mapping[str, str] = MappingProxyType({})) -> str:
    """A dim as the language writes it, but names in `words` are replaced."""
    return _dim_text(dim, lambda name: words.get(name, name))


def cpp_dim(dim: Dim, sizes: Sequence[str]) -> str:
    """A dim as a C++ expression of `heads` and of the array `sizes`, whose elements have these names."""
    places = {name: f"sizes[{index}]" for index, name in enumerate(sizes)} | {"num_heads": "heads"}
    return _dim_text(dim, places.__getitem__).replace("//", "/")


def python_dim(dim: Dim, sizes: str = "sizes") -> str:
    """A dim as a Python expression of a mapping called `sizes`: `4*sizes["H"]`."""
    return _dim_text(dim, lambda name: f'{sizes}["{name}"]')


def _dim_text(dim: Dim, place: Callable[[str], str]) -> str:
    return without_brackets(re.sub(r"[A-Za-z_]\w*", lambda match: place(match.group()), code(dim)))


def without_brackets(text: str) -> str:
    """An expression without the brackets around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[1:-1] if index == len(text) - 1 else text
    return text


def listed(start: str, items: Iterable[str], end: str, margin: int) -> str:
    """`start`, the items with commas between them, and `end`. Lines have at most 120 characters, and all but the first
    begin with a margin."""
    words = list(items)
    lines, is_first = [start], True
    for index, word in enumerate(words):
        word += "," if index < len(words) - 1 else end
        if is_first or len(lines[-1].rpartition("\n")[2]) + len(word) < 120:
            lines[-1] += word if is_first else f" {word}"
        else:
            lines.append(" " * margin + word)
        is_first = False
    return "\n".join(lines) if words else start + end
