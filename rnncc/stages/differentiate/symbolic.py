"""Local derivatives of one equation, through sympy.

sympy sees one equation at a time, differentiates its arithmetic and finds what several derivatives share. Derivatives
of other operators come from the operator table. Forward code never passes through here.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Collection
from functools import cache
from itertools import count
from typing import Any

import sympy

from rnncc.ir.expr import Apply, Const, Expr, Ref, apply, references
from rnncc.language.diagnostics import InternalError
from rnncc.language.operators import OPERATORS
from rnncc.stages.differentiate.normalise import is_arithmetic

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": python.lt,
    "le": python.le,
    "gt": python.gt,
    "ge": python.ge,
    "eq": python.eq,
    "ne": python.ne,
}


@cache
def _function(name: str) -> Any:
    """The operator as a sympy function that stays as it is, but for comparisons of numbers and settled choices."""

    def fold(cls: Any, *arguments: Any) -> Any:
        if name in _COMPARISONS and all(argument.is_Number for argument in arguments):
            return sympy.Integer(int(bool(_COMPARISONS[name](*arguments))))
        if name == "where" and arguments[0].is_Number:
            return arguments[1] if arguments[0] != 0 else arguments[2]
        return None

    return type(name, (sympy.Function,), {"eval": classmethod(fold)})


class _Functions:
    """What the table's derivatives call `f`."""

    def __getattr__(self, name: str) -> Any:
        return _function(name)


class Translation:
    """Expr to sympy and back. What sympy must not look into (comparisons, infinities) goes in as a symbol."""

    def __init__(self, constants: Collection[str]) -> None:
        self._constants = constants
        self._hidden: dict[str, Expr] = {}

    def _hide(self, expr: Expr) -> Any:
        name = repr(expr)
        self._hidden[name] = expr
        return sympy.Symbol(name)

    def to_sympy(self, expr: Expr) -> Any:
        """The arithmetic of an expression; anything else as symbols."""
        match expr:
            case Ref(name):
                return sympy.Symbol(name)
            case Const(value) if abs(value) < float("inf"):
                return sympy.Rational(value)  # exact
            case Apply(operator, arguments) if is_arithmetic(expr, self._constants):
                terms = [self.to_sympy(argument) for argument in arguments]
                match operator:
                    case "add":
                        return terms[0] + terms[1]
                    case "sub":
                        return terms[0] - terms[1]
                    case "mul":
                        return terms[0] * terms[1]
                    case "div" if terms[1] == 0:
                        # A constant that is compiled in: the quotient is what IEEE arithmetic makes of it.
                        return terms[0] * self._hide(apply("div", Const(1.0), arguments[1]))
                    case "div":
                        return terms[0] / terms[1]
                    case "neg":
                        return -terms[0]
                    case "pow":
                        return terms[0] ** terms[1]
            case _:
                pass
        return self._hide(expr)

    def to_expr(self, value: Any) -> Expr:
        """Back, in an order that depends on names only."""
        if value.is_Symbol:
            return self._hidden.get(value.name, Ref(value.name))
        if value.is_Number:
            return Const(_number(value))
        if value.is_Add:
            return self._sum(value)
        if value.is_Mul or value.is_Pow:
            return self._product(value)
        if value.is_Function:
            arguments = tuple(self.to_expr(argument) for argument in value.args)
            return _settle(Apply(type(value).__name__, arguments))
        raise InternalError(f"sympy made {value!r} of a derivative")

    def _sum(self, value: Any) -> Expr:
        terms = sorted(value.args, key=sympy.default_sort_key)
        negative = [term.could_extract_minus_sign() for term in terms]
        kept = [self.to_expr(term) for term, minus in zip(terms, negative, strict=True) if not minus]
        taken = [self.to_expr(-term) for term, minus in zip(terms, negative, strict=True) if minus]
        if not kept:
            return apply("neg", _fold("add", taken))
        return _fold("sub", [_fold("add", kept), *taken])

    def _product(self, value: Any) -> Expr:
        coefficient, rest = value.as_coeff_Mul()
        above: list[Expr] = []
        below: list[Expr] = []
        choices: list[Apply] = []
        for factor in sorted(sympy.Mul.make_args(rest), key=_factor_key):
            base, exponent = factor.as_base_exp()
            if not exponent.is_Integer:
                raise InternalError(f"sympy made the power {factor!r} of a derivative")
            expr = self.to_expr(base)
            match expr:
                case Apply("where", (_, a, b)) if exponent == 1 and Const(0.0) in (a, b):
                    choices.append(expr)
                case _:
                    (above if exponent > 0 else below).extend([expr] * abs(int(exponent)))
        minus = coefficient < 0
        number = abs(_number(coefficient))
        if number != 1.0:
            above.insert(0, Const(number))
        result = _fold("mul", above) if above else Const(1.0)
        if below:
            result = apply("div", result, _fold("mul", below))
        for choice in choices:
            # d * where(c, 1, 0) is where(c, d, 0).
            condition, a, b = choice.arguments
            result = apply("where", condition, _times(result, a), _times(result, b))
        return apply("neg", result) if minus else result


