"""Cuts a text into statements of tokens: comments, brackets, indentation and unknown characters are dealt with here.

A statement ends with its line, unless a bracket is open, or with `;`. What is wrong is collected; a statement in which
something is wrong is marked `broken` and not parsed further, so that one slip gives one message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from lark import Token

from rnncc.ir.syntax import DEEPEST
from rnncc.language.diagnostics import Diagnostic, Label
from rnncc.language.greek import in_ascii
from rnncc.language.outside import COMPLEX
from rnncc.language.source import Source, Span
from rnncc.language.words import EVERYWHERE, OF, PER, PLACE, SEQUENCE, STATEMENTS
from rnncc.stages.parse.characters import (
    FOREIGN,
    LENGTH_HELP,
    TRANSPOSE_HELP,
    foreign_help,
    latex_command,
    small_letters,
    subscript,
    superscript,
    unknown_character,
)

LONGEST_NAME = 64

_EVERYWHERE = {word: word.upper() for word in EVERYWHERE}
_SYMBOLS = {
    "+": "PLUS",
    "-": "MINUS",
    "*": "STAR",
    "/": "SLASH",
    "//": "SLASH",
    "@": "AT",
    "**": "POWER",
    "..": "DOTS",
    "->": "ARROW",
    "<": "COMPARE",
    "<=": "COMPARE",
    ">": "COMPARE",
    ">=": "COMPARE",
    "==": "COMPARE",
    "!=": "COMPARE",
    "=": "EQUAL",
    ",": "COMMA",
    ":": "COLON",
    "(": "LPAR",
    ")": "RPAR",
    "[": "LSQB",
    "]": "RSQB",
    "⊙": "STAR",
    "·": "AT",
}
_ALIASES = {"⊙": "*", "·": "@"}
_CLOSING = {"LPAR": "RPAR", "LSQB": "RSQB"}
_SHOWN = {"LPAR": "(", "LSQB": "[", "RPAR": ")", "RSQB": "]"}

_TOKEN = re.compile(
    r"(?P<space>[ \t\ufeff]+)"
    r"|(?P<newline>\r\n|\n|\r)"
    r"|(?P<comment>\#[^\r\n]*)"
    r"|(?P<subscript>[^\W\d]\w*?_\{[^{}\r\n]*\})"
    r"|(?P<superscript>[^\W\d]\w*\^(?:\{[^{}\r\n]*\}|\(\s*t\s*(?:[-+−–—]\s*\d+\s*)?\)))"
    # hₜ₋₁, the same above the line, and Mᵀ.
    r"|(?P<small>[^\W\d]\w*?(?:ₜ(?:[₊₋][₀-₉]+)?|⁽?ᵗ(?:[⁺⁻][⁰¹²³⁴-⁹]+)?⁾?|ᵀ\b))"
    # A mark above a letter, as of `h̃`, belongs to the name.
    r"|(?P<word>[^\W\d](?:\w|[\u0300-\u036f])*)"
    r"|(?P<number>(?:[0-9]+(?:\.(?!\.)[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    rf"|(?P<foreign>{FOREIGN})"
    r"|(?P<symbol>->|\*\*|//|\.\.|[<>=!]=|[-+*/@<>=,:()\[\]⊙·])"
    r"|(?P<semicolon>;)"
    r"|(?P<command>\\[A-Za-z]+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_TRANSPOSED = re.compile(r"(?:\.|\^\{?\\?)(?:T|top)\b")
_BARS = re.compile(r"(?P<bar>\|\|?|[‖∥])(?P<inside>[^|‖∥\r\n]{1,80})(?P=bar)")
# Behind the `;` of `[h; x]`: what leads to the `]`.
_LIST_GOES_ON = re.compile(r"(?:[^\[\];\r\n]|\[[^\[\];\r\n]*\]|;)*+\]")
# What follows a number's digits without a space and so belongs to the same, malformed, number.
_NUMBER_TAIL = re.compile(r"(?:\.(?!\.)[\w.]*|_\w*|[xXoObB][0-9a-fA-F]\w*|[eE](?!\w)|(?<![\d.].)(?<=1)[ijJ]\b)")
_IMAGINARY = re.compile(r"1[ijJ]")
# A line like this inside an open bracket begins a new statement: the bracket was forgotten.
_DECLARATION = re.compile(rf"[ \t]*+(?:{'|'.join(STATEMENTS)})[ \t]++[^\W\d]")
_EQUATION = re.compile(r"[ \t]*+\w++(?:\[[^\]\n]*+\])?(?:[ \t]*+,[ \t]*+\w++(?:\[[^\]\n]*+\])?)*+[ \t]*+=(?!=)")


@dataclass(slots=True)
class Statement:
    """The tokens of one statement, and the white space before its line. A broken one is not to be parsed."""

    tokens: list[Token]
    indent: str
    broken: bool = False

    @property
    def span(self) -> Span:
        return Span(self.tokens[0].start_pos or 0, self.tokens[-1].end_pos or 0)


@dataclass(slots=True)
class Lexed:
    """The statements of a text in order, its whole-line comments by line number, and where each line starts."""

    source: Source
    statements: list[Statement] = field(default_factory=list)
    comments: dict[int, str] = field(default_factory=dict)
    lines_with_code: set[int] = field(default_factory=set)
    trailing_comments: dict[int, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def span_of(token: Token) -> Span:
    """Where a token stands."""
    return Span(token.start_pos or 0, token.end_pos or 0)


class _Lexer:
    """The state of one run over a text."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.result = Lexed(source)
        self.tokens: list[Token] = []
        self.brackets: list[Token] = []
        self.broken = False
        self.too_deep = False
        self.list_until = 0
        self.indent = ""
        self.line = 1

    def run(self) -> Lexed:
        text = self.source.text
        at_line_start = True
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            assert match is not None  # the last alternative takes any character
            kind, end = match.lastgroup, match.end()
            if kind == "newline":
                self.line += 1
                at_line_start = True
                if not self.brackets or self._forgotten(end):
                    self._finish()
            elif kind == "space":
                pass
            elif kind == "comment":
                kept = self.result.comments if at_line_start else self.result.trailing_comments
                kept[self.line] = match.group()[1:].removeprefix(" ").rstrip()
                # Line numbers count `\n` only where the text has no other line ends; read.decode sees to that.
            elif kind == "semicolon":
                if not self._joins(end):
                    self._close_forgotten()
                    self._finish()
            else:
                if at_line_start and not self.brackets:
                    self.indent = text[_line_start(text, position) : position].lstrip("\ufeff")
                at_line_start = False
                end = self._token(str(kind), match)
            position = end
        self._close_forgotten()
        self._finish()
        return self.result

    def _report(self, code: str, message: str, span: Span, label: str = "", help: str = "", *notes: Label) -> None:
        self.broken = True
        self.result.diagnostics.append(
            Diagnostic(code, message, span, label, help, notes, source=self.source),
        )

    def _token(self, kind: str, match: re.Match[str]) -> int:
        """Takes one token; returns where the next one begins."""
        text, start, end = match.group(), match.start(), match.end()
        if kind == "number":
            tail = _NUMBER_TAIL.match(self.source.text, end)
            end = tail.end() if tail else end
            self._number(self.source.text[start:end], Span(start, end), tail is not None)
        elif kind == "word":
            self._word(text, Span(start, end))
        elif kind == "subscript":
            self._push("OTHER", text, Span(start, end))
            label, help = subscript(text)
            self._report("RNN108", f"{label} means nothing here", Span(start, end), "a LaTeX subscript", help)
        elif kind in ("superscript", "small"):
            self._push("OTHER", text, Span(start, end))
            label, help = superscript(text) if kind == "superscript" else small_letters(text)
            self._report("RNN108", f"{label} means nothing here", Span(start, end), "not plain text", help)
        elif kind == "symbol":
            self._push(_SYMBOLS[text], _ALIASES.get(text, text), Span(start, end))
            self._bracket(self.tokens[-1])
        elif (bars := self._bars(start)) is not None:
            end = bars.end()
            self._push("OTHER", bars.group(), Span(start, end))
            help = f"write `abs({bars['inside'].strip()})`" if bars["bar"] == "|" else LENGTH_HELP
            self._report("RNN108", f"'{bars.group()}' means nothing here", Span(start, end), "bars", help)
        elif kind == "foreign":
            message = f"'{text}' is not an operator of the language"
            help = TRANSPOSE_HELP if _TRANSPOSED.match(self.source.text, start) else foreign_help(text)
            self._push("OTHER", text, Span(start, end))
            self._report("RNN121", message, Span(start, end), "unknown operator", help)
        elif kind == "command":
            self._push("OTHER", text, Span(start, end))
            message = f"'{text}' means nothing here"
            self._report("RNN108", message, Span(start, end), "a command of LaTeX", latex_command(text))
        else:
            label, help = unknown_character(text)
            if text == "." and _TRANSPOSED.match(self.source.text, start):
                help = TRANSPOSE_HELP
            elif text == "." and self.source.text[end : end + 1] in ("*", "/"):
                help = f"`{self.source.text[end]}` works element by element; `@` is the product with a matrix"
            self._push("OTHER", text, Span(start, end))
            self._report("RNN108", f"{label} means nothing here", Span(start, end), "unknown character", help)
        return end

    def _bars(self, start: int) -> re.Match[str] | None:
        """`|v|` or `‖v‖`, where a value may begin: behind one, a bar is an operator of other languages."""
        if self.tokens and self.tokens[-1].type in ("NAME", "NUMBER", "RPAR", "RSQB", "OTHER"):
            return None
        return _BARS.match(self.source.text, start)

    def _joins(self, end: int) -> bool:
        """Whether the `;` before `end` stands in `[h; x]`. The first one of a list is reported."""
        if end <= self.list_until:
            return True
        inside = bool(self.brackets) and self.brackets[-1].type == "LSQB"
        if not inside or not (rest := _LIST_GOES_ON.match(self.source.text, end)):
            return False
        # A list is looked at once, however many `;` it has.
        self.list_until = rest.end()
        help = "vectors are joined by `concat(a, b)`"
        self._report("RNN108", "';' means nothing in brackets", Span(end - 1, end), "ends a statement", help)
        return True

    def _push(self, kind: str, text: str, span: Span) -> None:
        self.tokens.append(Token(kind, text, start_pos=span.start, end_pos=span.end))
        self.result.lines_with_code.add(self.line)

    def _number(self, text: str, span: Span, malformed: bool) -> None:
        self._push("NUMBER", text, span)
        if _IMAGINARY.fullmatch(text):
            self._report("RNN229", COMPLEX.message, span, "an imaginary number", COMPLEX.help)
        elif malformed:
            self._report(
                "RNN117", f"'{text[:40]}' is not a number", span, "malformed", "numbers look like 2, 0.5 or 1e-5"
            )
        elif float(text) == float("inf"):
            self._report("RNN117", "the number is too large", span, "more than 1.8e308", "infinity is written 'inf'")
        elif text.isdigit() and float(text) > 2**53:
            help = "write it with an exponent if it is not meant to be whole"
            self._report("RNN117", "the whole number is too large", span, "more than 2**53", help)

    def _word(self, text: str, span: Span) -> None:
        written, text = text, in_ascii(text)
        if not text.isascii():
            label, help = unknown_character(written)
            self._report("RNN108", f"{label} cannot be a name", span, "not Latin or Greek", help)
        elif len(text) > LONGEST_NAME:
            message = f"the name '{text[:20]}…' is {len(text)} characters long"
            self._report("RNN122", message, span, f"at most {LONGEST_NAME} are allowed")
        self._push(_EVERYWHERE.get(text, "NAME"), text, span)

    def _bracket(self, token: Token) -> None:
        if token.type in _CLOSING:
            self.brackets.append(token)
            if len(self.brackets) > DEEPEST and not self.too_deep:
                self.too_deep = True
                help = "give a part of the expression a name, in an equation of its own"
                message = f"brackets are nested more than {DEEPEST} deep"
                self._report("RNN116", message, span_of(token), f"bracket {DEEPEST + 1}", help)
        elif token.type in _CLOSING.values():
            if not self.brackets:
                self._report("RNN109", f"'{token}' closes nothing", span_of(token), "no bracket is open here")
                return
            opening = self.brackets.pop()
            if _CLOSING[opening.type] != token.type:
                # If it closes one further out, those between were forgotten: said once.
                while self.brackets and _CLOSING[self.brackets[-1].type] != token.type:
                    self.brackets.pop()
                self.brackets = self.brackets[:-1]
                wanted = _SHOWN[_CLOSING[opening.type]]
                note = Label(span_of(opening), "opened here")
                message = f"'{token}' does not close '{opening}'"
                self._report("RNN109", message, span_of(token), f"'{wanted}' is expected", "", note)

    def _forgotten(self, position: int) -> bool:
        """Whether the line at `position`, inside a bracket, begins a new statement; then the bracket is closed."""
        text = self.source.text
        forgotten = _DECLARATION.match(text, position) is not None or (
            # After `(` or `,` a line like `grad = …` is a keyword argument.
            self.tokens[-1].type not in ("LPAR", "LSQB", "COMMA") and _EQUATION.match(text, position) is not None
        )
        if forgotten:
            self._close_forgotten()
        return forgotten

    def _close_forgotten(self) -> None:
        if self.brackets:
            opening = self.brackets[-1]
            closing = _SHOWN[_CLOSING[opening.type]]
            self._report("RNN109", f"'{opening}' is never closed", span_of(opening), f"'{closing}' is missing")
            self.brackets.clear()

    def _finish(self) -> None:
        """Ends the statement."""
        if self.tokens:
            _retag(self.tokens)
            self.result.statements.append(Statement(self.tokens, self.indent, self.broken))
        self.tokens = []
        self.brackets.clear()
        self.broken = self.too_deep = False


