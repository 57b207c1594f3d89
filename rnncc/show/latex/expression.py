"""Expressions of a cell as formulas of TeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from rnncc.ir.syntax import Binary, Call, Expression, IfElse, Index, Keyword, Lambda, Name, Number, Unary
from rnncc.language.operators import OPERATORS
from rnncc.show.latex.functions import AROUND, function_name
from rnncc.show.latex.names import braced, name
from rnncc.show.latex.pieces import (
    CASES,
    FRACTION,
    Formula,
    in_brackets,
    operator,
    side_by_side,
    text,
    unbroken,
)
from rnncc.show.latex.scope import Names, Target, is_time
from rnncc.show.values import show_number

# How tightly what is written binds: cases least of all, single names most.
_CASE, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(6)
_COMPARISONS = {"<": "<", "<=": r"\leq", ">": ">", ">=": r"\geq", "==": "=", "!=": r"\neq"}
_ODOT, _SPACE = r"\odot", r"\, "
# Functions with one argument whose value is a number, or one number per head.
_REDUCTIONS = ("sum", "mean", "norm", "logsumexp")
# The gate that a function of the cell's own is called for.
ANY_GATE = Target("*")


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the expressions of one equation.

    names       the cell
    target      what the equation defines: groups stand for its parameters
    round       the index of the target, where a loop defines it
    arguments   names of the parameters of a `def`, or of a derivative's argument
    used        functions that were written
    """

    names: Names
    target: Target
    round: Formula | None = None
    arguments: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)

    def write(self, expression: Expression, binding: int = _CASE) -> Formula:
        """The formula of an expression; it is in brackets where what stands around it binds more tightly."""
        formula, own = self._written(expression)
        return in_brackets(formula) if own < binding else formula

    def _written(self, expression: Expression) -> tuple[Formula, int]:
        match expression:
            case Number(value):
                return number(value), _ATOM
            case Name(written):
                return self._name(written), _ATOM
            case Index():
                return self._index(expression), _ATOM
            case Call():
                return self._call(expression)
            case Unary(sign, operand):
                return side_by_side(text(sign, 0.8), self.write(operand, _SIGN)), _SUM
            case Binary():
                return self._binary(expression)
            case IfElse(condition, then, otherwise):
                if isinstance(otherwise, Number) and not otherwise.value:
                    # As papers have it: 1_{l = 1} W x.
                    said = self.condition(condition)
                    one = unbroken(rf"\mathbf{{1}}_{{{said.tex}}} ", 0.8 + 0.7 * said.width, ())
                    return side_by_side(one, self.write(then, _PRODUCT)), _PRODUCT
                return self._cases(((then, condition),), otherwise), _CASE
            case _:
                assert_never(expression)

    def keyword(self, value: Keyword) -> Formula:
        """What stands after `grad=`: a function of one argument is written with an arrow."""
        if not isinstance(value, Lambda):
            return self.write(value)
        inner = replace(self, arguments=self.arguments | {value.argument})
        return side_by_side(name(value.argument), operator(r"\mapsto", 1.4), inner.write(value.body))

    def defined(self, target: Target, index: Expression | None) -> Formula:
        """The left side of an equation: `h_t`, `n^{(l)}_t`."""
        round_ = None if index is None or is_time(index) else self.write(index)
        below = (text("t", 0.4),) if target.name in self.names.timed else ()
        return name(target.name, *below, above=round_, bold=target.name in self.names.matrices)

    def _name(self, written: str) -> Formula:
        names = self.names
        if written in self.arguments:
            return name(written)
        if written in ("inf", "pi"):
            return text(r"\infty" if written == "inf" else r"\pi", 0.9)
        if written == "num_heads":
            return text("N", 0.7)
        if written in names.groups:
            return self.parameter(written, self.target, self.round)
        if written in names.functions or (written in OPERATORS and written not in names.shapes):
            self.used.add(written)
            return names.function(written)
        if (member := names.members.get(written)) is not None:
            target = names.targets[member.target]
            return self.parameter(member.written, target, number(float(target.round)) if target.round else None)
        below = (text("t", 0.4),) if written in names.timed else ()
        return name(written, *below, bold=written in names.matrices)

    def parameter(self, group: str, target: Target, round_: Formula | None) -> Formula:
        """A group's parameter of an equation. A group with one parameter alone needs no subscript."""
        base, above = ("b", "R") if group == "bR" else (group, "")
        if self.names.is_shared(group):
            return text("b^R", 1.0) if above else name(base)
        below = text("*", 0.4) if target == ANY_GATE else name(target.name)
        if above:
            over = above if round_ is None else f"{above}({round_.tex})"
            return text(f"b^{braced(over)}_{braced(below.tex)}", 0.6 + 0.72 * max(below.width, 0.6))
        return name(base, below, above=round_)

    def _index(self, index: Index) -> Formula:
        if is_time(index.index):
            return name(index.base, self.write(index.index), bold=index.base in self.names.matrices)
        time = text("t", 0.4) if index.time is None else self.write(index.time)
        below = (time,) if index.base in self.names.timed else ()
        return name(index.base, *below, above=self.write(index.index), bold=index.base in self.names.matrices)

    def _binary(self, expression: Binary) -> tuple[Formula, int]:
        left, right, sign = expression.left, expression.right, expression.operator
        match sign:
            case "+" | "-":
                second = self.write(right, _SUM if sign == "+" else _PRODUCT)
                return side_by_side(self.write(left, _SUM), operator(sign, 1.4), second), _SUM
            case "*":
                factors = _factors(expression)
                signed = isinstance(factors[0], Unary)
                return self._product(factors), _SUM if signed else _PRODUCT
            case "@":
                matrix, operand = self.write(left, _PRODUCT), self.write(right, _SIGN)
                close = matrix.tex.endswith(")") or operand.tex.startswith(r"\mathit")
                return side_by_side(matrix, text(_SPACE if close else " ", 0.2), operand), _PRODUCT
            case "/" | "//":
                above, below = self.write(left), self.write(right)
                width = max(above.width, below.width) + 0.3
                whole = (r"\lfloor ", r" \rfloor") if sign == "//" else ("", "")
                tex = rf"\frac{{{above.tex}}}{{{below.tex}}}".join(whole)
                return unbroken(tex, width, (above, below), FRACTION), _PRODUCT
            case "**":
                return self._above(left, self.write(right).tex), _POWER
            case _:
                # As a value, a comparison is 1 or 0.
                said = self._compared(expression)
                return unbroken(rf"\mathbf{{1}}[{said.tex}]", said.width + 1.2, (said,)), _ATOM

    def _compared(self, expression: Binary) -> Formula:
        sign = operator(_COMPARISONS[expression.operator], 1.4)
        return side_by_side(self.write(expression.left, _SUM), sign, self.write(expression.right, _SUM))

    def _above(self, expression: Expression, above: str) -> Formula:
        """What stands to the power of something, or is transposed."""
        base, own = self._written(expression)
        if own < _ATOM:
            base = in_brackets(base)
        # TeX takes one superscript.
        tex = f"{{{base.tex}}}" if own == _ATOM and "^" in base.tex else base.tex
        return unbroken(f"{tex}^{braced(above)}", base.width + 0.5 * len(above), (base,))

    def _product(self, factors: Sequence[Expression]) -> Formula:
        """Factors beside each other: with ⊙ between two that are no numbers, with a dot before a literal number."""
        # `-a*b` is written without brackets around `-a`.
        parts = [self.write(factors[0]) if isinstance(factors[0], Unary) else self.write(factors[0], _PRODUCT)]
        vector = not self.is_number(factors[0])
        for factor in factors[1:]:
            single = self.is_number(factor)
            if vector and not single:
                parts.append(operator(_ODOT, 1.4))
            elif isinstance(factor, Number):
                parts.append(operator(r"\cdot", 0.9))
            else:
                parts.append(text(_SPACE, 0.2))
            parts.append(self.write(factor, _PRODUCT))
            vector = vector or not single
        return side_by_side(*parts)

    def _call(self, call: Call) -> tuple[Formula, int]:
        if call.function in self.names.definitions:
            return self._own(call), _ATOM
        arguments = call.arguments
        match call.function, arguments:
            case "where", (_, _, _):
                return self._where(call), _CASE
            case "sqrt", (operand,):
                root = self.write(operand)
                return unbroken(rf"\sqrt{{{root.tex}}}", root.width + 0.9, (root,)), _ATOM
            case (("T" | "inv"), (operand,)):
                return self._above(operand, r"\top" if call.function == "T" else "-1"), _POWER
            case "eye", (width,):
                return text(rf"\mathrm{{I}}_{{{self.write(width).tex}}}", 1.0), _ATOM
            case "ones", (width,):
                return text(rf"\mathbf{{1}}_{{{self.write(width).tex}}}", 1.0), _ATOM
            case "log1p", (operand,):
                one = side_by_side(text("1", 0.5), operator("+", 1.4), self.write(operand, _SUM))
                return self._applied(text(r"\log", 1.4), (one,)), _PRODUCT
            case "logaddexp", (left, right):
                powers = [self._applied(text(r"\exp", 1.6), (self.write(each),)) for each in (left, right)]
                both = side_by_side(powers[0], operator("+", 1.4), powers[1])
                return self._applied(text(r"\log", 1.4), (both,)), _PRODUCT
            case "mod", (left, right):
                mod = operator(r"\bmod", 2.5)
                return side_by_side(self.write(left, _SIGN), mod, self.write(right, _SIGN)), _SUM
            case "concat", _:
                parts = [self.write(each) for each in arguments]
                inside = side_by_side(*_separated(parts, ";"))
                return side_by_side(text("[", 0.3), inside, text("]", 0.3)), _ATOM
            case function, (operand,) if function in AROUND:
                left_bar, right_bar = AROUND[function]
                if function == "norm" and not self.names.is_matrix(operand):
                    right_bar = right_bar.partition("_")[0]
                inner = self.write(operand)
                return side_by_side(text(f"{left_bar} ", 0.3), inner, text(f" {right_bar}", 0.6)), _ATOM
            case _:
                return self._plain(call), _ATOM

    def _plain(self, call: Call) -> Formula:
        """A function before its arguments. What is no operand (an axis, how often) is a subscript."""
        self.used.add(call.function)
        called = self.names.function(call.function)
        arguments = call.arguments
        below = [value.name for key, value in call.keywords if key == "axis" and isinstance(value, Name)]
        if call.function in ("repeat", "roll") or (call.function == "heads" and len(arguments) > 1):
            fill = [self.keyword(value).tex for key, value in call.keywords if key == "fill"]
            axis = [rf"\mathrm{{{each}}}" for each in below]
            self.used.update(["axis"] if axis else [])
            below, arguments = [r",\,".join((self.write(arguments[1]).tex, *fill, *axis))], arguments[:1]
        elif call.function == "unflatten":
            sides = [self.write(each) for each in arguments[1:]]
            below, arguments = [r" \times ".join(side.tex for side in sides)], arguments[:1]
        elif below:
            below = [rf"\mathrm{{{below[0]}}}"]
            self.used.add("axis")
        if below:
            called = text(f"{called.tex}_{{{below[0]}}}", called.width + 1.5)
        return self._applied(called, tuple(self.write(each) for each in arguments))

    def _own(self, call: Call) -> Formula:
        called = function_name(call.function)
        if call.function in self.names.gated:
            gate = text("*", 0.4) if self.target == ANY_GATE else name(self.target.name)
            above = "" if self.round is None else f"^{{({self.round.tex})}}"
            called = text(f"{called.tex}_{braced(gate.tex)}{above}", called.width + 0.72 * gate.width)
        return self._applied(called, tuple(self.write(each) for each in call.arguments))

    def _applied(self, called: Formula, arguments: tuple[Formula, ...]) -> Formula:
        return side_by_side(called, in_brackets(side_by_side(*_separated(arguments, ","))))

    def _where(self, call: Call) -> Formula:
        """`where` inside the last branch of another one is one more case."""
        rows: list[tuple[Expression, Expression]] = []
        otherwise: Expression = call
        while isinstance(otherwise, Call) and otherwise.function == "where" and len(otherwise.arguments) == 3:
            condition, then, otherwise = otherwise.arguments
            rows.append((then, condition))
        return self._cases(rows, otherwise)

    def _cases(self, rows: Sequence[tuple[Expression, Expression]], otherwise: Expression) -> Formula:
        written = [(self.write(value), self.condition(condition)) for value, condition in rows]
        last = self.write(otherwise)
        lines = [f"{value.tex} & \\text{{if }} {condition.tex}" for value, condition in written]
        lines.append(f"{last.tex} & \\text{{otherwise}}")
        first = max(value.width for value in (*(value for value, _ in written), last))
        second = max(condition.width for _, condition in written)
        tex = r"\begin{cases} " + r" \\ ".join(lines) + r" \end{cases}"
        return unbroken(tex, first + max(second + 1, 4) + 2, (value for value, _ in written), CASES)

    def condition(self, condition: Expression) -> Formula:
        """What is said after "if": a value that is no comparison holds where it is not 0."""
        if isinstance(condition, Binary) and condition.operator in _COMPARISONS:
            return self._compared(condition)
        return side_by_side(self.write(condition, _SUM), text(r" \neq 0", 2.0))

    def is_number(self, expression: Expression) -> bool:
        """Whether an expression is a single number, or one per head: it is multiplied without ⊙."""
        names = self.names
        match expression:
            case Number():
                return True
            case Name(written):
                return written not in self.arguments and written in names.numbers
            case Index(base):
                return base not in self.arguments and base in names.numbers
            case Call(function, arguments):
                if function in _REDUCTIONS or (function in ("max", "min") and len(arguments) == 1):
                    # Along an axis these leave a vector.
                    return not expression.keywords
                if (own := names.definitions.get(function)) is not None:
                    inside = replace(self, arguments=frozenset(each.name for each in own.parameters))
                    return inside.is_number(own.body) or (all(map(self.is_number, arguments)) and bool(arguments))
                return function in OPERATORS and all(map(self.is_number, arguments))
            case Unary(_, operand):
                return self.is_number(operand)
            case Binary(sign, left, right):
                return sign != "@" and self.is_number(left) and self.is_number(right)
            case IfElse(_, then, otherwise):
                return self.is_number(then) and self.is_number(otherwise)
            case _:
                assert_never(expression)


def number(value: float) -> Formula:
    """A literal number; powers of ten are written out."""
    shown = show_number(value)
    if "e" not in shown:
        return text(shown.replace("inf", r"\infty"), 0.5 * len(shown))
    digits, power = shown.split("e")
    tens = f"10^{{{int(power)}}}"
    return text(tens if digits == "1" else rf"{digits} \cdot {tens}", 0.5 * len(shown) + 1)


def _factors(expression: Expression) -> list[Expression]:
    """The factors of a product from left to right; a product in brackets on the right is one factor."""
    if isinstance(expression, Binary) and expression.operator == "*":
        return [*_factors(expression.left), expression.right]
    return [expression]


def _separated(parts: Sequence[Formula], sign: str) -> Iterator[Formula]:
    for index, part in enumerate(parts):
        if index:
            yield text(f"{sign} ", 0.5)
        yield part
