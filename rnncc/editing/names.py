"""The names of a text and where each stands, read from its tokens, so that a text with mistakes has them too.

A name belongs to its cell; the variables of loops, of `def` and of `u -> …` to what is inside of these. A member of a
group, `b_f`, is two names: of the group b and of the equation f.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rnncc.language.greek import in_ascii
from rnncc.language.names import FUNCTIONS
from rnncc.language.source import Source, Span
from rnncc.language.surrogates import SURROGATES
from rnncc.language.words import GROUPS, INITIALISERS, LEARNED, NUM_HEADS, NUMBERS, SIZES, TYPES
from rnncc.stages.parse.lexer import Statement, lex

# What a declaration's names are.
_DECLARED = {
    "INPUT": "input", "STATE": "state", "DIM": "dim", "CONST": "constant", "PARAM": "parameter", "BUFFER": "buffer",
    "WEIGHTS": "group",
}  # fmt: skip
# Declarations that say more of a name.
_NAMED = frozenset({"OUTPUT", "LOCAL", "INIT"})
BUILT_IN = {
    **dict.fromkeys(GROUPS, "group"), **dict.fromkeys(SIZES, "size"), **dict.fromkeys(NUMBERS, "number"),
    "x": "input", "t": "time", NUM_HEADS: "size",
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Symbol:
    """What a name of one cell means. `name` is its spelling in ASCII; `definition` is None for what is built in."""

    kind: str
    name: str
    cell: int
    definition: Span | None = None
    mentions: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mention:
    """A name at its place. Within the name of a group's member, `whole`, it is one of the two parts."""

    span: Span
    symbol: Symbol
    whole: str


@dataclass(slots=True)
class _Word:
    """A name token before it is known what it means."""

    text: str
    span: Span
    local: Symbol | None = None


@dataclass(slots=True)
class CellNames:
    """The names of one cell. `span` reaches to the next cell."""

    name: str
    span: Span
    symbols: dict[str, Symbol] = field(default_factory=dict)
    locals: list[Symbol] = field(default_factory=list)


