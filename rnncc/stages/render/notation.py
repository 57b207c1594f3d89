"""What C++ and Python write alike: dims, and expressions without the brackets that say nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rnncc.ir.dim import Dim, show


def cpp_dim(dim: Dim, sizes: Sequence[str]) -> str:
    """A dim as C++ of `sizes`, the entries of which have these names, and `heads`."""
    places = {name: f"sizes[{index}]" for index, name in enumerate(sizes)} | {"num_heads": "heads"}
    return _dim_text(dim, places.__getitem__).replace("//", "/")


def python_dim(dim: Dim, sizes: str = "sizes") -> str:
    """A dim as Python of a mapping called `sizes`: `4*sizes["H"]`."""
    return _dim_text(dim, lambda name: f'{sizes}["{name}"]')


def _dim_text(dim: Dim, place: Callable[[str], str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda match: place(match.group()), show(dim))


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
