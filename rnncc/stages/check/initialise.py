"""Initialisers: `init W = xavier`, `param lam: vector = uniform(-6.9, -2.2)`, `init b_f = 1`."""

from __future__ import annotations

import math

from rnncc.ir.cell import Initialiser
from rnncc.ir.syntax import Call, Expression, Name
from rnncc.stages.check.report import Report, closest
from rnncc.stages.check.static import Statics

# Names that stand alone, and how many numbers the others take.
_PLAIN = {
    "default": Initialiser(),
    "zeros": Initialiser("constant", (0.0,)),
    "ones": Initialiser("constant", (1.0,)),
    "xavier": Initialiser("xavier"),
    "xavier_normal": Initialiser("xavier_normal"),
    "kaiming": Initialiser("kaiming"),
    "orthogonal": Initialiser("orthogonal"),
    "eye": Initialiser("eye"),
}
_NUMBERS = {"constant": 1, "uniform": 2, "normal": 2}
# What works on matrices only.
FOR_MATRICES = frozenset({"xavier", "xavier_normal", "kaiming", "orthogonal", "eye"})


def initialiser(expression: Expression, statics: Statics, report: Report) -> Initialiser:
    """The initialiser, or the default one after an error was reported."""
    match expression:
        case Name(name) if name in _PLAIN:
            return _PLAIN[name]
        case Call(name, arguments, keywords) if name in _NUMBERS:
            if len(arguments) != _NUMBERS[name] or keywords:
                wanted = "one number" if _NUMBERS[name] == 1 else "two numbers"
                report.error("RNN224", f"'{name}' takes {wanted}", expression.span)
                return Initialiser()
            values = [statics.number(argument, {}, f"an argument of '{name}'", "RNN224") for argument in arguments]
            known = tuple(float(value) for value in values if value is not None)
            if len(known) < len(values):
                return Initialiser()
            if not all(math.isfinite(value) for value in known):
                report.error("RNN224", f"the arguments of '{name}' must be finite", expression.span)
            return Initialiser(name, known)
        case Call(name) | Name(name) if name not in statics.constants and name not in ("pi", "inf"):
            known_names = [*_PLAIN, *_NUMBERS]
            message = f"unknown initialiser '{name}'"
            help = closest(name, known_names) or f"one of: a number, {', '.join(known_names)}"
            report.error("RNN224", message, expression.span, help=help)
            return Initialiser()
        case _:
            value = statics.number(expression, {}, "an initialiser", "RNN224")
            return Initialiser() if value is None else Initialiser("constant", (float(value),))
