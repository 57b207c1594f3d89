"""What to write instead of characters and operators that the language does not have."""

from __future__ import annotations

import re
import unicodedata

from rnncc.language.greek import GREEK
from rnncc.language.names import FUNCTIONS

# A regular expression of operators from other languages; none of them is made of tokens of this one by accident.
FOREIGN = r"[-+*/@%^|&]=|\*\*=|//=|:=|<-|=>|&&|\|\||<>|[%^&|~?]|!(?!=)"

_FOREIGN_HELP = {
    "^": "a power is written `a**2`",
    "%": "the remainder is `mod(a, b)`",
    ":=": "a definition is written with `=`",
    "<-": "a definition is written with `=`; a comparison with a negative number needs a space: `a < -b`",
    "=>": "greater or equal is written `>=`",
    "<>": "unequal is written `!=`",
    "?": "a choice between values is `where(condition, a, b)`, a static one `a if condition else b`",
    "&&": "both: multiply the conditions",
    "||": "either: `max` of the conditions",
}
_LOOKALIKES = {
    "×": "*",
    "∘": "*",
    "∗": "*",
    "−": "-",
    "–": "-",
    "—": "-",
    "÷": "/",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "²": "**2",
    "³": "**3",
    "½": "0.5",
    "∞": "inf",
    "←": "=",
    "≔": "=",
    "≜": "=",
    "…": "..",
    "\xa0": "a space",
    "；": ";",
    "，": ",",
    "（": "(",
    "）": ")",
    "{": "(",
    "}": ")",
}
TRANSPOSE_HELP = (
    "the transpose is `T(M)`, as in `T(M)@v`; the matrix of all products of the units of two vectors is `v@T(k)`"
)
LENGTH_HELP = "the length of a vector is `sqrt(sum(v*v))`"
_PRODUCT = "write `*` for a product element by element, `@` behind a matrix"
_OUTER = "write `v@T(k)` for the matrix of all products of the units of two vectors"
_HELP = {
    "•": _PRODUCT,
    "⋅": _PRODUCT,
    "'": "the value before is `h[t-1]`; there are no texts in quotes",
    '"': "there are no texts in quotes",
    "“": "there are no texts in quotes",
    "”": "there are no texts in quotes",
    ".": "functions and names stand alone: `tanh(x)`, not `torch.tanh(x)`",
    "\\": "equations are plain text, as in Python; lines are joined by an open bracket",
    "$": "equations are written in plain text, as in Python",
    "⊤": TRANSPOSE_HELP,
    "‖": LENGTH_HELP,
    "∥": "vectors are joined by `concat(a, b)`",
    "⊗": _OUTER,
    "√": "write `sqrt(v)`",
    "∑": "write `sum(v)`",
}
_PLAIN = "write the name alone, without a font"
# Commands of LaTeX; those of Greek letters and of functions are called as these are.
_LATEX = {
    "sigma": "write `sigmoid`",
    "lambda": "write `lam`",
    "odot": "write `*`",
    "circ": "write `*`",
    "ast": "write `*`",
    "otimes": _OUTER,
    "cdot": _PRODUCT,
    "times": _PRODUCT,
    "frac": "write `a/b`",
    "tilde": "write `h_tilde`",
    "hat": "write `h_hat`",
    "bar": "write `h_bar`",
    "top": "write `T(M)` for the transpose, `v@T(k)` for the matrix that two vectors make",
    "left": "write the bracket alone",
    "right": "write the bracket alone",
    **dict.fromkeys(("mathbf", "mathrm", "mathcal", "mathit", "boldsymbol", "bm", "text"), _PLAIN),
}
# What a mark above a letter is called in a name: `rnncc latex` prints `h_tilde` as an h with a tilde.
_ACCENTS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar", "\u0307": "dot"}
_ACCENTED = re.compile(rf"(\w)([{''.join(_ACCENTS)}])((?:[\d_]\w*)?)")
_POWER = re.compile("(.+?)([⁰¹²³⁴-⁹]+)")
# A time above or below a name, once its signs and digits are those of ASCII.
_TIME = re.compile(r"\(?(t(?:[-+]\d+)?)\)?")
_TRANSPOSED = ("T", "\\top", "\\intercal", "⊤")


