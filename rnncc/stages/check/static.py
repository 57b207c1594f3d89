"""What is known before any size or tensor: whole numbers, numbers, sizes and time indices in the text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rnncc.ir import dim as dims
from rnncc.ir.dim import HEADS, Dim
from rnncc.ir.syntax import Binary, Call, Expression, IfElse, Index, Name, Number, Unary
from rnncc.language.names import reserved
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import article, closest
from rnncc.stages.check.mentions import names_in

# A size or an index beyond this is a slip (and would make exact arithmetic slow).
LARGEST = 2**31
# A size whose text is longer is not one that anybody wrote on purpose; the bound keeps dim arithmetic cheap.
LONGEST_DIM = 200
# Places that are made of more sizes multiplied with each other are a slip: 64 bits might not hold them.
MOST_FACTORS = 3
# The sizes that every layer has.
SIZES = frozenset({"I", "H", "num_heads"})
NAMED_NUMBERS: dict[str, float] = {"inf": math.inf, "pi": math.pi}

NumberValue = int | float
# What comes nearest to an index that changes, with and without a time in it.
_TAPS = (
    "older values by weights: 'w1*h[t-1] + w2*h[t-2]' with 'w1 = max(0, 1 - abs(d - 1))' and 'w2 = max(0, 1 - abs(d - "
    "2))' is h[t-d] where d is 1 or 2"
)
_LAST = (
    "read the last turn of a loop that has the most, 's[4]'; turns beyond n hold the value, 'where(l <= n, u, s[l-1])'"
)


@dataclass(frozen=True, slots=True)
class Time:
    """The index `t + offset`."""

    offset: int


class _NotStatic(Exception):
    """Why an expression has no value here."""

    def __init__(self, code: str, message: str, span: Span, help: str = "", *, changes: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.span, self.help = code, message, span, help
        # Whether it reads what is known at run time alone.
        self.changes = changes


class Statics:
    """Evaluates static expressions: to what they are, or to the error that was reported. `constants` are the numbers of
    `const`; reading one here makes it shaping."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.constants: dict[str, NumberValue] = {}
        self.dims: set[str] = set(SIZES)
        self.shaping: set[str] = set()
        # What has a value at run time: the kind of each name.
        self.changing: dict[str, str] = {}

    def number(
        self,
        expression: Expression,
        scope: Mapping[str, int],
        what: str,
        code: str = "RNN220",
        help: str = "",
        nearest: str = "",
    ) -> NumberValue | Reported:
        """The value of a number. `what` begins the message; `help` goes before what the error would say by itself, and
        `nearest` before both where it is made of what is known at run time alone."""
        try:
            return self._number(expression, scope)
        except _NotStatic as error:
            found = error.code if error.code != "RNN220" else code
            help = nearest if nearest and error.changes else help or error.help
            return self.report.error(found, f"{what} {error.message}", error.span, help=help)

    def integer(
        self, expression: Expression, scope: Mapping[str, int], what: str, help: str = "", nearest: str = ""
    ) -> int | Reported:
        """The value of a whole number, as `number` has it."""
        value = self.number(expression, scope, what, help=help, nearest=nearest)
        if isinstance(value, float):
            return self.report.error("RNN220", f"{what} must be a whole number, not {value}", expression.span)
        return value

    def default(self, expression: Expression, what: str) -> Dim | Reported:
        """What a size is where nobody gives it: a number, or a formula of the sizes that every layer has."""
        found: Dim | Reported
        if names_in(expression) & self.dims:
            found = self.dim(expression, what, by_heads=True)
            if not isinstance(found, Reported) and (others := dims.names(found) - SIZES):
                message = f"{what} may be a formula of H, I and num_heads; the size '{min(others)}' is chosen apart"
                help = "write a formula of these, or leave it out: then equations or the caller give the size"
                return self.report.error("RNN220", message, expression.span, help=help)
            return found
        number = self.integer(expression, {}, what)
        if isinstance(number, Reported):
            return number
        return self._positive(dims.constant(number), expression, what)

    def dim(self, expression: Expression, what: str, *, by_heads: bool = False) -> Dim | Reported:
        """A size. `by_heads`: num_heads may divide it."""
        try:
            found = self._dim(expression, by_heads)
        except _NotStatic as error:
            return self.report.error(error.code, f"{what} {error.message}", error.span, help=error.help)
        return self._positive(found, expression, what)

    def places(self, expression: Expression, scope: Mapping[str, int], what: str) -> Dim | Reported:
        """By how many places something moves: a whole number, or a formula of sizes. Both may be negative."""
        if not names_in(expression) & self.dims:
            number = self.integer(expression, scope, what)
            return number if isinstance(number, Reported) else dims.constant(number)
        try:
            found = self._places(expression, scope)
            _require_plain(found, expression.span)
            return found
        except _NotStatic as error:
            return self.report.error(error.code, f"{what} {error.message}", error.span, help=error.help)

    def _places(self, expression: Expression, scope: Mapping[str, int]) -> Dim:
        match expression:
            case Unary(operator, operand):
                found = self._places(operand, scope)
                return dims.scale(found, -1) if operator == "-" else found
            case Binary("+" | "-" as operator, left, right):
                first, second = self._places(left, scope), self._places(right, scope)
                second = dims.scale(second, -1) if operator == "-" else second
                return _dim_arithmetic("+", first, second, expression.span, by_heads=True)
            case Binary("*", left, right):
                first, second = self._places(left, scope), self._places(right, scope)
                return _dim_arithmetic("*", first, second, expression.span, by_heads=True)
            case Binary("//", left, right):
                first, second = self._places(left, scope), self._places(right, scope)
                return _dim_arithmetic("//", first, second, expression.span, by_heads=True)
            case Name(name) if name in scope:
                return dims.constant(scope[name])
            case _:
                return self._dim(expression, by_heads=True)

    def _positive(self, found: Dim, expression: Expression, what: str) -> Dim | Reported:
        known = dims.as_int(found)
        if known is not None and known < 1:
            return self.report.error("RNN223", f"{what} must be at least 1, not {known}", expression.span)
        return found

    def index(self, expression: Expression, scope: Mapping[str, int]) -> Time | int | Reported:
        """`t`, `t-1`, `t-1-d` as a Time, a loop instance as a number."""
        try:
            count, offset = self._time(expression, scope)
        except _NotStatic as error:
            nearest = _TAPS if _mentions_time(expression) else _LAST
            help = nearest if error.changes else error.help
            return self.report.error(error.code, f"the index {error.message}", error.span, help=help)
        if count not in (0, 1):
            return self.report.error("RNN216", "a time index is t or t minus a whole number", expression.span)
        return Time(offset) if count else offset

    def _number(self, expression: Expression, scope: Mapping[str, int]) -> NumberValue:
        match expression:
            case Number(value, is_integer):
                return _bounded(int(value), expression.span) if is_integer and abs(value) <= LARGEST else value
            case Name(name):
                return self._named(name, scope, expression.span)
            case Unary(operator, operand):
                value = self._number(operand, scope)
                return -value if operator == "-" else value
            case Binary(operator, left, right):
                first, second = self._number(left, scope), self._number(right, scope)
                return _arithmetic(operator, first, second, expression.span)
            case IfElse(condition, then, otherwise):
                return self._number(then if self._number(condition, scope) else otherwise, scope)
            case Call():
                raise _NotStatic("RNN220", "must be known before the cell runs; a function is not", expression.span)
            case Index():
                message = f"must be known before the cell runs; '{expression.base}' is a value of the cell"
                raise _NotStatic("RNN220", message, expression.span)

    def _named(self, name: str, scope: Mapping[str, int], span: Span) -> NumberValue:
        if name in scope:
            return scope[name]
        if name in self.constants:
            self.shaping.add(name)
            return self.constants[name]
        if name in NAMED_NUMBERS:
            return NAMED_NUMBERS[name]
        if name in self.dims:
            message = f"must be known when the cell is compiled; the size '{name}' is chosen later"
            if reserved(name) or name == "num_heads":
                formula = f"2*{name}" if name == "num_heads" else f"{name}//2"
                help = f"a formula of {name} may stand where a width does, 'state s: {formula}'; here write a number"
            else:
                help = f"declare 'const {name} = …' in place of the dim"
            raise _NotStatic("RNN220", message, span, help)
        if name == "t":
            raise _NotStatic("RNN220", "may not depend on the time t", span)
        if name in self.changing:
            message = (
                f"must be made of numbers, constants and loop variables; '{name}' is {article(self.changing[name])}"
            )
            raise _NotStatic("RNN220", message, span, changes=True)
        known = [*scope, *self.constants, *NAMED_NUMBERS]
        message = f"must be made of numbers, constants and loop variables; '{name}' is none"
        declare = "" if reserved(name) else f"declare a number: 'const {name} = 2'"
        raise _NotStatic("RNN220", message, span, closest(name, known) or declare)

    def _time(self, expression: Expression, scope: Mapping[str, int]) -> tuple[int, int]:
        """How often t is added, and the rest."""
        match expression:
            case Name("t") if "t" not in scope:
                return 1, 0
            case Unary("-", operand):
                count, offset = self._time(operand, scope)
                return -count, -offset
            case Unary("+", operand):
                return self._time(operand, scope)
            case Binary("+" | "-" as operator, left, right):
                count, offset = self._time(left, scope)
                other_count, other = self._time(right, scope)
                sign = 1 if operator == "+" else -1
                return count + sign * other_count, _bounded(offset + sign * other, expression.span)
            case _:
                if _mentions_time(expression):
                    raise _NotStatic("RNN216", "is neither t nor t minus a whole number", expression.span)
                value = self._number(expression, scope)
                if isinstance(value, float):
                    raise _NotStatic("RNN220", f"must be a whole number, not {value}", expression.span)
                return 0, value

    def _dim(self, expression: Expression, by_heads: bool) -> Dim:
        match expression:
            case Name(name) if name in self.dims:
                return dims.named(name)
            case Binary("+" | "*" | "//" as operator, left, right):
                first, second = self._dim(left, by_heads), self._dim(right, by_heads)
                return _dim_arithmetic(operator, first, second, expression.span, by_heads)
            case Name(name) if not (name in self.constants or name in NAMED_NUMBERS or name == "t"):
                known = closest(name, [*self.dims, *self.constants])
                help = known or f"'H' is the hidden size; another size is declared, 'dim {name} = 64'"
                raise _NotStatic(
                    "RNN220", f"is made of sizes and whole numbers; '{name}' is none", expression.span, help
                )
            case Number() | Name():
                value = self._number(expression, {})
                if isinstance(value, float):
                    raise _NotStatic("RNN220", f"must be a whole number, not {value}", expression.span)
                return dims.constant(value)
            case _:
                message = "must be made of I, H, num_heads, declared dims and whole numbers with + * //"
                less = isinstance(expression, Binary) and expression.operator == "-" and not by_heads
                help = "declare the smaller size, and add: 'dim M = 7', 'state u: M + 1'" if less else ""
                raise _NotStatic("RNN220", message, expression.span, help)


