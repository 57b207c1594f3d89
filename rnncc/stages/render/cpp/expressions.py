"""C++ text of expressions.

Names of the generated code's own variables end in two underscores, which no value's name does; functions of the
library are qualified, so that no value's name hides them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import assert_never

from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.language.operators import OPERATORS
from rnncc.stages.render.notation import without_brackets

_NAME = re.compile(r"[A-Za-z_]\w*")
# Powers with whole exponents up to this become products: they round a few times more, but call no C library for every
# lane.
_LARGEST_POWER = 8


def number_text(value: float) -> str:
    """A number of type T."""
    if math.isnan(value):
        return "rnncc::not_a_number<T>()"
    if math.isinf(value):
        return "rnncc::infinity<T>()" if value > 0 else "T(-rnncc::infinity<T>())"
    return f"T({float(value)!r})"


def expression_text(expr: Expr, others: Mapping[str, str] = MappingProxyType({})) -> str:
    """An expression of vectors. `others` has forms of operators that take the place of the library's."""
    return without_brackets(_operand(expr, others))


def _operand(expr: Expr, others: Mapping[str, str]) -> str:
    """An expression that may stand beside an operator: the table's infix forms bring their own brackets."""
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
                    number_text(argument.value) if plain and isinstance(argument, Const) else _operand(argument, others)
                    for argument in arguments
                )
            )
        case _:
            assert_never(expr)
