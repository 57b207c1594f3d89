"""Words in messages: what a name that nobody knows was meant to be, and articles."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# How torch.nn and papers name the matrices: by what they map from and to, or by operand and gate.
_TORCH = (
    (re.compile(r"W_?(hh|rec)|W_h[a-wy-z]|weight_hh.*"), "R", "R@h[t-1]"),
    (re.compile(r"W_?(ih|xh|hx)|W_[xi][a-z]|weight_ih.*"), "W", "W@x"),
    (re.compile(r"b_hh|bias_hh.*"), "bR", "R@h[t-1] + bR"),
    (re.compile(r"b_ih|bias_ih.*"), "b", "W@x + b"),
)


def closest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'sigmoid'?`, or nothing where no known name is near."""
    # Nobody misspells a name of a hundred letters, and difflib's time grows with the square of the length.
    names = sorted(set(known))
    # `sigm` is rather the beginning of `sigmoid` than a misspelt `sign`.
    begun = [other for other in names if len(name) >= 3 and other.startswith(name)]
    found = begun or (difflib.get_close_matches(name, names, n=1) if len(name) <= 64 else [])
    return f"did you mean '{found[0]}'?" if found else ""


def torch_parameter(name: str) -> str:
    """What the language calls torch.nn's `weight_hh`, a paper's `W_hh`; or nothing."""
    for pattern, group, use in _TORCH:
        if pattern.fullmatch(name):
            return f"it is called '{group}' here, as in '{use}': each equation has its own"
    return ""


def article(kind: str) -> str:
    """`an input`, `a state`."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def as_operand(text: str) -> str:
    """A text that may stand beside `@`: in brackets, unless it is a name, a call, or in brackets already."""
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth == 0 and character in " +-*/@<>=!":
            return f"({text})"
    return text


def inside(text: str) -> str:
    """A text that may stand between brackets: without brackets of its own."""
    return text[1:-1] if text.startswith("(") and as_operand(text) == text else text
