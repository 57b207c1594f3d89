"""Names as a page prints them: `beta1` is β with the subscript 1, `v_reset` is v with the subscript reset, `h_tilde` is
an h with a tilde."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rnncc.language.greek import GREEK

# The Greek letter that a name spells. `eps` is what most authors write for epsilon.
LETTERS = {name: letter for letter, name in GREEK.items() if letter != "ς"} | {"lambda": "λ", "eps": "ε"}

# What stands above a letter, and the character that does so in plain text.
ACCENTS = {"hat": "\u0302", "tilde": "\u0303", "bar": "\u0304", "dot": "\u0307"}

_NUMBERED = re.compile(r"(?P<letters>.*[^\d_])(?P<digits>\d+)")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name cut into its letters and its subscripts. A letter with an accent ends with the character of ACCENTS."""

    base: str
    subscripts: tuple[str, ...] = ()


def symbol(name: str) -> Symbol:
    """How a page prints a name of the language."""
    base, *subscripts = [part for part in name.split("_") if part] or [name]
    if (numbered := _NUMBERED.fullmatch(base)) is not None:
        base, subscripts = numbered["letters"], [numbered["digits"], *subscripts]
    parts = [base]
    for part in subscripts:
        if part in ACCENTS and (len(parts[-1]) == 1 or parts[-1] in LETTERS):
            parts[-1] += ACCENTS[part]
        else:
            parts.append(part)
    return Symbol(parts[0], tuple(parts[1:]))


def accented(part: str) -> tuple[str, str]:
    """A part of a symbol without its accent, and the accent's name or nothing."""
    for name, mark in ACCENTS.items():
        if part.endswith(mark):
            return part.removesuffix(mark), name
    return part, ""


def in_letters(part: str) -> str:
    """A part of a symbol as plain text, with Greek letters."""
    letters, accent = accented(part)
    return LETTERS.get(letters, letters) + ACCENTS.get(accent, "")
