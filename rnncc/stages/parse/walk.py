"""Looks through a statement's tree, without recursion, for what the grammar cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from rnncc.ir.syntax import (
    DEEPEST,
    Binary,
    Call,
    ConstDecl,
    DimDecl,
    EquationDecl,
    ForDecl,
    FunctionDecl,
    InitDecl,
    InputDecl,
    Keyword,
    LocalDecl,
    Name,
    OutputDecl,
    ParamDecl,
    StateDecl,
    Statement,
    TypeDecl,
    WeightsDecl,
    children,
)
from rnncc.language.diagnostics import Diagnostic
from rnncc.language.source import Source
from rnncc.stages.parse.build import Built, Header, Loop


def findings(built: Built, source: Source) -> list[Diagnostic]:
    """Nesting deeper than the limit, calls that are meant as a time (`h(t-1)`), arguments given twice."""
    found: list[Diagnostic] = []
    stack = [(root, 1) for root in _roots(built)]
    too_deep = False
    while stack:
        node, depth = stack.pop()
        if depth > DEEPEST:
            if not too_deep:
                message = f"operators are nested or chained more than {DEEPEST} deep"
                help = "give a part of the expression a name, in an equation of its own"
                found.append(Diagnostic("RNN116", message, node.span, f"level {depth}", help, source=source))
            too_deep = True
            continue
        if isinstance(node, Call) and _is_time(node):
            text = source.text[node.arguments[0].span.start : node.arguments[0].span.end]
            message = f"the time of '{node.function}' is written in square brackets"
            help = f"write `{node.function}[{text}]`"
            found.append(Diagnostic("RNN113", message, node.span, "round brackets", help, source=source))
        if isinstance(node, Call):
            found.extend(_repeated(node, source))
        stack.extend((child, depth + 1) for child in children(node))
    return found


def _is_time(call: Call) -> bool:
    """`h(t)`, `h(t - 1)`: no function takes the time."""
    if len(call.arguments) != 1 or call.keywords:
        return False
    match call.arguments[0]:
        case Name("t") | Binary("+" | "-", Name("t"), _):
            return True
        case _:
            return False


def _repeated(call: Call, source: Source) -> Iterator[Diagnostic]:
    names = [name for name, _ in call.keywords]
    for index, (name, value) in enumerate(call.keywords):
        if name in names[:index]:
            message = f"the argument '{name}' of '{call.function}' is given twice"
            yield Diagnostic("RNN110", message, value.span, "the second one", source=source)


def _roots(built: Built) -> Iterator[Keyword]:
    match built:
        case Header():
            return
        case Loop(_, first, last):
            yield first
            yield last
        case tuple():
            for statement in built:
                yield from _expressions(statement)
        case _:
            assert_never(built)


def _expressions(statement: Statement) -> Iterator[Keyword]:
    match statement:
        case OutputDecl():
            return
        case DimDecl(_, value):
            if value is not None:
                yield value
        case InputDecl(_, width, initial) | StateDecl(_, width, initial):
            yield from (part for part in (width, initial) if part is not None)
        case ConstDecl(_, value) | LocalDecl(_, value) | InitDecl(_, value):
            yield value
        case FunctionDecl(_, _, body):
            yield body
        case ParamDecl(_, kind, initial):
            yield from _type(kind)
            if initial is not None:
                yield initial
        case WeightsDecl(_, kind):
            yield from _type(kind)
        case EquationDecl(targets, expression):
            yield from (target.index for target in targets if target.index is not None)
            yield expression
        case ForDecl(_, first, last, body):
            yield first
            yield last
            for inner in body:
                yield from _expressions(inner)
        case _:
            assert_never(statement)


def _type(kind: TypeDecl) -> Iterator[Keyword]:
    yield from kind.arguments
    yield from (value for _, value in kind.keywords)
