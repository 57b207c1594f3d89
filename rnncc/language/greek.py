"""How names are spelled: in the text, where they may have Greek letters, and everywhere else, in ASCII.

In generated code, in the constructor's keywords and in a module's parameters, a Greek letter is spelled by its English
name, `alpha` or `Delta`. Only what is said about the text shows it as its author wrote it (`as_written`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from rnncc.language.diagnostics import Diagnostic, Label
from rnncc.language.source import Source, Span

_LETTERS = "αβγδεζηθικλμνξοπρςστυφχψω"
_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma sigma tau upsilon "
    "phi chi psi omega"
)
GREEK: dict[str, str] = dict(zip(_LETTERS, _NAMES.split(), strict=True))
GREEK |= {letter.upper(): name.capitalize() for letter, name in GREEK.items()}
# `lambda` is a word of Python.
GREEK["λ"] = "lam"
# Letters that are words of the language by themselves.
_WORDS = {"σ": "sigmoid"}
# Both spellings of these mean one thing, and may meet.
_SAME = frozenset({"sigmoid", "pi"})

_WORD = re.compile(r"#[^\n]*|[^\W\d]\w*")
_CELL = re.compile(r"^[ \t\ufeff]*cell[ \t]+\w", re.MULTILINE)


def in_ascii(word: str) -> str:
    """A word as everything but the text spells it. What is no name stays as it is: `é`, `x²`."""
    if word.isascii() or not word.isidentifier():
        return word
    plain = unicodedata.normalize("NFKC", word)
    return _WORDS.get(plain) or "".join(GREEK.get(character, character) for character in plain)


@dataclass(frozen=True, slots=True)
class Clash:
    """Two words of a cell that are spelled alike in ASCII, and where each stands first."""

    first: str
    first_span: Span
    second: str
    second_span: Span


def clashes(source: Source, cell: Span) -> list[Clash]:
    """The Greek names of a cell that meet an English one."""
    found = []
    for name, written in _words(source.text, cell.start, cell.end).items():
        # Two forms of one letter are no clash: φ and ϕ.
        apart = {unicodedata.normalize("NFKC", word): (word, span) for word, span in reversed(written.items())}
        if name not in _SAME and len(apart) > 1:
            (second, second_span), (first, first_span) = list(apart.values())[-2:]
            found.append(Clash(first, first_span, second, second_span))
    return found


def as_written(diagnostic: Diagnostic) -> Diagnostic:
    """The diagnostic with the names of its cell as their author wrote them."""
    source = diagnostic.source
    if source is None or source.text.isascii():
        return diagnostic
    names, own = _spellings(source.text, diagnostic.span.start)

    def said(text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda word: _respelled(word.group(), names, own), text)

    return replace(
        diagnostic,
        message=said(diagnostic.message),
        label=said(diagnostic.label),
        help=said(diagnostic.help),
        notes=tuple(Label(note.span, said(note.text)) for note in diagnostic.notes),
    )


def _respelled(word: str, names: Mapping[str, str], own: frozenset[str]) -> str:
    """`α` for alpha, `W_α` for W_alpha, unless the author wrote just that."""
    if word in own:
        return word
    return names.get(word) or "_".join(names.get(part, part) for part in word.split("_"))


def _spellings(text: str, place: int) -> tuple[Mapping[str, str], frozenset[str]]:
    """What the author of the cell around a place wrote for names that differ in ASCII, and its words in ASCII."""
    start, end = 0, len(text)
    for header in _CELL.finditer(text):
        if header.start() > place:
            end = header.start()
            break
        start = header.start()
    words = _words(text, start, end)
    own = frozenset(name for name, written in words.items() if name in written)
    return {name: next(iter(written)) for name, written in words.items() if name not in own}, own


@lru_cache(maxsize=8)
def _words(text: str, start: int, end: int) -> dict[str, dict[str, Span]]:
    """By their spelling in ASCII, the words of a part of a text and where each stands first."""
    found: dict[str, dict[str, Span]] = {}
    for match in _WORD.finditer(text, start, end):
        word = match.group()
        if not word.startswith("#"):
            found.setdefault(in_ascii(word), {}).setdefault(word, Span(*match.span()))
    return found
