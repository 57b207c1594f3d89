"""Text in TeX, and the document around the cells."""

from __future__ import annotations

import re
import unicodedata

from rnncc.language.greek import GREEK
from rnncc.show.latex.names import word

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "…": r"\dots{}",
    "–": "--", "—": "---", "“": "``", "”": "''", "„": ",,", "‘": "`", "’": "'", "ß": r"\ss{}", "ø": r"\o{}",
    "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}",
    "ı": r"\i{}", "×": r"$\times$", "·": r"$\cdot$", "⊙": r"$\odot$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$",
    "≠": r"$\neq$", "∈": r"$\in$", "∞": r"$\infty$", "→": r"$\to$", "←": r"$\gets$", "∑": r"$\sum$", "−": "$-$",
    "ς": r"$\varsigma$", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip
# Accents of TeX by the combining character.
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0323": "d", "\u0327": "c", "\u0328": "k",
}  # fmt: skip
_HEAD = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[a4paper, margin=25mm]{geometry}
\usepackage{amsmath, amssymb}
\allowdisplaybreaks
\setlength{\parindent}{0pt}
\sloppy
\begin{document}
"""


def escaped(written: str) -> str:
    """A text in ASCII that TeX prints. What no font of TeX has is written as its code point."""
    quoted = re.sub(r'"([^"]*)"', "“\\1”", unicodedata.normalize("NFC", written))
    return "".join(map(_character, quoted))


def _character(character: str) -> str:
    if (known := _ESCAPES.get(character)) is not None:
        return known
    if character.isascii():
        return character if character.isprintable() or character.isspace() else " "
    if character in GREEK:
        return f"${word(GREEK[character]).tex}$"
    base, *marks = list(unicodedata.normalize("NFD", character))
    if len(marks) == 1 and marks[0] in _ACCENTS and base.isascii():
        letter = {"i": r"\i", "j": r"\j"}.get(base, base)
        return f"\\{_ACCENTS[marks[0]]}{{{letter}}}"
    compatible = unicodedata.normalize("NFKC", character)
    return compatible if compatible.isascii() else f"[U+{ord(character):04X}]"


def document(sections: list[str]) -> str:
    """A document that compiles with amsmath and amssymb."""
    return _HEAD + "\n\n".join(sections) + "\n\\end{document}\n"
