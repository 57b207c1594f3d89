"""Initialisers: `init W = xavier`, `param lam: vector = uniform(-6.9, -2.2)`, `init b_f = 1`."""

from __future__ import annotations

import math

from rnncc.ir.cell import Initialiser
from rnncc.ir.syntax import Call, Expression, Name
from rnncc.language.report import Report, Reported
from rnncc.language.spelling import closest
from rnncc.language.words import INITIALISERS
from rnncc.stages.check.formulas import formula, is_formula
from rnncc.stages.check.mentions import names_in
from rnncc.stages.check.static import Statics

_CONSTANTS = {
    "default": Initialiser(),
    "zeros": Initialiser("constant", (0.0,)),
    "ones": Initialiser("constant", (1.0,)),
}
# Names that stand alone, and how many numbers the others take.
_PLAIN = {name: _CONSTANTS.get(name, Initialiser(name)) for name, count in INITIALISERS.items() if not count}
_NUMBERS = {name: count for name, count in INITIALISERS.items() if count}

_INSTEAD = dict.fromkeys(
    ("frozen", "fixed"),
    "what is not trained is a buffer: 'buffer M: matrix = orthogonal'",
)

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


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
            values = [_value(argument, f"an argument of '{name}'", statics, report) for argument in arguments]
            known = tuple(value for value in values if not isinstance(value, Reported))
            if len(known) < len(values):
                return Initialiser()
            _check_range(name, known, expression, report)
            return Initialiser(name, known)
        case _ if is_formula(expression, statics) and names_in(expression).isdisjoint(_NUMBERS):
            made = formula(expression, statics, report)
            return Initialiser() if isinstance(made, Reported) else Initialiser("formula", formula=made)
        case Call(name) | Name(name) if name not in statics.constants and name not in ("pi", "inf"):
            known_names = [*_PLAIN, *_NUMBERS]
            message = f"unknown initialiser '{name}'"
            help = _INSTEAD.get(name) or _of_another(expression, report) or closest(name, known_names)
            help = help or f"one of: a number, {', '.join(known_names)}"
            report.error("RNN224", message, expression.span, help=help)
            return Initialiser()
        case _:
            value = _value(expression, "an initialiser", statics, report)
            return Initialiser() if isinstance(value, Reported) else Initialiser("constant", (value,))


def _of_another(expression: Expression, report: Report) -> str:
    """What to write for a function of an initialiser, `log(uniform(1, 16))`."""
    match expression:
        case Call(name, (Call(inner) as drawn,)) if inner in _NUMBERS:
            how = f"'param u: vector = {report.text(drawn.span)}' and the equation 'v = {name}(u)'"
            return f"a parameter starts with what is drawn: {how}; or set its numbers in the layer's gate_parameters()"
        case _:
            return ""


def beyond_float32(value: float) -> str:
    """What is wrong with a finite number that float32, the dtype that layers have by default, does not hold."""
    too_large = math.isfinite(value) and abs(value) > LARGEST_FLOAT32
    return "is beyond float32, which ends at 3.4e38" if too_large else ""


def _value(expression: Expression, what: str, statics: Statics, report: Report) -> float | Reported:
    """A number that a parameter begins with, or that says between which; infinities and NaN would never train."""
    number = statics.number(expression, {}, what, "RNN224")
    if isinstance(number, Reported):
        return number
    value = float(number)
    wrong = beyond_float32(value) if math.isfinite(value) else "must be finite"
    if wrong:
        return report.error("RNN224", f"{what} {wrong}", expression.span)
    return value


def _check_range(name: str, values: tuple[float, ...], call: Call, report: Report) -> None:
    """Refuse what torch cannot draw from."""
    match name, values:
        case "uniform", (low, high) if low > high:
            report.error("RNN224", "the lower bound of 'uniform' is above the upper one", call.span)
        case "uniform", (low, high) if high - low > LARGEST_FLOAT32:
            report.error("RNN224", "the bounds of 'uniform' are farther apart than float32 can say", call.span)
        case "normal", (_, deviation) if deviation < 0:
            report.error("RNN224", "the standard deviation of 'normal' is negative", call.arguments[1].span)
        case "spectral", (radius,) if radius <= 0:
            report.error("RNN224", f"a spectral radius lies above 0, not at {radius:g}", call.arguments[0].span)
        case _:
            pass