def _line_start(text: str, position: int) -> int:
    return max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1


def _retag(tokens: list[Token]) -> None:
    """A statement's first word is a keyword, unless what follows shows a target of that name (`output = …`)."""
    first = tokens[0]
    if first.type == "NAME" and first in STATEMENTS:
        following = tokens[1].type if len(tokens) > 1 else ""
        # `def` names nothing: a bracket behind it lacks the name.
        if following not in ("EQUAL", "COMMA", "LSQB", "LPAR") or (first, following) == ("def", "LPAR"):
            first.type = first.upper()
    if first.type == "INPUT":
        _retag_input(tokens)


def _retag_input(tokens: list[Token]) -> None:
    """`per` behind a name or a width, where no name can stand, and `sequence` behind that are words of the language; so
    are `place` behind `in`, and `of` behind that. Elsewhere they are names."""
    for before, token in pairwise(tokens):
        if token == PER and before.type in ("NAME", "NUMBER", "RPAR"):
            token.type = "PER"
        elif token == SEQUENCE and before.type == "PER":
            token.type = "SEQUENCE"
        elif token == PLACE and before.type == "IN":
            token.type = "PLACE"
        elif token == OF and before.type == "PLACE":
            token.type = "OF"


def comment_lines(lexed: Lexed, line: int) -> tuple[int, ...]:
    """The lines of the comment of a cell whose header is on this one: of whole-line comments directly above it, or else
    of the comment behind it and of those directly below it."""
    first = line
    while first - 1 in lexed.comments:
        first -= 1
    if first < line:
        return tuple(range(first, line))
    last = line
    while last + 1 in lexed.comments:
        last += 1
    return tuple(range(line if line in lexed.trailing_comments else line + 1, last + 1))


def lex(source: Source) -> Lexed:
    """The statements of a text. Time is linear in its length."""
    return _Lexer(source).run()
