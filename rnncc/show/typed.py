"""A typed cell as text. It reads like the program it is, with the shape of each value:

    cell GRU
    state h: H = 0
    group W: matrix: W_r: H x I, W_z: H x I, W_n: H x I
    equations
      r = sigmoid(W_r @ x + R_r @ h[t-1] + b_r)            # H

What the equations say of the past stands as the language writes it: `h[t-1]`, where the value is called h__1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.dim import ONE
from rnncc.ir.structure import DENSE, BlockDiagonal
from rnncc.ir.term import (
    Argument,
    Bad,
    Eye,
    Filled,
    Num,
    OfMatrix,
    Op,
    PerHead,
    Product,
    Row,
    Share,
    Surrogate,
    Term,
    Transposed,
    Unflatten,
    Val,
    walk,
)
from rnncc.ir.typed import Group, ParameterType, Shape, Typed
from rnncc.language.source import NOWHERE
from rnncc.language.surrogates import GIVEN
from rnncc.show.values import (
    commented,
    show_applied,
    show_constraint,
    show_declared,
    show_initialiser,
    show_number,
    show_shape,
    show_sparsity,
    show_structured,
)

_PAST = re.compile(r"(?P<base>\w+?)__(?:delay(?P<delay>\d+)__)?(?P<step>\d+)")


def show_typed(cell: Typed) -> Iterator[str]:
    """Declarations, parameters, equations in the order of the text, and what the sizes must fulfil."""
    yield from show_declared(cell)
    for group in cell.groups:
        yield from _group(group, cell)
    for param in cell.params:
        start = show_initialiser(param.initialiser)
        kind = "param" if param.trained else "buffer"
        yield f"{kind} {param.name}: {_type(param.type)}: {shown_shape(cell.shapes[param.name])} = {start}"
    for init in cell.inits:
        yield f"init {init.name} = {show_initialiser(init.initialiser)}"
    for constraint in cell.constraints:
        yield f"constraint {show_constraint(constraint)} ({constraint.why})"
    yield "equations"
    for equation in cell.equations:
        text = f"  {equation.target} = {show_term(equation.term)}"
        yield commented(text, shown_shape(cell.shapes[equation.target]))
    yield f"output {cell.output}"


def show_term(term: Term, binding: int = 0) -> str:
    """The term in the language's notation; `binding` is how tightly what stands around it binds."""
    match term:
        case Num(value):
            text = show_number(value)
            return f"({text})" if text.startswith("-") and binding else text
        case Val(name):
            return _value(name)
        case Op(operator, arguments):
            return show_applied(operator, arguments, binding, show_term)
        case Argument():
            return "u"
        case Surrogate(function, operand, surrogate, slope):
            grad = (
                show_term(slope)
                if surrogate == GIVEN
                else f"{surrogate.removeprefix('surrogate_')}({show_term(slope)})"
            )
            arrow = "u -> " if any(isinstance(part, Argument) for part in walk(slope)) else ""
            return f"{function}({show_term(operand)}, grad={arrow}{grad})"
        case Product(matrix, operand):
            return show_applied("matmul", (matrix, operand), binding, show_term)
        case Row(function, arguments, times, places):
            if function == "roll":
                vector, *fill = map(show_term, arguments)
                return f"roll({vector}, {dims.show(places)}{''.join(f', fill={each}' for each in fill)})"
            extra = f", {times}" if function == "repeat" else ""
            return f"{function}({', '.join(map(show_term, arguments))}{extra})"
        case Share(operand, _, index):
            return f"split({show_term(operand)})[{index}]"
        case Transposed(matrix):
            return f"T({show_term(matrix)})"
        case OfMatrix(function, operand, axis):
            moved = f", {dims.show(term.places)}" if function == "roll" else ""
            along = f", axis={axis}" if axis else ""
            came = "".join(f", fill={show_term(each)}" for each in term.fill)
            return f"{function}({show_term(operand)}{moved}{along}{came})"
        case Eye(dim):
            return f"eye({dims.show(dim)})"
        case Unflatten(operand, rows, columns):
            return f"unflatten({show_term(operand)}, {dims.show(rows)}, {dims.show(columns)})"
        case Filled(function, dim):
            return f"{function}({dims.show(dim)})"
        case PerHead(operand, groups):
            return f"heads({show_term(operand)}{'' if groups == ONE else f', {dims.show(groups)}'})"
        case Bad():
            return "?"
        case _:
            assert_never(term)


def _value(name: str) -> str:
    """A value as the language writes it: `h[t-1]` for h__1, `h[t-3]` for h__delay2__1, `x[t-2]` for x__2."""
    past = _PAST.fullmatch(name)
    if past:
        return f"{past['base']}[t-{int(past['delay'] or 0) + int(past['step'])}]"
    # A size as a number.
    return name.removesuffix(dims.number_of(""))


def _group(group: Group, cell: Typed) -> Iterator[str]:
    members = [member.name for member in cell.members if member.group == group.name]
    if members or group.span != NOWHERE:
        shown = ", ".join(f"{name}: {shown_shape(cell.shapes[name])}" for name in members)
        yield f"group {group.name}: {_type(group.type)}: {shown or 'none'}"


def _type(type_: ParameterType) -> str:
    return show_structured(type_.kind, type_.structure) + show_sparsity(type_.sparsity)


def shown_shape(shape: Shape) -> str:
    """`H`; of a matrix `H x I`; of one that changes with the step `H x K in num_heads blocks`."""
    columns = shape.columns if shape.kind in ("matrix", "changing") else None
    return show_shape(shape.width, columns, BlockDiagonal(dims.HEADS) if shape.kind == "changing" else DENSE)
