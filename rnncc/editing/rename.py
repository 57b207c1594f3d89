"""Gives a name another spelling at all its places, or says why that would change what the cell means."""

from __future__ import annotations

from collections.abc import Sequence

from rnncc.editing.analysis import Analysis, analyse
from rnncc.editing.names import BUILT_IN, Mention
from rnncc.language.diagnostics import Severity
from rnncc.language.greek import in_ascii
from rnncc.language.names import reserved
from rnncc.language.source import Source, Span
from rnncc.language.words import EVERYWHERE, STATEMENTS
from rnncc.stages.parse.lexer import lex


class RefusedError(Exception):
    """Why a name stays as it is, in a sentence for the user."""


def can_be_renamed(mention: Mention) -> bool:
    """Whether a name is its author's. A group R that the text declares is still the built-in one; an x is the cell's
    own where another input stands in its place."""
    symbol = mention.symbol
    own = symbol.name not in BUILT_IN or (symbol.name == "x" and symbol.kind != "input")
    return symbol.definition is not None and own


def rename(analysis: Analysis, mention: Mention, name: str) -> list[Span]:
    """Where the new name goes: the places of the old one, in the order of the text.

    Raises:
        RefusedError: the name is built in, the new one is none or is taken, or the cell would mean something else.
    """
    symbol = mention.symbol
    if not can_be_renamed(mention):
        raise RefusedError(f"'{symbol.name}' is a name of the language")
    _check_name(analysis, mention, name)
    places = sorted(symbol.mentions)
    text = _replaced(analysis.source.text, places, name)
    after = analyse(analysis.source.name, text)
    shift = len(name)
    moved, by = [], 0
    for place in places:
        moved.append(Span(place.start + by, place.start + by + shift))
        by += shift - (place.end - place.start)
    found = next((each.symbol for each in after.index.mentions if each.span == moved[0]), None)
    if found is None or sorted(found.mentions) != moved:
        raise RefusedError(f"'{name}' would be taken for another name of the cell")
    errors = [each for each in after.diagnostics if each.severity is Severity.ERROR]
    if errors and analysis.made is not None:
        raise RefusedError(f"with '{name}', {errors[0].message}")
    return places


def _check_name(analysis: Analysis, mention: Mention, name: str) -> None:
    tokens = [token for statement in lex(Source("name", f"cell {name}")).statements for token in statement.tokens]
    is_name = len(tokens) == 2 and tokens[1].type == "NAME" and tokens[1].end_pos == len(f"cell {name}")
    if not is_name or lex(Source("name", name)).diagnostics or name in (*EVERYWHERE, *STATEMENTS):
        raise RefusedError(f"'{name}' is no name: use Latin and Greek letters, digits and '_'")
    spelled, symbol = in_ascii(name), mention.symbol
    if symbol.kind != "cell" and (why := reserved(spelled, symbol.kind)):
        raise RefusedError(f"'{name}' is {why}")
    cell = analysis.index.cells[symbol.cell]
    # Two functions may call their arguments alike.
    others = [] if symbol in cell.locals else [each for each in cell.locals if each.kind != "cell"]
    taken = {each.name for each in (*cell.symbols.values(), *others) if each is not symbol}
    if spelled in taken and symbol.kind != "cell":
        raise RefusedError(f"the cell has a name '{name}' already")


def _replaced(text: str, places: Sequence[Span], name: str) -> str:
    for place in reversed(places):
        text = text[: place.start] + name + text[place.end :]
    return text
