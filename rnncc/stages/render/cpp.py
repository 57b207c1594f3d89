"""C++ text of dims, expressions and elementwise functions.

Names of the generated code's own variables end in two underscores, which no value's name does; functions of the
library are qualified, so that no value's name hides them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import assert_never

from rnncc.ir.dim import Dim, show
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.ir.kernel import Access, TileStage
from rnncc.ir.plan import KernelPlan
from rnncc.language.operators import OPERATORS

_NAME = re.compile(r"[A-Za-z_]\w*")
# What a macro of the standard's headers, of the system's or of CUDA's may be called.
_MACRO = re.compile(r"[A-Z_]\w+|cuda\w+|errno|math_errhandling|sched_priority")
# Whole exponents up to this are products: a few roundings, and no call of the C library for every lane.
_LARGEST_POWER = 8


def dim_text(dim: Dim, sizes: Sequence[str]) -> str:
    """A dim as C++ of `sizes` and `heads`."""
    places = {name: f"sizes[{index}]" for index, name in enumerate(sizes)} | {"num_heads": "heads"}
    return _NAME.sub(lambda match: places[match.group()], show(dim)).replace("//", "/")


def macro_names(plan: KernelPlan) -> tuple[str, ...]:
    """Names of values that a header may have made a macro (`SIZE_MAX`, `M_E`): files that use them undefine them
    behind all headers. Compilers' own names, with `__`, are never macros."""
    found: set[str] = set()
    for loop in plan.loops:
        for program in (loop.forward, loop.backward):
            found.update(slot.name for slot in program.slots)
            found.update(program.constants)
            tiles = [stage for stage in program.stages if isinstance(stage, TileStage)]
            found.update(statement.target for stage in tiles for statement in stage.statements)
    return tuple(sorted(name for name in found if _MACRO.fullmatch(name) and "__" not in name))


def number_text(value: float) -> str:
    """A number of type T."""
    if math.isnan(value):
        return 'T(__builtin_nan(""))'
    if math.isinf(value):
        return "T(__builtin_inf())" if value > 0 else "T(-__builtin_inf())"
    return f"T({float(value)!r})"


def expression_text(expr: Expr, others: Mapping[str, str] = MappingProxyType({})) -> str:
    """An expression of vectors. `others`: forms of operators that take the place of the library's."""
    match expr:
        case Const(value):
            return f"rnncc::broadcast({number_text(value)})"
        case Ref(name):
            return name
        case Apply("pow", (base, Const(exponent))) if float(exponent).is_integer() and abs(exponent) <= _LARGEST_POWER:
            return f"rnncc::powi<{int(exponent)}>({expression_text(base, others)})"
        case Apply(operator, arguments):
            form = OPERATORS[operator].cpp
            if operator in others or _NAME.match(form):
                function = others.get(operator, f"rnncc::{form}")
                return function.format(*(expression_text(argument, others) for argument in arguments))
            # Infix forms take a number as it is beside a vector.
            plain = any(not isinstance(argument, Const) for argument in arguments)
            return form.format(
                *(
                    number_text(argument.value)
                    if plain and isinstance(argument, Const)
                    else expression_text(argument, others)
                    for argument in arguments
                )
            )
        case _:
            assert_never(expr)


@dataclass(frozen=True, slots=True)
class FunctionText:
    """An elementwise function. `constants`: lines before all rows; `rows`: lines at the start of a row; `lines`: of
    its body."""

    name: str
    constants: tuple[str, ...]
    rows: tuple[str, ...]
    lines: tuple[str, ...]


def function_text(
    name: str, stage: TileStage, slots: Mapping[str, int], constants: Sequence[str], source: str
) -> FunctionText:
    """The statements of a stage as a function of rows and units."""
    rows, lines = [], []
    for load in stage.loads:
        slot = slots[load.slot]
        start = f"frame__.p[{slot}] + r__ * frame__.row[{slot}]"
        match load.access:
            case Access.UNIT:
                rows.append(f"const T* const {load.slot}__p = {start};")
            case Access.HEAD:
                rows.append(f"const rnncc::Vec<T> {load.slot} = rnncc::broadcast(*({start} + head__));")
            case Access.ONE:
                rows.append(f"const rnncc::Vec<T> {load.slot} = rnncc::broadcast(*({start}));")
            case _:
                assert_never(load.access)
    for statement in stage.statements:
        if statement.stored:
            slot = slots[statement.target]
            rows.append(f"T* const {statement.target}__to = frame__.p[{slot}] + r__ * frame__.row[{slot}];")
    lines += [
        f"const rnncc::Vec<T> {load.slot} = rnncc::take<W__>({load.slot}__p, u__, n__);"
        for load in stage.loads
        if load.access is Access.UNIT
    ]
    for statement in stage.statements:
        origin = f"  // {source}:{statement.line}" if statement.line else ""
        lines.append(f"const rnncc::Vec<T> {statement.target} = {_outermost(statement.expr)};{origin}")
        if statement.stored:
            lines.append(f"rnncc::put<W__>({statement.target}__to, u__, {statement.target}, n__);")
    return FunctionText(
        name,
        tuple(
            # A surrogate's factor is read in the backward alone.
            f"[[maybe_unused]] const rnncc::Vec<T> {constant} = "
            f"rnncc::broadcast(frame__.constants[{constants.index(constant)}]);"
            for constant in stage.constants
        ),
        tuple(rows),
        tuple(lines),
    )


def _outermost(expr: Expr) -> str:
    text = expression_text(expr)
    # The table's infix forms bring their own parentheses; the outermost pair says nothing.
    if isinstance(expr, Apply) and text.startswith("(") and text.endswith(")"):
        return text[1:-1]
    return text