def subscript(text: str) -> tuple[str, str]:
    """How to show `h_{t-1}`, and what to write instead: a time in square brackets, else a plain name."""
    base, _, inside = text.rstrip("}").partition("_{")
    if time := _time(inside):
        return _shown(text), f"write `{base}[{time}]`"
    plain = "".join(character for character in inside if character.isalnum() or character == "_")
    return _shown(text), f"write `{base}_{plain}`" if plain else ""


def superscript(text: str) -> tuple[str, str]:
    """How to show `h^{(t-1)}`, and what to write instead: a time in square brackets, the number of a layer in the name,
    else a power."""
    base, _, above = text.partition("^")
    inside = above.strip("{}").strip()
    if time := _time(inside):
        return _shown(text), f"write `{base}[{time}]`"
    if inside in _TRANSPOSED:
        return _shown(text), TRANSPOSE_HELP
    in_brackets = inside.startswith("(") and inside.endswith(")")
    if in_brackets and inside[1:-1].isalnum():
        return _shown(text), f"write `{base}_{inside[1:-1]}`: a power is `{base}**2`"
    if len(inside) > 40:
        return _shown(text), _FOREIGN_HELP["^"]
    power = inside if inside.isalnum() or in_brackets else f"({inside})"
    return _shown(text), f"a power is written `{base}**{power}`"


def small_letters(text: str) -> tuple[str, str]:
    """How to show `hₜ₋₁` or `Mᵀ`, and what to write instead."""
    if text.endswith("ᵀ"):
        return _shown(text), TRANSPOSE_HELP
    at = next(index for index, character in enumerate(text) if character in "ₜ⁽ᵗ")
    return _shown(text), f"write `{text[:at]}[{_time(text[at:])}]`"


def _time(written: str) -> str:
    """`t-1` for `t − 1`, `(t-1)` and `ₜ₋₁`; nothing for what is no time."""
    plain = unicodedata.normalize("NFKC", "".join(written.split()))
    for dash in "−–—":
        plain = plain.replace(dash, "-")
    found = _TIME.fullmatch(plain)
    return found[1] if found else ""


def latex_command(text: str) -> str:
    """What to write instead of `\\odot`."""
    name = text[1:]
    if name in _LATEX:
        return _LATEX[name]
    return f"write `{name}`" if name in FUNCTIONS or name in GREEK.values() else _HELP["\\"]


def foreign_help(operator: str) -> str:
    """How the language says what `operator` says elsewhere."""
    if operator in _FOREIGN_HELP:
        return _FOREIGN_HELP[operator]
    if operator.endswith("="):
        return f"an equation defines its target once: give the sum a name of its own instead of `{operator}`"
    return "there are no logical operators: `where(condition, a, b)` chooses between values"


def unknown_character(text: str) -> tuple[str, str]:
    """How to show a character, or a word with one, and what to write instead."""
    if text in _LOOKALIKES:
        return _shown(text), f"write {_LOOKALIKES[text]}" if len(
            _LOOKALIKES[text]
        ) > 3 else f"write `{_LOOKALIKES[text]}`"
    if text in _HELP:
        return _shown(text), _HELP[text]
    if (power := _POWER.fullmatch(text)) is not None:
        return _shown(text), f"a power is written `{power[1]}**{unicodedata.normalize('NFKC', power[2])}`"
    if (accented := _ACCENTED.fullmatch(unicodedata.normalize("NFD", text))) is not None:
        letter, mark, rest = accented.groups()
        return _shown(text), f"write `{_spelled(letter)}_{_ACCENTS[mark]}{rest}`"
    spelled = "".join(_spelled(character) for character in text)
    if spelled != text and spelled.isascii() and spelled.isidentifier():
        return _shown(text), f"write `{spelled}`"
    if len(text) > 1:
        return _shown(text), "names are made of Latin and Greek letters, digits and `_`"
    return _shown(text), ""


def _spelled(character: str) -> str:
    """`e` for é, `alpha` for ά, `1` for a subscript; else the character."""
    parts = unicodedata.normalize("NFKD", character)
    return "".join(GREEK.get(part, part) for part in parts if not unicodedata.combining(part))


def _shown(text: str) -> str:
    """In quotes where it can be printed, else by its number."""
    text = text if len(text) <= 40 else text[:40] + "…"
    if text.isprintable():
        return f"'{text}'" if text != "'" else "a quote"
    return " ".join(f"U+{ord(character):04X}" for character in text[:8])
