"""Names in TeX: Greek letters, subscripts, and words in upright or slanted letters."""

from __future__ import annotations

from rnncc.ir import dim as dims
from rnncc.ir.dim import Dim, FloorDiv
from rnncc.show.latex.pieces import Formula, text
from rnncc.show.symbols import LETTERS, accented, symbol

# Capital letters that TeX has no command for look like Latin ones.
_LATIN = dict(
    zip(
        "ΑΒΕΖΗΙΚΜΝΟΡΤΧο",
        ("A", "B", "E", "Z", "H", "I", "K", "M", "N", "O", "P", "T", "X", "o"),
        strict=True,
    )
)
_COMMANDS = {"lam": "lambda", "eps": "varepsilon"}
_SMALL = 0.72


def word(letters: str, bold: bool = False) -> Formula:
    """A name without subscripts: a letter, a Greek letter, a number or a word. `bold`: of a matrix that changes."""
    letters, accent = accented(letters)
    if bold and not accent:
        plain = word(letters)
        command = "boldsymbol" if letters in LETTERS else "mathbf"
        inside = letters if plain.tex.startswith(r"\mathit") else plain.tex
        return text(f"\\{command}{{{inside}}}", 1.1 * plain.width)
    if accent:
        below = word(letters, bold)
        return text(f"\\{accent}{{{below.tex}}}", below.width)
    if (letter := LETTERS.get(letters)) is not None:
        if letter in _LATIN:
            return text(f"\\mathrm{{{_LATIN[letter]}}}" if letter != "ο" else "o", 0.6)
        return text(f"\\{_COMMANDS.get(letters, letters)}", 0.6)
    if len(letters) == 1 or letters.isdigit():
        return text(letters, 0.55 * len(letters))
    return text(f"\\mathit{{{letters}}}", 0.5 * len(letters))


def name(written: str, *below: Formula, above: Formula | None = None, bold: bool = False) -> Formula:
    """A name with its own subscripts and further ones; `above` stands in brackets over them."""
    parts = symbol(written)
    base = word(parts.base, bold)
    under = [*map(_subscript, parts.subscripts), *below]
    tex, width = base.tex, base.width
    if under:
        tex += "_" + braced(",".join(_close(part.tex) for part in under))
    if above is not None:
        tex += f"^{{({_close(above.tex)})}}"
    small = sum(part.width + 0.3 for part in under)
    return text(tex, width + _SMALL * max(small, above.width + 0.8 if above is not None else 0))


def _close(tex: str) -> str:
    """`t-1` for `t - 1`."""
    return tex.replace(" - ", "-").replace(" + ", "+")


def braced(tex: str) -> str:
    """What stands below or above a letter: in braces, but for a single character."""
    return tex if len(tex) == 1 else f"{{{tex}}}"


def _subscript(part: str) -> Formula:
    if len(part) == 1 or part.isdigit() or part in LETTERS or accented(part)[1]:
        return word(part)
    return text(f"\\mathrm{{{part}}}", 0.5 * len(part))


def function(written: str) -> Formula:
    """The name of a function, upright."""
    if written in LETTERS or len(written) == 1:
        return word(written)
    escaped = written.replace("_", r"\_")
    return text(f"\\operatorname{{{escaped}}}", 0.5 * len(written) + 0.1)


def size(dim: Dim) -> str:
    """A width: `4H`, `\\lfloor H/2 \\rfloor`."""
    terms = ""
    for atoms, coefficient in dim.terms:
        factors = [_atom(atom) for atom in atoms]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+" if terms else ""
        terms += f" {sign} {_product(factors)}" if terms else sign + _product(factors)
    return terms or "0"


def _product(factors: list[str]) -> str:
    return r" \, ".join(factors) if any(len(factor) > 1 for factor in factors[1:]) else " ".join(factors)


def _atom(atom: str | FloorDiv) -> str:
    if isinstance(atom, FloorDiv):
        return rf"\lfloor {size(atom.numerator)} / {_divisor(atom.denominator)} \rfloor"
    return "N" if atom == dims.show(dims.HEADS) else name(atom).tex


def _divisor(dim: Dim) -> str:
    return f"({size(dim)})" if len(dim.terms) > 1 or len(dim.terms[0][0]) > 1 else size(dim)
