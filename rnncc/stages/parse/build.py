"""One statement's tokens to its declaration, through lark's LALR parser.

Nodes are made as the parser reduces, so that no depth of nesting needs recursion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer
from lark.lexer import Lexer

from rnncc.ir.syntax import (
    Binary,
    Call,
    ConstDecl,
    DimDecl,
    EquationDecl,
    Expression,
    FunctionDecl,
    IfElse,
    Index,
    InitDecl,
    InputDecl,
    Keyword,
    Lambda,
    LocalDecl,
    Name,
    Number,
    OutputDecl,
    ParamDecl,
    StateDecl,
    Statement,
    Target,
    TypeDecl,
    Unary,
    WeightsDecl,
)
from rnncc.language.source import Span
from rnncc.stages.parse.lexer import span_of


@dataclass(frozen=True, slots=True)
class Header:
    """`cell NAME`."""

    name: Token


@dataclass(frozen=True, slots=True)
class Loop:
    """`for l in 1..L:` without its body."""

    variable: str
    first: Expression
    last: Expression
    span: Span


# What one statement gives: `state h, c` declares two.
Built = Header | Loop | tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class _Keyword:
    name: str
    value: Keyword
    span: Span


def _span(item: Any) -> Span:
    return span_of(item) if isinstance(item, Token) else item.span


def _from(children: list[Any]) -> Span:
    return Span(_span(children[0]).start, _span(children[-1]).end)


def _after(children: list[Any], kind: str) -> Any:
    """The child that follows the token of this kind, or None without one."""
    for token, following in pairwise(children):
        if isinstance(token, Token) and token.type == kind:
            return following
    return None


def _nodes(children: list[Any]) -> list[Any]:
    return [child for child in children if not isinstance(child, Token)]


def _call(children: list[Any]) -> tuple[tuple[Expression, ...], tuple[tuple[str, Keyword], ...]]:
    nodes = _nodes(children)
    positional = tuple(node for node in nodes if not isinstance(node, _Keyword))
    return positional, tuple((node.name, node.value) for node in nodes if isinstance(node, _Keyword))


class _Builder(Transformer[Token, Built]):
    """One method a rule; `children` are the rule's tokens and what its parts were built to."""

    def header(self, children: list[Any]) -> Header:
        return Header(children[1])

    def loop(self, children: list[Any]) -> Loop:
        _, variable, _, first, _, last, _ = children
        return Loop(str(variable), first, last, _from(children))

    def _declarations(self, children: list[Any]) -> tuple[Any, ...]:
        return tuple(_nodes(children))

    inputs = states = dims = consts = locals = params = groups = _declarations

    def input_item(self, children: list[Any]) -> InputDecl:
        per_sequence = any(isinstance(child, Token) and child.type == "SEQUENCE" for child in children)
        width, default = _after(children, "COLON"), _after(children, "EQUAL")
        return InputDecl(str(children[0]), width, default, per_sequence, span=_from(children))

    def renamed(self, children: list[Any]) -> tuple[InputDecl]:
        own = children[1:]
        return (InputDecl(str(own[0]), _after(own, "COLON"), in_place_of=str(own[-1]), span=_from(own)),)

    def state_item(self, children: list[Any]) -> StateDecl:
        return StateDecl(str(children[0]), _after(children, "COLON"), _after(children, "EQUAL"), _from(children))

    def output(self, children: list[Any]) -> tuple[OutputDecl]:
        return (OutputDecl(str(children[1]), span_of(children[1])),)

    def dim_item(self, children: list[Any]) -> DimDecl:
        return DimDecl(str(children[0]), _after(children, "EQUAL"), _from(children))

    def const_item(self, children: list[Any]) -> ConstDecl:
        return ConstDecl(str(children[0]), children[2], _from(children))

    def local_item(self, children: list[Any]) -> LocalDecl:
        return LocalDecl(str(children[0]), children[2], _from(children))

    def type(self, children: list[Any]) -> TypeDecl:
        return TypeDecl(str(children[0]), *_call(children[1:]), _from(children))

    def param_item(self, children: list[Any]) -> ParamDecl:
        return ParamDecl(str(children[0]), children[2], _after(children, "EQUAL"), span=_from(children))

    def buffers(self, children: list[Any]) -> tuple[ParamDecl, ...]:
        return tuple(replace(item, trained=False) for item in _nodes(children))

    def group_item(self, children: list[Any]) -> WeightsDecl:
        return WeightsDecl(str(children[0]), children[2], _from(children))

    def init(self, children: list[Any]) -> tuple[InitDecl]:
        return (InitDecl(str(children[1]), children[3], _from(children[1:])),)

    def function(self, children: list[Any]) -> tuple[FunctionDecl]:
        name, *parameters, body = children[1], *_nodes(children)
        return (FunctionDecl(str(name), tuple(parameters), body, _from(children), span_of(name)),)

    def equation(self, children: list[Any]) -> tuple[EquationDecl]:
        targets = tuple(child for child in children if isinstance(child, Target))
        return (EquationDecl(targets, children[-1], _from(children)),)

    def target(self, children: list[Any]) -> Target:
        return Target(str(children[0]), _after(children, "LSQB"), _from(children))

    def number(self, children: list[Any]) -> Number:
        text = str(children[0])
        return Number(float(text), text.isdigit(), span_of(children[0]))

    def name(self, children: list[Any]) -> Name:
        return Name(str(children[0]), span_of(children[0]))

    parameter = name

    def index(self, children: list[Any]) -> Index:
        index, *time = _nodes(children)
        return Index(str(children[0]), index, time[0] if time else None, _from(children), span_of(children[0]))

    def call(self, children: list[Any]) -> Call:
        return Call(str(children[0]), *_call(children[1:]), _from(children), span_of(children[0]))

    def keyword(self, children: list[Any]) -> _Keyword:
        return _Keyword(str(children[0]), children[2], _from(children))

    def derivative(self, children: list[Any]) -> _Keyword:
        name, _, argument, _, body = children
        value = Lambda(str(argument), body, _from(children[2:]), span_of(argument))
        return _Keyword(str(name), value, _from(children))

    def group(self, children: list[Any]) -> Expression:
        # The span of what stands in brackets holds them, so that a sum that begins with it begins there.
        inner: Expression = children[1]
        return replace(inner, span=_from(children))

    def unary(self, children: list[Any]) -> Unary:
        return Unary(str(children[0]), children[1], _from(children))

    def binary(self, children: list[Any]) -> Binary:
        left, operator, right = children
        return Binary(str(operator), left, right, _from(children))

    def choice(self, children: list[Any]) -> IfElse:
        then, _, condition, _, otherwise = children
        return IfElse(condition, then, otherwise, _from(children))


class _Tokens(Lexer):
    """Hands lark the tokens that `lex` made."""

    def __init__(self, conf: Any) -> None:
        pass

    def lex(self, data: Any) -> Iterator[Token]:  # type: ignore[override]
        return iter(data)


@cache
def _parser() -> Lark:
    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer=_Tokens,
        start="statement",
        transformer=_Builder(),
        keep_all_tokens=True,
        maybe_placeholders=False,
    )


def build(tokens: list[Token]) -> Built:
    """What a statement says.

    Raises:
        lark.exceptions.UnexpectedToken: it does not follow the grammar.
    """
    built: Built = _parser().parse(tokens)  # type: ignore[assignment]
    return built
