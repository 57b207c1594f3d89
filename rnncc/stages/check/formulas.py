"""Formulas of initialisers: `init A = log(1 + ones(H)@T(arange(D*num_heads)))`."""

from __future__ import annotations

from rnncc.ir import dim as dims
from rnncc.ir.dim import Dim
from rnncc.ir.formula import OPERATORS, Applied, Formula, Number, Outer, Part, Size, Vector
from rnncc.ir.syntax import Binary, Call, Expression, Name, Unary
from rnncc.language.functions import OF_WIDTHS
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.stages.check.mentions import names_in
from rnncc.stages.check.static import Statics

_BINARY = {"+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}
_FUNCTIONS = [name for name in OPERATORS if name not in (*_BINARY.values(), "neg")]

Shaped = tuple[Part, tuple[Dim, ...]]


def is_formula(expression: Expression, statics: Statics) -> bool:
    """Whether an initialiser is made of sizes, vectors of numbers or functions."""
    if isinstance(expression, Name):
        return expression.name in statics.dims
    return bool(names_in(expression) & {*OF_WIDTHS, *_FUNCTIONS, *statics.dims})


def formula(expression: Expression, statics: Statics, report: Report) -> Formula | Reported:
    """The formula, or the error that was reported."""
    made = _Maker(statics, report).make(expression)
    return made if isinstance(made, Reported) else Formula(*made, report.text(expression.span))


class _Maker:
    def __init__(self, statics: Statics, report: Report) -> None:
        self.statics, self.report = statics, report

    def make(self, expression: Expression) -> Shaped | Reported:
        match expression:
            case Name(name) if name in self.statics.dims:
                return Size(dims.named(name)), ()
            case Unary(operator, operand):
                return self.applied("neg", (operand,), expression.span) if operator == "-" else self.make(operand)
            case Binary("@", left, Call("T", (right,))):
                return self.outer(left, right, expression.span)
            case Binary(operator, left, right) if operator in _BINARY:
                return self.applied(_BINARY[operator], (left, right), expression.span)
            case Call(function, (width,), ()) if function in OF_WIDTHS:
                dim = self.statics.dim(width, f"the width of '{function}'")
                return dim if isinstance(dim, Reported) else (Vector(function, dim), (dim,))
            case Call(function, arguments, ()) if function in _FUNCTIONS and len(arguments) == OPERATORS[function]:
                return self.applied(function, arguments, expression.span)
            case Call() | Binary():
                message = "an initialiser is a formula of numbers, sizes, 'ones' and 'arange'"
                help = f"with + - * / **, v@T(u), {', '.join(_FUNCTIONS)}"
                return self.report.error("RNN224", message, expression.span, "not such a formula", help)
            case _:
                number = self.statics.number(expression, {}, "an initialiser", "RNN224")
                return number if isinstance(number, Reported) else (Number(float(number)), ())

    def applied(self, operator: str, arguments: tuple[Expression, ...], span: Span) -> Shaped | Reported:
        parts: list[Part] = []
        shape: tuple[Dim, ...] = ()
        for argument in arguments:
            made = self.make(argument)
            if isinstance(made, Reported):
                return made
            parts.append(made[0])
            if shape and made[1] and made[1] != shape:
                message = f"{shown(shape)} meets {shown(made[1])} element by element"
                return self.report.error("RNN224", message, span, "different shape")
            shape = shape or made[1]
        return Applied(operator, tuple(parts)), shape

    def outer(self, left: Expression, right: Expression, span: Span) -> Shaped | Reported:
        first, second = self.make(left), self.make(right)
        if isinstance(first, Reported):
            return first
        if isinstance(second, Reported):
            return second
        if len(first[1]) != 1 or len(second[1]) != 1:
            message = "'v@T(u)' is the matrix of the products of the units of two vectors"
            return self.report.error("RNN224", message, span, "no two vectors", "write 'ones(H)@T(arange(K))'")
        return Outer(first[0], second[0]), (*first[1], *second[1])


def shown(shape: tuple[Dim, ...]) -> str:
    """A shape in words."""
    if len(shape) == 2:
        return f"matrix({', '.join(map(dims.show, shape))})"
    return f"a vector of width {dims.show(shape[0])}" if shape else "a number"