def _number(value: Any) -> float:
    """The exact number as a float: numbers whose product in sympy is beyond all floats make an infinity."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _factor_key(factor: Any) -> Any:
    # The cotangent stands first.
    symbols = sorted(symbol.name for symbol in factor.free_symbols)
    return (not (factor.is_Symbol and factor.name.startswith("d_")), sympy.default_sort_key(factor), symbols)


def _times(left: Expr, right: Expr) -> Expr:
    if Const(0.0) in (left, right):
        return Const(0.0)
    if Const(1.0) in (left, right):
        return left if right == Const(1.0) else right
    return apply("mul", left, right)


def _settle(expr: Apply) -> Expr:
    match expr:
        case Apply("where", (_, a, b)) if a == b:
            return a
        case _:
            return expr


def _fold(operator: str, terms: list[Expr]) -> Expr:
    result = terms[0]
    for term in terms[1:]:
        result = apply(operator, result, term)
    return result


def contributions_of(
    expr: Expr, wanted: tuple[str, ...], constants: Collection[str]
) -> tuple[tuple[tuple[str, Expr], ...], tuple[tuple[str, Expr], ...]]:
    """What `t = expr` gives to the cotangents of its operands `wanted`; the names are those of an `Equation`
    (derivatives.py), whose `Derivative` it returns in two parts."""
    translation = Translation(constants)
    d = sympy.Symbol("d_")
    partials = _partials("t", expr, wanted, translation)
    products = [(name, d * partial) for name, partial in partials if partial != 0]
    symbols = (sympy.Symbol(f"d_s{number}") for number in count())
    shared, reduced = sympy.cse([product for _, product in products], symbols=symbols, order="canonical")
    temporaries = tuple((symbol.name, translation.to_expr(value)) for symbol, value in shared)
    pairs = tuple((name, translation.to_expr(value)) for (name, _), value in zip(products, reduced, strict=True))
    return temporaries, pairs


def _partials(target: str, expr: Expr, wanted: tuple[str, ...], translation: Translation) -> list[tuple[str, Any]]:
    if not isinstance(expr, Apply) or is_arithmetic(expr, translation._constants):
        value = translation.to_sympy(expr)
        return [(name, sympy.diff(value, sympy.Symbol(name))) for name in wanted]
    arguments = [translation.to_sympy(argument) for argument in expr.arguments]
    derivatives = OPERATORS[expr.operator].derivative(_Functions(), sympy.Symbol(target), *arguments)
    totals: dict[str, Any] = {name: sympy.Integer(0) for name in wanted}
    for argument, derivative in zip(expr.arguments, derivatives, strict=True):
        if isinstance(argument, Ref) and argument.name in totals:
            totals[argument.name] += derivative
        elif isinstance(argument, Apply) and set(references(argument)) & set(wanted) and derivative != 0:
            # Only an opaque call stands here: nothing flows through it.
            assert not OPERATORS[argument.operator].smooth
    return list(totals.items())
