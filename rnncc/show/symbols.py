"""Names as a page prints them: `beta1` is β with the subscript 1, `v_reset` is v with the subscript reset."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rnncc.language.greek import GREEK

# The Greek letter that a name spells. `eps` is what most authors write for epsilon.
LETTERS = {name: letter for letter, name in GREEK.items() if letter != "ς"} | {"lambda": "λ", "eps": "ε"}

_NUMBERED = re.compile(r"(?P<letters>.*[^\d_])(?P<digits>\d+)")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name cut into its letters and its subscripts."""

    base: str
    subscripts: tuple[str, ...] = ()


def symbol(name: str) -> Symbol:
    """How a page prints a name of the language."""
    base, *subscripts = [part for part in name.split("_") if part] or [name]
    if (numbered := _NUMBERED.fullmatch(base)) is not None:
        base, subscripts = numbered["letters"], [numbered["digits"], *subscripts]
    return Symbol(base, tuple(subscripts))