def _mentions_time(expression: Expression) -> bool:
    match expression:
        case Name(name):
            return name == "t"
        case Unary(_, operand):
            return _mentions_time(operand)
        case Binary(_, left, right):
            return _mentions_time(left) or _mentions_time(right)
        case _:
            return False


def _require_plain(places: Dim, span: Span) -> None:
    """Raises _NotStatic where Python and C++ might find other numbers: where '//' divides what may be negative, or
    by what may be 0, and where 64 bits may not hold it."""
    for atoms, coefficient in places.terms:
        if abs(coefficient) > LARGEST or len(atoms) > MOST_FACTORS:
            raise _NotStatic("RNN221", "may be larger than 2^63", span)
        for atom in atoms:
            if isinstance(atom, str):
                continue
            parts = (*atom.numerator.terms, *atom.denominator.terms)
            of_quotients = any(not isinstance(each, str) for factors, _ in atom.denominator.terms for each in factors)
            if of_quotients or any(factor < 0 for _, factor in parts):
                help = "write '1 - K//2' or '-(K//2)': sizes and positive numbers stand beside '//'"
                raise _NotStatic("RNN220", "divides what may be negative, or by what may be 0", span, help)
            _require_plain(atom.numerator, span)
            _require_plain(atom.denominator, span)


