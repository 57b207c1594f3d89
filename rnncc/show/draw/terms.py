"""Terms of a cell as short labels: what stands inside of a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from rnncc.ir import dim as dims
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
)
from rnncc.show.values import show_number

# Infix operators, and how tightly they bind.
_INFIX = {
    "lt": ("<", 1), "le": ("≤", 1), "gt": (">", 1), "ge": ("≥", 1), "eq": ("=", 1), "ne": ("≠", 1),
    "add": ("+", 2), "sub": ("−", 2), "mul": ("·", 3), "div": ("/", 3),
}  # fmt: skip
COMPARISONS = {name: sign for name, (sign, tightness) in _INFIX.items() if tightness == 1}
_SIGN, _POWER, _ATOM = 4, 5, 6
_FUNCTIONS = {
    "sigmoid": "σ",
    "heaviside": "Θ",
    "relu": "ReLU",
    "silu": "SiLU",
    "gelu": "GELU",
    "elu": "ELU",
    "logsigmoid": "log σ",
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "sqrt": "√",
    "abs": "|•|",
}


def function_label(name: str) -> str:
    """A function of the language."""
    return _FUNCTIONS.get(name, name)


def term_label(term: Term, shown: Callable[[Term], str | None], binding: int = 0) -> str:
    """The term on one line. `shown` gives the label of a term that it knows, such as a value's name."""

    def inner(part: Term, around: int = 0) -> str:
        return term_label(part, shown, around)

    if (known := shown(term)) is not None:
        return known
    match term:
        case Num(value):
            text = show_number(value).replace("-", "−").replace("inf", "∞")
            return f"({text})" if text.startswith("−") and binding > 2 else text
        case Val(name):
            return name
        case Op("neg", (operand,)):
            text = f"−{inner(operand, _SIGN)}"
            return f"({text})" if binding > 2 else text
        case Op("pow", (base, power)):
            return f"{inner(base, _ATOM)}^{{{inner(power)}}}"
        case Op("abs", (operand,)):
            return f"|{inner(operand)}|"
        case Op("sqrt", (operand,)):
            return f"√{inner(operand, _ATOM)}"
        case Op("add", (left, Num(value))) if value < 0:
            return inner(Op("sub", (left, Num(-value))), binding)
        case Op(operator, (left, right)) if operator in _INFIX:
            sign, tightness = _INFIX[operator]
            space = " " if tightness < 3 else ""
            after = tightness if operator in ("add", "mul") else tightness + 1
            text = f"{inner(left, tightness)}{space}{sign}{space}{inner(right, after)}"
            return f"({text})" if tightness < binding else text
        case Op(operator, arguments):
            return f"{function_label(operator)}({', '.join(map(inner, arguments))})"
        case Argument():
            return "u"
        case Surrogate(function, operand):
            return f"{function_label(function)}({inner(operand)})"
        case Product(matrix, operand):
            text = f"{inner(matrix, 3)} {inner(operand, _SIGN)}"
            return f"({text})" if binding > 3 else text
        case Row(function, arguments, times, places):
            extra = {"repeat": f", {times}", "roll": f", {dims.show(places)}"}.get(function, "")
            return f"{function_label(function)}({', '.join(map(inner, arguments))}{extra})"
        case Share(operand):
            return f"split({inner(operand)})"
        case Transposed(matrix):
            return f"{inner(matrix, _ATOM)}^{{T}}"
        case OfMatrix("inv", operand):
            return f"{inner(operand, _ATOM)}^{{−1}}"
        case OfMatrix(function, operand, axis):
            return f"{function_label(function)}({inner(operand)}{f', {axis}' if axis else ''})"
        case Filled("ones", dim):
            return f"1_{{{dims.show(dim)}}}"
        case Filled(function, dim):
            return f"{function}({dims.show(dim)})"
        case PerHead(operand):
            return f"heads({inner(operand)})"
        case Eye(dim):
            return f"I_{{{dims.show(dim)}}}"
        case Unflatten(operand):
            return f"unflatten({inner(operand)})"
        case Bad():
            return "?"
        case _:
            assert_never(term)
