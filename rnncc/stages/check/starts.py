"""What states start at: `state m = -inf`, `state S: matrix(K, K) = 0.1*eye`; and the defaults of inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rnncc.ir import dim as dims
from rnncc.ir.dim import ONE
from rnncc.ir.syntax import Binary, Call, Expression, Name, Number, Unary
from rnncc.ir.typed import Shape
from rnncc.language.report import Report, Reported
from rnncc.language.words import EYE, LEARNED
from rnncc.stages.check.initialise import beyond_float32
from rnncc.stages.check.mentions import names_in
from rnncc.stages.check.static import Statics


@dataclass(frozen=True, slots=True)
class Wanted:
    """A number that a text must state. `what` it is begins a message; the code, the help and the label of an error."""

    what: str
    code: str
    help: str
    label: str


def held(expression: Expression, wanted: Wanted, statics: Statics) -> float:
    """A number that the dtype of layers holds, or 0 after an error."""
    value = statics.number(expression, {}, wanted.what, wanted.code, wanted.help)
    if isinstance(value, Reported):
        return 0.0
    wrong = "is not a number" if math.isnan(value) else beyond_float32(float(value))
    if wrong:
        statics.report.error(wanted.code, f"{wanted.what} {wrong}", expression.span, wanted.label)
    return float(value)


def start(name: str, shape: Shape, expression: Expression | None, statics: Statics) -> tuple[float | None, bool]:
    """The number that a state starts at, None where it is learned, and whether it stands on the diagonal alone."""
    if expression is None:
        return 0.0, False
    if isinstance(expression, Name) and expression.name == LEARNED:
        return None, False
    help = "a number, -inf or 'learned'"
    if shape.is_matrix:
        help = f"{help}; a square matrix may start at 'eye' or a multiple of it"
    wanted = Wanted(f"the initial value of '{name}'", "RNN225", help, "no number to start from")
    if diagonal := _is_diagonal(expression):
        expression = _factor(name, shape, expression, statics.report)
    return held(expression, wanted, statics), diagonal


def _is_diagonal(expression: Expression) -> bool:
    """Whether an initial value is a multiple of the identity, or meant to be."""
    match expression:
        case Name(name) | Call(name):
            return name == EYE
        case Unary(_, operand):
            return _is_diagonal(operand)
        case Binary("*" | "/", left, right):
            return _is_diagonal(left) or _is_diagonal(right)
        case _:
            return False


def _factor(name: str, shape: Shape, expression: Expression, report: Report) -> Expression:
    """The number by which the identity is multiplied. Reports what is no such start."""
    if shape.width != (shape.columns or ONE) or not shape.is_matrix:
        sides = (dims.show(side) for side in (shape.width, shape.columns or ONE))
        what = f"matrix({', '.join(sides)})" if shape.is_matrix else "a vector"
        message = f"'{EYE}' starts square matrices; '{name}' is {what}"
        help = "widths are compared by name, so that K is not H" if shape.is_matrix else "a vector starts at a number"
        report.error("RNN225", message, expression.span, "not square", help)
    return _without_eye(expression, report)


def _without_eye(expression: Expression, report: Report) -> Expression:
    one = Number(1.0, True, expression.span)
    match expression:
        case Name(name) if name == EYE:
            return one
        case Call(name) if name == EYE:
            message, help = "the state says the size of the identity", f"write '{EYE}' alone"
            report.error("RNN225", message, expression.span, "no size here", help)
            return one
        case Unary(operator, operand):
            return Unary(operator, _without_eye(operand, report), expression.span)
        case Binary("*" | "/" as operator, left, right) if EYE in names_in(left):
            return Binary(operator, _without_eye(left, report), right, span=expression.span)
        case Binary("*" as operator, left, right):
            return Binary(operator, left, _without_eye(right, report), span=expression.span)
        case _:
            return expression