def _bounded(value: int, span: Span) -> int:
    if abs(value) > LARGEST:
        raise _NotStatic("RNN221", "is larger than 2^31", span)
    return value


def _arithmetic(operator: str, left: NumberValue, right: NumberValue, span: Span) -> NumberValue:
    try:
        value = _apply(operator, left, right, span)
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise _NotStatic("RNN220", f"has no value ({error})", span) from None
    if isinstance(value, complex):
        raise _NotStatic("RNN220", "is not a real number", span)
    return _bounded(value, span) if isinstance(value, int) else value


def _apply(operator: str, left: NumberValue, right: NumberValue, span: Span) -> NumberValue | complex:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "//":
            return left // right
        case "**":
            return _power(left, right)
        case "<":
            return int(left < right)
        case "<=":
            return int(left <= right)
        case ">":
            return int(left > right)
        case ">=":
            return int(left >= right)
        case "==":
            return int(left == right)
        case "!=":
            return int(left != right)
        case _:
            raise _NotStatic("RNN220", f"may not use '{operator}'", span)


def _power(left: NumberValue, right: NumberValue) -> NumberValue | complex:
    """`left ** right`, exact for whole numbers whose power is small enough to be of use."""
    if isinstance(left, int) and isinstance(right, int) and 0 <= right <= 64:
        product = 1
        for _ in range(right):
            product *= left
        return product
    power: complex = complex(float(left)) ** float(right) if left < 0 else complex(math.pow(left, right))
    return power if power.imag else power.real


def _dim_arithmetic(operator: str, left: Dim, right: Dim, span: Span, by_heads: bool) -> Dim:
    if operator == "//":
        if dims.as_int(right) is not None and (dims.as_int(right) or 0) < 1:
            raise _NotStatic("RNN223", "is divided by something that is not positive", span)
        of_matrix = right == HEADS and _is_product(left)
        if not by_heads and not of_matrix and "num_heads" in dims.names(left) | dims.names(right):
            help = "declare a dim for the units of one head: 'dim D', 'local v: D*num_heads'"
            raise _NotStatic("RNN220", "may not divide by num_heads, or divide it", span, help)
        found = dims.floor_divide(left, right)
    else:
        found = dims.add(left, right) if operator == "+" else dims.multiply(left, right)
    value = dims.as_int(found)
    if value is not None and abs(value) > LARGEST:
        raise _NotStatic("RNN221", "is larger than 2^31", span)
    if len(found.terms) > LONGEST_DIM or len(dims.show(found)) > LONGEST_DIM:
        raise _NotStatic("RNN221", "is too long a formula", span)
    return found


def _is_product(width: Dim) -> bool:
    """Whether it may count the elements of a matrix: `H*K`, `4*K`."""
    ((atoms, coefficient),) = width.terms if len(width.terms) == 1 else (((), 0),)
    return len(atoms) + (coefficient > 1) > 1
