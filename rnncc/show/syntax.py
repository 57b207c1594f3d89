"""A cell as it was written, printed in one canonical spelling (the text parses to an equal CellDecl)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from rnncc.ir.syntax import (
    Binary,
    Call,
    CellDecl,
    ConstDecl,
    DimDecl,
    EquationDecl,
    Expression,
    ForDecl,
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

# How tightly operators bind, as in Python. `**` binds tighter than a sign, and to the right.
_BINDING = {
    "<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1, "+": 2, "-": 2, "*": 3, "/": 3, "//": 3, "@": 3, "**": 5,
}  # fmt: skip
_UNARY = 4


def show_expression(expression: Expression, binding: int = 0) -> str:
    """The expression; `binding` is how tightly what stands around it binds."""
    match expression:
        case Number(value, is_integer):
            return str(int(value)) if is_integer else repr(value)
        case Name(name):
            return name
        case Index(base, index, time):
            return f"{base}[{show_expression(index)}]" + ("" if time is None else f"[{show_expression(time)}]")
        case Call(function, arguments, keywords):
            return f"{function}({_arguments(arguments, keywords)})"
        case Unary(operator, operand):
            text = f"{operator}{show_expression(operand, _UNARY)}"
            return f"({text})" if binding > _UNARY else text
        case Binary(operator, left, right):
            tightness = _BINDING[operator]
            first, second = (tightness + 1, _UNARY) if operator == "**" else (tightness, tightness + 1)
            if tightness == 1:
                first = 2
            space = " " if tightness < 3 else ""
            text = f"{show_expression(left, first)}{space}{operator}{space}{show_expression(right, second)}"
            return f"({text})" if tightness < binding else text
        case IfElse(condition, then, otherwise):
            text = f"{show_expression(then, 1)} if {show_expression(condition, 1)} else {show_expression(otherwise)}"
            return f"({text})" if binding else text
        case _:
            assert_never(expression)


def _arguments(arguments: tuple[Expression, ...], keywords: tuple[tuple[str, Keyword], ...]) -> str:
    named = [f"{name}={_keyword(value)}" for name, value in keywords]
    return ", ".join([*(show_expression(argument) for argument in arguments), *named])


def _keyword(value: Keyword) -> str:
    return f"{value.argument} -> {show_expression(value.body)}" if isinstance(value, Lambda) else show_expression(value)


def _type(written: TypeDecl) -> str:
    inside = _arguments(written.arguments, written.keywords)
    return f"{written.name}({inside})" if inside else written.name


def _target(target: Target) -> str:
    return target.name if target.index is None else f"{target.name}[{show_expression(target.index)}]"


def _with(name: str, width: Expression | None, value: Expression | None = None) -> str:
    text = name if width is None else f"{name}: {show_expression(width)}"
    return text if value is None else f"{text} = {show_expression(value)}"


def _statement(statement: Statement) -> Iterator[str]:
    match statement:
        case InputDecl(name, width, default, per_sequence, replaced):
            words = " per sequence" if per_sequence else f" in place of {replaced}" if replaced else ""
            start = "" if default is None else f" = {show_expression(default)}"
            yield f"input {_with(name, width)}{words}{start}"
        case StateDecl(name, width, initial):
            yield f"state {_with(name, width, initial)}"
        case OutputDecl(name):
            yield f"output {name}"
        case DimDecl(name, value):
            yield f"dim {_with(name, None, value)}"
        case ConstDecl(name, value):
            yield f"const {_with(name, None, value)}"
        case LocalDecl(name, width):
            yield f"local {_with(name, width)}"
        case ParamDecl(name, written, initial, trained):
            start = "" if initial is None else f" = {show_expression(initial)}"
            yield f"{'param' if trained else 'buffer'} {name}: {_type(written)}{start}"
        case WeightsDecl(name, written):
            yield f"weights {name}: {_type(written)}"
        case InitDecl(name, value):
            yield f"init {_with(name, None, value)}"
        case FunctionDecl(name, parameters, body):
            yield f"def {name}({', '.join(each.name for each in parameters)}) = {show_expression(body)}"
        case EquationDecl(targets, expression):
            yield f"{', '.join(_target(target) for target in targets)} = {show_expression(expression)}"
        case ForDecl(variable, first, last, body):
            yield f"for {variable} in {show_expression(first)}..{show_expression(last)}:"
            for inner in body:
                yield from (f"    {line}" for line in _statement(inner))
        case _:
            assert_never(statement)


def show_declaration(decl: CellDecl) -> str:
    """The cell's text, without a final newline."""
    lines = [f"# {line}".rstrip() for line in decl.comment.splitlines()]
    lines.append(f"cell {decl.name}")
    for statement in decl.statements:
        lines += _statement(statement)
    return "\n".join(lines)
