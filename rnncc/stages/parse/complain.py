"""Says in plain words what is wrong with a statement that does not follow the grammar."""

from __future__ import annotations

import difflib
from itertools import pairwise

from lark import Token
from lark.exceptions import UnexpectedToken

from rnncc.language.diagnostics import Diagnostic
from rnncc.language.outside import COMPLEX, MEMORY, MORE_AXES, Outside
from rnncc.language.source import Source, Span
from rnncc.language.words import STATEMENTS
from rnncc.stages.parse.forms import FORMS
from rnncc.stages.parse.lexer import Statement, span_of

# Statements of other languages, and what says the same here.
_STATEMENTS = {
    "memory": MEMORY.in_help,
    "import": "a file holds all that its cells need: copy the equations into it",
    "from": "a file holds all that its cells need: copy the equations into it",
    "return": "a cell gives out its first state, or what `output NAME` names",
    "while": "a loop has a number of turns, `for l in 1..4:`; what is done stays as it is: `where(c > 0.1, new, old)`",
}
_ENDS_VALUE = ("NAME", "NUMBER", "RPAR", "RSQB")
_BEGINS_VALUE = ("NAME", "NUMBER", "LPAR")
_LOGIC = ("and", "or", "not", "is")
_MATRICES = ("W", "R")
_WORDS = {
    "CELL": "'cell'",
    "IN": "'in'",
    "ELSE": "'else'",
    "SEQUENCE": "'sequence'",
    "PLACE": "'place'",
    "OF": "'of'",
    "COMMA": "','",
    "COLON": "':'",
    "EQUAL": "'='",
    "DOTS": "'..'",
    "RPAR": "')'",
    "RSQB": "']'",
    "LSQB": "'['",
    "$END": "the end of the statement",
}
# Longer statements are explained less exactly, and in time linear in their length.
_MOST_TOKENS = 1000
_LONGEST_HELP = 200
_OPERATORS = {"PLUS", "MINUS", "STAR", "SLASH", "AT", "POWER", "COMPARE", "IF"}


def complain(source: Source, statement: Statement, error: UnexpectedToken) -> Diagnostic:
    """Make the diagnostic for what lark met in `statement`."""
    return _Complaint(source, statement, error).diagnostic()


