"""Calls of functions: what may be called, with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from rnncc.ir.dim import ONE, ZERO, Dim
from rnncc.ir.syntax import Call, Expression, Lambda, Name
from rnncc.ir.term import Bad, Eye, Filled, OfMatrix, Op, PerHead, Row, Share, Term, Transposed, Unflatten
from rnncc.language.functions import (
    ALONG_AXIS,
    AXES,
    MATRIX_FUNCTIONS,
    OF_WIDTHS,
    PER_HEAD,
    REDUCTIONS,
    ROW_FUNCTIONS,
    is_across_units,
)
from rnncc.language.names import FUNCTIONS
from rnncc.language.operators import OPERATORS, STEPS
from rnncc.language.outside import OUTSIDE_FUNCTIONS, pairs
from rnncc.language.report import Report, Reported
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.derivatives import Derivatives
from rnncc.stages.check.elsewhere import OF_MATRICES, instead_of, report_groups, report_outside
from rnncc.stages.check.fold import refuse_zero_divisor
from rnncc.stages.check.unroll import Instance


class Calls:
    """Resolves calls; `term` resolves their arguments. `targets`: the names of equations."""

    def __init__(
        self, symbols: Symbols, targets: Container[str], report: Report, term: Callable[[Expression], Term]
    ) -> None:
        self.symbols, self.report, self.term = symbols, report, term
        self.derivatives = Derivatives(symbols, targets, report, term)

    def right_side(self, instance: Instance) -> Term:
        """The right side of an equation, the one place where `split` may stand."""
        expression = instance.expression
        if not (isinstance(expression, Call) and expression.function == "split"):
            return self.term(expression)
        if wrong := self.wrong_arguments("split", expression, (1, 1)):
            return Bad(expression.span, wrong)
        operand = self.term(expression.arguments[0])
        return Share(operand, instance.siblings, instance.siblings.index(instance.target), expression.span)

    def call(self, call: Call, scope: Mapping[str, int]) -> Term:
        """A call inside an expression."""
        name = call.function
        constant = self.symbols.constants.get(name)
        if constant is not None and isinstance(constant.value, str):
            name = constant.value
        if name == "split":
            message = "'split' stands alone on the right side of '='"
            return Bad(call.span, self.report.error("RNN222", message, call.span, help="write 'i, f = split(v)'"))
        if name in STEPS and call.keywords:
            return self.derivatives.step(name, call, scope)
        if (name in ALONG_AXIS or name in REDUCTIONS) and "axis" in dict(call.keywords):
            return self.along_axis(name, call, scope)
        across = is_across_units(name, len(call.arguments))
        if name in OPERATORS and OPERATORS[name].user and not across:
            arity = OPERATORS[name].arity
            if wrong := self.wrong_arguments(name, call, (1 if name in ROW_FUNCTIONS else arity, arity)):
                return Bad(call.span, wrong)
            arguments = tuple(self.term(argument) for argument in call.arguments)
            wrong = refuse_zero_divisor(name, arguments, self.report)
            return Bad(call.span, wrong) if wrong else Op(name, arguments, call.span)
        if name == "repeat":
            return self.repeat(call, scope)
        if name == "roll":
            return self.roll(call, scope)
        if name in OF_WIDTHS:
            return self.of_width(name, call)
        if name in PER_HEAD:
            return self.per_head(call)
        if across:
            if wrong := self.wrong_arguments(name, call, ROW_FUNCTIONS[name]):
                return Bad(call.span, wrong)
            return Row(name, tuple(self.term(argument) for argument in call.arguments), span=call.span)
        if name == "unflatten":
            return self.unflatten(call)
        if name in MATRIX_FUNCTIONS:
            return self.matrix(name, call)
        return Bad(call.span, self.unknown(call))

    def unknown(self, call: Call) -> Reported:
        name = call.function
        span = call.function_span if call.function_span.end else call.span
        symbols = self.symbols
        if name in symbols.ignored:
            return symbols.ignored[name]
        outside = OUTSIDE_FUNCTIONS.get(name.lower())
        if outside is not None:
            return report_outside(outside, span, self.report)
        if name in symbols.groups or name in symbols.params:
            help = f"write '{name}@…' for a product of a matrix, '{name}*…' for a vector"
            return self.report.error("RNN203", f"'{name}' is a parameter, not a function", span, help=help)
        if name in symbols.states or name in symbols.inputs or name in symbols.kinds:
            help = f"an index is written in square brackets: '{name}[t-1]'"
            return self.report.error("RNN203", f"'{name}' is not a function", span, help=help)
        arguments = [self.report.text(argument.span) for argument in call.arguments]
        help = instead_of(name, symbols.cell, self.known(), arguments)
        help = help or f"'rnncc explain RNN203' lists the functions; 'def {name}(u) = …' defines one of your own"
        code = "RNN240" if name.lower() in OF_MATRICES else "RNN203"
        reported = self.report.error(code, f"unknown function '{name}'", span, "not a known function", help)
        # What is wrong inside is wrong whatever the function is called.
        for argument in call.arguments:
            self.term(argument)
        return reported

    def known(self) -> frozenset[str]:
        """What may be called."""
        return FUNCTIONS | {name for name, kind in self.symbols.kinds.items() if kind == "function"}

    def wrong_arguments(
        self, name: str, call: Call, counts: tuple[int, int], keywords: Container[str] = ()
    ) -> Reported | None:
        """An error where the number of arguments is not right, or where `keywords` lacks one of their keywords."""
        reported: Reported | None = None
        along = (*ALONG_AXIS, *REDUCTIONS)
        last = call.arguments[-1] if len(call.arguments) == 2 and counts[1] == 1 else None
        sized = isinstance(last, Name) and (last.name in self.symbols.dims or last.name in self.symbols.constants)
        if name in along and (sized or "groups" in dict(call.keywords)):
            # `mean(v, N)`: of groups of N.
            return report_groups(name, call.span, self.report)
        for keyword, value in call.keywords:
            if keyword not in keywords:
                of = {"grad": STEPS, "axis": along, "fill": ("roll",)}.get(keyword, ())
                help = f"'{keyword}=' is for {', '.join(of)}" if of else ""
                message = f"'{name}' takes no argument '{keyword}'"
                reported = self.report.error("RNN204", message, value.span, help=help)
        least, most = counts
        given = len(call.arguments)
        if least <= given <= most:
            return reported
        wanted = f"{least}" if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"
        plural = "" if wanted == "1" else "s"
        nested = (most, given) == (2, 3) and name in ("max", "min", "logaddexp")
        a, b, c = (self.report.text(each.span) for each in call.arguments) if nested else ("", "", "")
        help = f"write '{name}({name}({a}, {b}), {c})'" if nested else ""
        message = f"'{name}' takes {wanted} argument{plural}, not {given}"
        reported = self.report.error("RNN204", message, call.span, help=help)
        # What is one too many is not looked into.
        for argument in call.arguments[:most]:
            self.term(argument)
        return reported

    def repeat(self, call: Call, scope: Mapping[str, int]) -> Term:
        if wrong := self.wrong_arguments("repeat", call, ROW_FUNCTIONS["repeat"]):
            return Bad(call.span, wrong)
        operand = self.term(call.arguments[0])
        help = ""
        if call.arguments[1] in (Name("H"), Name("I")):
            help = f"a value of width 1 needs no 'repeat'; {pairs(self.report.text(call.arguments[0].span))}"
        times = self.symbols.statics.integer(call.arguments[1], scope, "the number of repetitions", help)
        if isinstance(times, int) and times < 1:
            message = f"the number of repetitions must be at least 1, not {times}"
            times = self.report.error("RNN204", message, call.arguments[1].span)
        return (
            Bad(call.span, times) if isinstance(times, Reported) else Row("repeat", (operand,), times, span=call.span)
        )

    def roll(self, call: Call, scope: Mapping[str, int]) -> Term:
        """`roll(v, n)`, `roll(v, n, fill=0)`."""
        if wrong := self.wrong_arguments("roll", call, ROW_FUNCTIONS["roll"], ("fill",)):
            return Bad(call.span, wrong)
        operands = (self.term(call.arguments[0]), *self.fill(call))
        places = self.places(call, scope)
        if isinstance(places, Reported):
            return Bad(call.span, places)
        return Row("roll", operands, places=places, span=call.span)

    def fill(self, call: Call) -> tuple[Term, ...]:
        """What comes in where units leave, if the call says it."""
        return tuple(
            self.term(value) for word, value in call.keywords if word == "fill" and not isinstance(value, Lambda)
        )

    def places(self, call: Call, scope: Mapping[str, int]) -> Dim | Reported:
        """By how many places `roll` moves."""
        return self.symbols.statics.places(call.arguments[1], scope, "the number of places")

    def of_width(self, name: str, call: Call) -> Term:
        if wrong := self.wrong_arguments(name, call, OF_WIDTHS[name]):
            return Bad(call.span, wrong)
        width = self.symbols.statics.dim(call.arguments[0], f"the width of '{name}'")
        return Bad(call.span, width) if isinstance(width, Reported) else Filled(name, width, call.span)

    def per_head(self, call: Call) -> Term:
        """`heads(k)`, `heads(k, g)`."""
        if wrong := self.wrong_arguments("heads", call, PER_HEAD["heads"]):
            return Bad(call.span, wrong)
        operand = self.term(call.arguments[0])
        groups: Dim | Reported = ONE
        if len(call.arguments) > 1:
            groups = self.symbols.statics.dim(call.arguments[1], "the number of groups")
        return Bad(call.span, groups) if isinstance(groups, Reported) else PerHead(operand, groups, call.span)

    def matrix(self, name: str, call: Call) -> Term:
        if wrong := self.wrong_arguments(name, call, MATRIX_FUNCTIONS[name]):
            return Bad(call.span, wrong)
        if name == "T":
            return Transposed(self.term(call.arguments[0]), call.span)
        if name != "eye":
            return OfMatrix(name, self.term(call.arguments[0]), span=call.span)
        size = self.symbols.statics.dim(call.arguments[0], "the size of 'eye'")
        return Bad(call.span, size) if isinstance(size, Reported) else Eye(size, call.span)

    def unflatten(self, call: Call) -> Term:
        """`unflatten(v, P, Q)`."""
        if wrong := self.wrong_arguments("unflatten", call, MATRIX_FUNCTIONS["unflatten"]):
            return Bad(call.span, wrong)
        operand, *sides = call.arguments
        term = self.term(operand)
        rows, columns = (
            self.symbols.statics.dim(side, f"the number of {what} of 'unflatten'")
            for side, what in zip(sides, ("rows", "columns"), strict=True)
        )
        if isinstance(rows, Reported):
            return Bad(call.span, rows)
        if isinstance(columns, Reported):
            return Bad(call.span, columns)
        return Unflatten(term, rows, columns, call.span)

    def along_axis(self, name: str, call: Call, scope: Mapping[str, int]) -> Term:
        """`softmax(M, axis=rows)`, `normalize(M, axis=columns)`, `sum(M, axis=rows)`, `roll(M, 1, axis=rows)`."""
        moves = name == "roll"
        if wrong := self.wrong_arguments(name, call, (1 + moves,) * 2, ("axis", "fill") if moves else ("axis",)):
            return Bad(call.span, wrong)
        operand = self.term(call.arguments[0])
        places = self.places(call, scope) if moves else ZERO
        if isinstance(places, Reported):
            return Bad(call.span, places)
        axis = dict(call.keywords).get("axis")
        if isinstance(axis, Name) and axis.name in AXES:
            return OfMatrix(name, operand, axis.name, call.span, places, self.fill(call))
        what = {
            "softmax": "each row sums to 1",
            "normalize": "each row has the length 1",
            "cumsum": "each row has its own running sum",
            "roll": "the elements of each row have moved",
        }
        written = f"{name}(M, 1, axis=rows)" if moves else f"{name}(M, axis=rows)"
        help = f"after '{written}' {what.get(name, 'there is one number for each row')}; the other axis is "
        help += "'columns'"
        message = "an axis is 'rows' or 'columns'"
        where = call.span if axis is None else axis.span
        return Bad(call.span, self.report.error("RNN204", message, where, "no such axis", help))