class Index:
    """All names of a text."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.cells: list[CellNames] = []
        self.mentions: list[Mention] = []
        statements = lex(source).statements
        starts = [at for at, statement in enumerate(statements) if statement.tokens[0].type == "CELL"]
        for number, (first, end) in enumerate(pairwise([*starts, len(statements)])):
            after = statements[end].span.start if end < len(statements) else len(source.text)
            _Reader(self, number, statements[first:end], after).read()
        self.mentions.sort(key=lambda mention: mention.span)
        self._starts = [mention.span.start for mention in self.mentions]

    def at(self, offset: int) -> Mention | None:
        """The name at an offset, or directly before it."""
        index = bisect_right(self._starts, offset) - 1
        found = [each for each in self.mentions[max(index - 1, 0) : index + 1] if each.span.end >= offset]
        return found[-1] if found else None

    def cell_at(self, offset: int) -> CellNames | None:
        """The cell around an offset."""
        return next((cell for cell in self.cells if cell.span.start <= offset <= cell.span.end), None)


class _Reader:
    """Reads the statements of one cell."""

    def __init__(self, index: Index, number: int, statements: Sequence[Statement], end: int) -> None:
        self.index, self.number, self.statements = index, number, statements
        header = statements[0].tokens
        name = str(header[1]) if len(header) > 1 else ""
        self.cell = CellNames(name, Span(header[0].start_pos or 0, end))
        self.words: list[_Word] = []
        self.targets: dict[str, Symbol] = {}
        # Loops that are open: how far each is indented, and its variable.
        self.loops: list[tuple[int, Symbol]] = []

    def read(self) -> None:
        self.index.cells.append(self.cell)
        for statement in self.statements:
            while self.loops and len(statement.indent) <= self.loops[-1][0]:
                self.loops.pop()
            self._statement(statement)
        for word in self.words:
            self._resolve(word)

    def _define(self, kind: str, word: _Word) -> Symbol:
        """The symbol of a name that a statement defines: the first one, where there are several."""
        symbol = self.cell.symbols.setdefault(word.text, Symbol(kind, word.text, self.number, word.span))
        if symbol.kind == "value" and kind != "value":
            # A state may be declared below its equation.
            symbol.kind, symbol.definition = kind, word.span
        self.words.append(word)
        return symbol

    def _local(self, kind: str, word: _Word) -> Symbol:
        word.local = Symbol(kind, word.text, self.number, word.span)
        self.cell.locals.append(word.local)
        self.words.append(word)
        return word.local

    def _statement(self, statement: Statement) -> None:
        first = statement.tokens[0].type
        words = list(_words(statement))
        scope = {symbol.name: symbol for _, symbol in self.loops}
        if first in _DECLARED:
            for word, role in words:
                if role == "target":
                    self._define(_DECLARED[first], word)
                elif role != "word":
                    self.words.append(word)
            return
        if first == "CELL":
            for word, _ in words[:1]:
                # A cell's name is no name of its equations.
                self._local("cell", word)
            return
        if first == "FOR":
            for word, _ in words[:1]:
                self.loops.append((len(statement.indent), self._local("loop variable", word)))
            words = words[1:]
        if first == "DEF":
            for word, _ in words[:1]:
                self._define("function", word)
            words = words[1:]
        for word, role in words:
            if role == "parameter":
                scope[word.text] = self._local("argument", word)
            elif role == "target" and first not in _NAMED:
                self.targets.setdefault(word.text, self._define("value", word))
            elif role == "lambda":
                # Its scope ends with its bracket; a name is not used for two things in one statement.
                scope[word.text] = self._local("argument", word)
            elif role != "word":
                word.local = scope.get(word.text)
                self.words.append(word)

    def _resolve(self, word: _Word) -> None:
        symbol = word.local or self.cell.symbols.get(word.text)
        if symbol is not None:
            self._mention(word.span, symbol, word.text)
            return
        for group in sorted({*GROUPS, *self._groups()}, key=lambda name: (-len(name), name)):
            parts = self._member(word, group)
            if parts is not None:
                target, before, behind = parts
                self._mention(before, self._built_in(group), word.text)
                self._mention(behind, target, word.text)
                return
        if word.text in BUILT_IN or word.text in FUNCTIONS or word.text in SURROGATES:
            self._mention(word.span, self._built_in(word.text), word.text)

    def _groups(self) -> Iterator[str]:
        return (name for name, symbol in self.cell.symbols.items() if symbol.kind == "group")

    def _built_in(self, name: str) -> Symbol:
        kind = BUILT_IN.get(name, "function of the language")
        return self.cell.symbols.setdefault(name, Symbol(kind, name, self.number))

    def _member(self, word: _Word, group: str) -> tuple[Symbol, Span, Span] | None:
        """The equation of `b_f` or `b_n_1`, and where the group and the equation are named."""
        rest = word.text.removeprefix(f"{group}_")
        if rest == word.text:
            return None
        base, _, turn = rest.rpartition("_")
        name = rest if rest in self.targets else base if turn.isdigit() and base in self.targets else ""
        written = self.index.source.text[word.span.start : word.span.end]
        for at, character in enumerate(written):
            if name and character == "_" and in_ascii(written[:at]) == group:
                start = word.span.start + at + 1
                length = len(written) - at - 1 - (len(turn) + 1 if name != rest else 0)
                return self.targets[name], Span(word.span.start, word.span.start + at), Span(start, start + length)
        return None

    def _mention(self, span: Span, symbol: Symbol, whole: str) -> None:
        symbol.mentions.append(span)
        self.index.mentions.append(Mention(span, symbol, whole))


def _words(statement: Statement) -> Iterator[tuple[_Word, str]]:
    """The names of a statement, each with its role: a `target` that it defines, a `parameter` of a `def`, the argument
    of a `lambda`, a `word` of the language, or nothing."""
    tokens = statement.tokens
    first = tokens[0].type
    is_list = first != "NAME"
    depth, is_left = 0, True
    for at, token in enumerate(tokens):
        before = tokens[at - 1].type if at else ""
        following = tokens[at + 1].type if at + 1 < len(tokens) else ""
        if token.type == "NAME":
            begins = depth == 0 and (at == is_list or before == "COMMA") and (is_left or is_list)
            if first == "DEF" and is_left and depth:
                role = "parameter"
            else:
                role = "target" if begins else _role(first, str(token), before, following, depth)
            yield _Word(str(token), Span(token.start_pos or 0, token.end_pos or 0)), role
        is_left = is_left and not (token.type == "EQUAL" and depth == 0)
        depth += (token.type in ("LPAR", "LSQB")) - (token.type in ("RPAR", "RSQB"))


def _role(first: str, text: str, before: str, following: str, depth: int) -> str:
    if following == "ARROW":
        return "lambda"
    if before == "OF":
        # `input u in place of x`: not the x of this cell.
        return "word"
    if following == "EQUAL" and depth:
        return "word"
    if before == "COLON" and first in ("PARAM", "BUFFER", "WEIGHTS") and text in TYPES:
        return "word"
    if first in ("PARAM", "BUFFER", "INIT") and text in INITIALISERS:
        return "word"
    return "word" if first == "STATE" and text == LEARNED else ""