class _Complaint:
    """One failed statement: its tokens, which of them was not expected, and where its `=` stands."""

    def __init__(self, source: Source, statement: Statement, error: UnexpectedToken) -> None:
        self.source = source
        self.tokens = statement.tokens
        self.span = statement.span
        self.error = error
        # At the end of the input lark's token is one of its own.
        self.at = next(
            (index for index, token in enumerate(self.tokens) if token is error.token),
            len(self.tokens),
        )
        self.equals = [index for index, depth in self._outer() if self.tokens[index].type == "EQUAL" and depth == 0]

    def _outer(self) -> list[tuple[int, int]]:
        """Each token's index with the number of brackets open around it."""
        depths = []
        depth = 0
        for index, token in enumerate(self.tokens):
            if token.type in ("RPAR", "RSQB"):
                depth -= 1
            depths.append((index, depth))
            if token.type in ("LPAR", "LSQB"):
                depth += 1
        return depths

    def _say(self, code: str, message: str, span: Span, label: str = "", help: str = "") -> Diagnostic:
        return Diagnostic(code, message, span, label, help, source=self.source)

    def _outside(self, outside: Outside, span: Span) -> Diagnostic:
        return self._say("RNN229", outside.message, span, "outside the language", outside.help)

    def _text(self, first: int, last: int) -> str:
        """What the tokens from `first` to before `last` are in the text, on one line."""
        if first >= last:
            return ""
        span = self._between(first, last - 1)
        return " ".join(self.source.text[span.start : span.end].split())

    def _between(self, first: int, last: int) -> Span:
        return Span(span_of(self.tokens[first]).start, span_of(self.tokens[last]).end)

    def _here(self) -> Span:
        """The unexpected token, or the last one where the statement ends too early."""
        return span_of(self.tokens[min(self.at, len(self.tokens) - 1)])

    def diagnostic(self) -> Diagnostic:
        first = self.tokens[0].type
        if first == "CELL":
            return self._header()
        if first == "FOR":
            return self._loop()
        if first == "DEF":
            return self._function()
        return self._operator() or (self._declaration() if first in FORMS else self._equation())

    def _header(self) -> Diagnostic:
        if len(self.tokens) == 1:
            label, help = "the name is missing", "a cell begins with `cell NAME`"
        else:
            label = "not expected here"
            help = "the line holds `cell` and a name: no brackets, no colon; constants are declared with `const`"
        return self._say("RNN105", "a cell's header is `cell NAME`", self._here(), label, help)

    def _loop(self) -> Diagnostic:
        help = "the form is `for l in 1..L:` with the body on the next lines, indented"
        ranges = [token for token in self.tokens if token == "range"]
        if ranges:
            help = "both ends belong to a loop and are written with two dots: `for l in 1..L:`"
            return self._say("RNN115", "a loop has no 'range'", span_of(ranges[0]), "write `A..B`", help)
        if self.at == len(self.tokens) and "COLON" in self._expected():
            return self._say(
                "RNN115", "the colon of the loop is missing", self._here(), "':' is expected after this", help
            )
        if self.at < len(self.tokens) and self.tokens[self.at - 1].type == "COLON":
            return self._say(
                "RNN115", "a loop's body stands on lines of its own", self._here(), "on the next line", help
            )
        return self._say("RNN115", f"a loop cannot be read: {self._found()}", self._here(), self._wanted(), help)

    def _function(self) -> Diagnostic:
        if not self.equals or self.at <= self.equals[0]:
            return self._declaration()
        return self._operator() or self._missing_operator() or self._general()

    def _operator(self) -> Diagnostic | None:
        """Look for a slip around one operator, in any statement."""
        if self.at >= len(self.tokens) or self.at == 0:
            return None
        token, before = self.tokens[self.at], self.tokens[self.at - 1]
        if token in _LOGIC or before in _LOGIC:
            word = token if token in _LOGIC else before
            help = "multiply conditions for both, take their `max` for either, compare with `== 0` for the opposite"
            return self._say("RNN121", f"there is no operator '{word}'", span_of(word), "unknown operator", help)
        if token.type == "ARROW":
            help = "it stands in a derivative alone: `heaviside(v, grad=u -> exp(-u**2))`"
            return self._say("RNN121", "'->' is no operator", span_of(token), "not expected here", help)
        if token.type == "EQUAL" and self.at not in self.equals:
            help = "two numbers are compared with `==`"
            return self._say("RNN112", "'=' inside an expression", span_of(token), "'==' is meant?", help)
        if (
            token.type == "COMPARE"
            and "COMPARE" not in self._expected()
            and before.type in _ENDS_VALUE
            and self.at >= 2
        ):
            if not self.equals or self.at < self.equals[0]:
                return None
            help = "comparisons do not chain: multiply two of them, `(a < b)*(b < c)`"
            return self._say("RNN110", "a second comparison", span_of(token), "not expected here", help)
        return None

    def _declaration(self) -> Diagnostic:
        kind = self.tokens[0].type
        form = FORMS[kind]
        help = f"the form is `{form}`"
        if (axes := self._axes()) is not None:
            return self._outside(MEMORY, axes) if kind == "INPUT" else self._matrix(axes)
        if kind == "INPUT" and any(token.type == "IN" for token in self.tokens):
            help = "the form is `input u in place of x`, alone on its line"
        if kind == "WEIGHTS" and self.at < len(self.tokens) and self.tokens[self.at].type == "EQUAL":
            help = self._initialised_group()
        if self.tokens[0].type == "OUTPUT" and self.at == 2 and self.tokens[2].type == "COLON":
            width = self.source.text[span_of(self.tokens[2]).end : self.span.end].strip()
            help = f"write `local {self.tokens[1]}: {width or 'P'}` for the width, and then `output {self.tokens[1]}`"
        if 1 < self.at < len(self.tokens):
            token, before = self.tokens[self.at], self.tokens[self.at - 1]
            if token.type == "PER" or before.type == "SEQUENCE":
                help = f"'per sequence' stands once, behind the width and before the default; {help}"
            if self.tokens[0].type == "INPUT" and (before, token) == ("per", "sequence"):
                message, help = "the width before 'per sequence' is missing", f"or the colon is too much; {help}"
                return self._say("RNN110", message, self._between(self.at - 1, self.at), "no width", help)
            if before == "complex" and token.type == "NAME":
                return self._outside(COMPLEX, self._between(self.at - 1, self.at))
            if token.type == "NAME" and before.type in _ENDS_VALUE and "COMMA" in self._expected():
                message = f"a comma is missing between '{before}' and '{token}'"
                return self._say("RNN110", message, self._between(self.at - 1, self.at), "two names", help)
        return self._say("RNN110", self._found(), self._here(), self._wanted(), help)

    def _initialised_group(self) -> str:
        """How `weights a: vector = uniform(-1, 1)` is written."""
        colon = max((at for at in range(self.at) if self.tokens[at].type == "COLON"), default=self.at)
        ends = [at for at, depth in self._outer() if at > self.at and depth == 0 and self.tokens[at].type == "COMMA"]
        start = self._text(self.at + 1, min([*ends, len(self.tokens)]))
        return f"a group starts as a statement of its own says: `init {self.tokens[colon - 1]} = {start}`"

    def _axes(self) -> Span | None:
        """Where a state or an input has a second axis: `S[K]`, `(C, 8, 8)` behind its colon."""
        if self.tokens[0].type not in ("STATE", "INPUT", "LOCAL") or not 1 < self.at < len(self.tokens):
            return None
        if self.tokens[self.at].type == "LSQB" and self.tokens[self.at - 1].type == "NAME":
            return self._between(self.at - 1, self._closing(self.at))
        # The outermost bracket around a comma opens last where nothing was open before.
        depths = dict(self._outer())
        if self.tokens[self.at].type == "COMMA" and depths[self.at] > 0:
            opening = max(at for at in range(self.at) if self.tokens[at].type == "LPAR" and depths[at] == 0)
            return self._between(opening, self._closing(opening))
        return None

    def _matrix(self, axes: Span) -> Diagnostic:
        written = self.source.text[axes.start : axes.end]
        kind = self.source.text[self.span.start :].split(maxsplit=1)[0]
        name, indexed, _ = written.partition("[")
        if indexed:
            help = f"write `{kind} {name}: matrix(H, K)` for a matrix, `{kind} {name}: K` for a vector"
            return self._say("RNN110", "a declaration has no index", axes, "not expected here", help)
        if written.count(",") > 1:
            return self._outside(MORE_AXES, axes)
        help = f"write `{kind} S: matrix{written}` for a matrix"
        return self._say("RNN110", "a pair is no width", axes, "no width", help)

    def _closing(self, opening: int) -> int:
        """Where the bracket closes that a token opens: brackets come in pairs here."""
        depth = dict(self._outer())[opening]
        return next(at for at, inside in self._outer() if at > opening and inside == depth)

    def _equation(self) -> Diagnostic:
        tokens = self.tokens
        if len(tokens) > 1 and tokens[0].type == tokens[1].type == "NAME":
            return self._unknown_statement()
        if tokens[0].type == "IF":
            help = "a choice stands inside an expression: `a if l == 1 else b`, or `where(condition, a, b)` at run time"
            return self._say("RNN120", "there is no statement 'if'", span_of(tokens[0]), "not a statement", help)
        if not self.equals:
            return self._without_equals()
        if self.at <= self.equals[0]:
            return self._bad_target()
        if self.at in self.equals:
            help = "two targets with the same right side are written `a, b = …`; two numbers are compared with `==`"
            return self._say("RNN112", "a second '=' in one equation", self._here(), "not expected here", help)
        return self._missing_operator() or self._general()

    def _unknown_statement(self) -> Diagnostic:
        word = str(self.tokens[0])
        close = difflib.get_close_matches(word[:40].lower(), STATEMENTS, n=1)
        stop = self.equals[0] if self.equals else 0
        if word in _STATEMENTS:
            help = _STATEMENTS[word]
        elif close:
            help = f"did you mean `{close[0]}`?"
        elif stop and all(token.type in ("NAME", "COMMA") for token in self.tokens[:stop]):
            help = "an equation is written `i = …`, with several targets `i, f = …`"
        else:
            help = f"statements begin with {', '.join(f'`{keyword}`' for keyword in STATEMENTS)}, or are equations"
        return self._say("RNN120", f"unknown statement '{word}'", span_of(self.tokens[0]), "not a statement", help)

    def _without_equals(self) -> Diagnostic:
        for index, depth in self._outer():
            if self.tokens[index] == "==" and depth == 0:
                help = "an equation is written with one `=`"
                return self._say("RNN112", "'==' compares", span_of(self.tokens[index]), "'=' is meant?", help)
        if self.tokens[0].type in ("RPAR", "RSQB", "COMMA", "EQUAL"):
            return self._general()
        help = "an equation is written `i = …`, or `h[t] = …` for a state"
        return self._say("RNN119", "an expression alone says nothing", self.span, "no '='", help)

    def _bad_target(self) -> Diagnostic:
        stop = self.equals[0]
        if stop == 0:
            return self._say("RNN118", "'=' without a target", self._here(), "nothing stands before it", "`i = …`")
        left = self._between(0, stop - 1)
        tokens = self.tokens[:stop]
        if len(tokens) >= 4 and tokens[0].type == "NAME" and tokens[1].type == "LPAR" and tokens[-1].type == "RPAR":
            inside = self.source.text[span_of(tokens[1]).end : span_of(tokens[-1]).start][:20]
            message = f"the time of '{tokens[0]}' is written in square brackets"
            help = f"write `{tokens[0]}[{inside}]`"
            if "t" not in tokens:
                help += f"; a function is defined by `def {tokens[0]}({inside}) = …`"
            return self._say("RNN113", message, left, "round brackets", help)
        help = "left of `=` stand names: `i`, `h[t]`, `n[l]`, or several of them separated by commas"
        if any((one.type, other.type) == ("RSQB", "LSQB") for one, other in pairwise(tokens)):
            help = "a state has one index, its time: states with numbers are `S1[t] = …`, `S2[t] = …`"
        return self._say("RNN118", "the left side of '=' is not a target", left, "not a name", help)

    def _missing_operator(self) -> Diagnostic | None:
        if not 0 < self.at < len(self.tokens):
            return None
        before, token = self.tokens[self.at - 1], self.tokens[self.at]
        if before.type not in _ENDS_VALUE or token.type not in _BEGINS_VALUE:
            return None
        sign = "@" if before in _MATRICES or str(before).partition("_")[0] in _MATRICES else "*"
        help = f"write `{_shown(before)}{sign}{_shown(token)}`"
        if before.type in ("RPAR", "RSQB") or token.type == "LPAR":
            help = "a product unit by unit is written with `*`, a matrix acts on a vector with `@`"
        elif sign == "*":
            help += " for a product unit by unit; a matrix acts on a vector with `@`"
        message = f"an operator is missing between {_named(before)} and {_named(token)}"
        return self._say("RNN111", message, self._between(self.at - 1, self.at), "two values side by side", help)

    def _general(self) -> Diagnostic:
        help = ""
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            before = self.tokens[self.at - 1] if self.at else None
            if token.type == "LSQB" and before is not None and before.type in ("RPAR", "RSQB"):
                help = "only a name has a time or an index: give the expression a name"
            elif token.type == "LSQB" or (token.type == "COMMA" and self._expected() == {"RSQB"}):
                help = "there are no lists: vectors are joined by `concat(a, b)`"
            elif token.type == "FOR":
                return self._comprehension()
            elif token.type == "COMMA" and before is not None and len(self._sides()) > 1:
                help = self._apart()
            elif before is not None and self._expected() in ({"NAME"}, {"EQUAL"}) and self._inside():
                help = "arguments without a name stand before those with one: `heaviside(v, grad=atan(2))`"
            elif token.type == "IF" or "ELSE" in self._expected():
                help = "a choice is written `a if l == 1 else b`; a choice within a choice needs brackets"
        return self._say("RNN110", self._found(), self._here(), self._wanted(), help)

    def _comprehension(self) -> Diagnostic:
        """`sum(u[i] for i in 1..8)`."""
        if "t" in self.tokens[self.at :]:
            return self._outside(MEMORY, span_of(self.tokens[self.at]))
        help = (
            "a loop is a statement, `for l in 1..8:`, and its body adds up, `s[l] = s[l-1] + u[l]`; or write each out, "
            "`u[1] + u[2]`"
        )
        return self._say("RNN110", self._found(), self._here(), self._wanted(), help)

    def _sides(self) -> list[str]:
        """What stands right of the `=`, cut at its commas."""
        stops = [at for at, depth in self._outer() if depth == 0 and self.tokens[at].type == "COMMA"]
        cuts = [self.equals[0], *(at for at in stops if at > self.equals[0]), len(self.tokens)] if self.equals else []
        return [self._text(first + 1, last) for first, last in pairwise(cuts)]

    def _apart(self) -> str:
        """How `c, s = cos(a), sin(a)` is written."""
        targets = [part.strip() for part in self._text(0, self.equals[0]).split(",")]
        sides = self._sides()
        each = ", ".join(f"`{target} = {side}`" for target, side in zip(targets, sides, strict=False))
        if len(targets) != len(sides) or len(each) > _LONGEST_HELP:
            return "an equation has one right side, which every target has: `i, f = …`; `i, f = split(v)` cuts a value"
        return f"write an equation for each: {each}"

    def _inside(self) -> bool:
        """Whether the unexpected token stands in a bracket."""
        return self.at < len(self.tokens) and self._outer()[self.at][1] > 0

    def _found(self) -> str:
        if self.at == len(self.tokens):
            return "the statement ends too early"
        return f"{_named(self.tokens[self.at])} is not expected here"

    def _expected(self) -> set[str]:
        # `accepts` is exact, but tries every token in turn on a copy of the parser's stack; `expected` also names
        # tokens that a later look would refuse.
        return set(self.error.accepts if len(self.tokens) <= _MOST_TOKENS else self.error.expected)

    def _wanted(self) -> str:
        expected = self._expected()
        words = []
        if expected >= {"NAME", "NUMBER"}:
            words.append("a value")
        elif "NAME" in expected:
            words.append("a name")
        if len(expected & _OPERATORS) > 2:
            words.append("an operator")
        elif "COMPARE" in expected:
            words.append("a comparison")
        words += [text for kind, text in _WORDS.items() if kind in expected]
        ended = " after this" if self.at == len(self.tokens) else ""
        if not words:
            return "not expected here"
        listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
        return f"{listed} is expected{ended}"


def _shown(token: Token) -> str:
    text = str(token)
    return text if len(text) <= 40 else text[:40] + "…"


def _named(token: Token) -> str:
    return f"'{_shown(token)}'"
