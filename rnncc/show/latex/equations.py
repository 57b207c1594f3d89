"""The equations of a cell as the rows of an `align` environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from rnncc.ir.syntax import (
    Call,
    ConstDecl,
    DimDecl,
    EquationDecl,
    ForDecl,
    FunctionDecl,
    InitDecl,
    InputDecl,
    LocalDecl,
    OutputDecl,
    ParamDecl,
    StateDecl,
    Statement,
    WeightsDecl,
    walk,
)
from rnncc.ir.syntax import Target as Written
from rnncc.show.latex.expression import ANY_GATE, Writer
from rnncc.show.latex.functions import function_name
from rnncc.show.latex.names import braced, name
from rnncc.show.latex.pieces import Formula, Piece, lines, side_by_side, text
from rnncc.show.latex.scope import Names, Target, statements
from rnncc.show.symbols import Symbol, symbol

# How wide an equation may be, in em of a 10 point font: a page's 6.3 inches are 45, and its number needs some.
WIDEST = 40.0
_INDENT = 2.0


@dataclass(frozen=True, slots=True)
class _Row:
    """`left = right`, and the loops that it stands in."""

    left: Formula
    right: Formula
    loops: tuple[Formula, ...] = ()


def align(names: Names, used: set[str]) -> str:
    """The `align` environment. `used` gets the names of the functions that are written."""
    rows = [row for each in names.written.statements for row in _rows(each, names, used)]
    widest = max(row.left.width if row.left.width <= WIDEST / 2 else 0.0 for row in rows)
    body = " \\\\\n".join("  " + _broken(row, widest) for row in rows)
    return f"\\begin{{align}}\n{body}\n\\end{{align}}"


def _rows(statement: Statement, names: Names, used: set[str]) -> Iterator[_Row]:
    match statement:
        case EquationDecl():
            yield from _equation(statement, names, used)
        case FunctionDecl(written, parameters, body):
            own = frozenset(each.name for each in parameters)
            writer = Writer(names, ANY_GATE, arguments=own, used=used)
            called = function_name(written)
            if written in names.gated:
                called = side_by_side(text(f"{called.tex}_*", called.width + 0.5))
            inside = ", ".join(name(each.name).tex for each in parameters)
            yield _Row(text(f"{called.tex}({inside})", called.width + len(parameters) + 1), writer.write(body))
        case ForDecl(variable, first, last, body):
            writer = Writer(names, ANY_GATE, used=used)
            start, end = writer.write(first).tex, writer.write(last).tex
            between = f"{start}, \\dots, {end}" if start != end else start
            loop = text(f"{name(variable).tex} = {between}", 6.0)
            for inner in body:
                yield from (replace(row, loops=(loop, *row.loops)) for row in _rows(inner, names, used))
        case (
            InputDecl()
            | StateDecl()
            | OutputDecl()
            | DimDecl()
            | ConstDecl()
            | LocalDecl()
            | ParamDecl()
            | WeightsDecl()
            | InitDecl()
        ):
            # The text below the equations says what these say.
            return
        case _:
            assert_never(statement)


def _equation(equation: EquationDecl, names: Names, used: set[str]) -> Iterator[_Row]:
    """A row for every target, each with its own parameters; one for all targets of `split`, unless it has such too."""
    expression = equation.expression
    whole = isinstance(expression, Call) and expression.function == "split"
    rows = []
    for target in equation.targets:
        plain = Writer(names, ANY_GATE, used=used)
        left = plain.defined(Target(target.name), target.index)
        round_ = None
        if target.index is not None and target.name not in {state.name for state in names.typed.states}:
            round_ = plain.write(target.index)
        writer = Writer(names, Target(target.name), round_, used=used)
        rows.append(_Row(left, writer.write(expression)))
    if whole and len({row.right.tex for row in rows}) > 1:
        # Each target has parameters of its own, and gets its part of another value.
        rows = [
            replace(row, right=side_by_side(row.right, text(f"_{braced(str(number))}", 0.4)))
            for number, row in enumerate(rows, 1)
        ]
    elif whole and len(rows) > 1:
        rows = [_Row(_tuple([row.left for row in rows], equation.targets), rows[0].right)]
    yield from rows


def _tuple(parts: list[Formula], targets: tuple[Written, ...]) -> Formula:
    """`(z, r, n)`; `(s_1, \\dots, s_{16})` where many targets are numbered."""
    symbols = [symbol(target.name) for target in targets]
    first = symbols[0].subscripts[0] if symbols[0].subscripts else ""
    if len(parts) > 4 and first.isdigit():
        numbered = [Symbol(symbols[0].base, (str(number),)) for number in range(int(first), int(first) + len(parts))]
        if symbols == numbered:
            parts = [parts[0], text(r"\dots", 1.0), parts[-1]]
    pieces = [text("(", 0.4), parts[0]]
    for part in parts[1:]:
        pieces += [text(",", 0.3), Formula((Piece(" ", 0.3, 0),)), part]
    return side_by_side(*pieces, text(")", 0.4))


def _broken(row: _Row, widest: float) -> str:
    """The row in as many lines as it needs; only the last one has a number."""
    if row.left.width > WIDEST / 2:
        # The right side stands below.
        above = " \\notag \\\\\n  &\\quad ".join(lines(row.left, WIDEST - widest, WIDEST - widest))
        below = _broken(replace(row, left=text("", 0.0)), widest).strip().replace("&=", "&{} =", 1)
        return f"&{above} \\notag \\\\\n  {below}"
    loops = "".join(rf", \quad {loop.tex}" for loop in row.loops)
    room = WIDEST - widest - 1.5
    last = sum(loop.width + 1.5 for loop in row.loops)
    broken = lines(row.right, room - last, room - last - _INDENT)
    return f"{row.left.tex} &= " + " \\notag \\\\\n  &\\qquad {} ".join(broken) + loops


def surrogates(names: Names) -> Iterator[tuple[tuple[Target, ...], Call]]:
    """The calls of step functions with `grad=`, and the targets of the equation around them."""

    for statement in statements(names.written.statements):
        if isinstance(statement, EquationDecl):
            targets, inside = tuple(Target(target.name) for target in statement.targets), statement.expression
        elif isinstance(statement, FunctionDecl):
            targets, inside = (), statement.body
        else:
            continue
        for node in walk(inside):
            if isinstance(node, Call) and any(key == "grad" for key, _ in node.keywords):
                yield targets, node
