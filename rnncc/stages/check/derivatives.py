"""`grad=`: the derivative of a step function, by name, as a number, or as a function of one argument."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

from rnncc.ir.syntax import Binary, Call, Expression, Index, Keyword, Lambda, Name, children
from rnncc.ir.term import Bad, Num, Op, Surrogate, Term, Val
from rnncc.language.functions import MATRIX_FUNCTIONS, is_across_units
from rnncc.language.names import reserved
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import article, closest
from rnncc.language.surrogates import GIVEN, SURROGATES
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.static import NAMED_NUMBERS

_EXAMPLE = "'grad=u -> exp(-u**2)'"


class Derivatives:
    """Resolves calls of step functions; `term` resolves what stands in them, and `targets` are the names of equations.
    `argument` is the name of the argument of the derivative at hand."""

    def __init__(
        self, symbols: Symbols, targets: Container[str], report: Report, term: Callable[[Expression], Term]
    ) -> None:
        self.symbols, self.targets, self.report, self.term = symbols, targets, report, term
        self.argument = ""

    def step(self, name: str, call: Call, scope: Mapping[str, int]) -> Term:
        """`name(v, grad=…)`."""
        grads = [value for keyword, value in call.keywords if keyword == "grad"]
        wrong: Reported | None = None
        for keyword, value in call.keywords:
            if keyword != "grad":
                message = f"'{name}' takes no argument '{keyword}'"
                wrong = self.report.error("RNN204", message, value.span, help="its surrogate derivative is 'grad=…'")
        if len(call.arguments) != 1:
            message = f"'{name}' takes 1 argument and 'grad', not {len(call.arguments)}"
            wrong = self.report.error("RNN204", message, call.span)
        if wrong is not None:
            return Bad(call.span, wrong)
        operand = self.term(call.arguments[0])
        # The parser reports a second `grad`.
        found = self.surrogate(grads[0], scope)
        if isinstance(found, Reported):
            return Bad(call.span, found)
        if self.argument:
            # A derivative is differentiated no further.
            return Op(name, (operand,), call.span)
        return Surrogate(name, operand, *found, call.span)

    def surrogate(self, grad: Keyword, scope: Mapping[str, int]) -> tuple[str, Term] | Reported:
        """The operator and what it takes."""
        if isinstance(grad, Lambda):
            return self.function(grad, scope)
        name = grad.function if isinstance(grad, Call) else grad.name if isinstance(grad, Name) else ""
        if name in self.symbols.ignored:
            return self.symbols.ignored[name]
        if name in SURROGATES and not (name in self.symbols.constants and isinstance(grad, Name)):
            return self.named(name, grad)
        if name and name not in scope and name not in NAMED_NUMBERS and not self.is_number(name):
            known = f"one of: {', '.join(f'{known}(10)' for known in sorted(SURROGATES))}, a number, or {_EXAMPLE}"
            is_own = self.symbols.kinds.get(name) == "function"
            help = f"write 'grad=u -> {name}(u)'" if is_own else closest(name, SURROGATES) or known
            return self.report.error("RNN204", f"unknown surrogate derivative '{name}'", grad.span, help=help)
        return self.misplaced(grad, "", scope) or _given(self.term(grad))

    def named(self, name: str, grad: Expression) -> tuple[str, Term] | Reported:
        if not isinstance(grad, Call) or len(grad.arguments) != 1 or grad.keywords:
            help = f"write 'grad={name}(10)'"
            return self.report.error("RNN204", f"'{name}' takes one number", grad.span, help=help)
        sharpness = self.term(grad.arguments[0])
        if isinstance(sharpness, Bad):
            return sharpness.reported
        if not isinstance(sharpness, Num) and not (isinstance(sharpness, Val) and self.is_number(sharpness.name)):
            return self.report.error("RNN220", f"the argument of '{name}' must be a number or a constant", grad.span)
        return SURROGATES[name], sharpness

    def function(self, grad: Lambda, scope: Mapping[str, int]) -> tuple[str, Term] | Reported:
        name, outer = grad.argument, self.argument
        kind = self.symbols.kinds.get(name) or (
            "gate" if name in self.targets else "loop variable" if name in scope else ""
        )
        kind = "argument" if name == outer else kind
        why = reserved(name)
        if why:
            help = "write 'grad=u -> …'"
            return self.report.error("RNN217", f"'{name}' is {why}", grad.argument_span, "a reserved name", help)
        if kind:
            message = f"the argument of a derivative needs a name of its own: '{name}' is {article(kind)}"
            help = "choose another name"
            return self.report.error("RNN218", message, grad.argument_span, "another thing's name", help)
        if wrong := self.misplaced(grad.body, name, scope):
            return wrong
        self.argument = name
        slope = self.term(grad.body)
        self.argument = outer
        return _given(slope)

    def misplaced(self, body: Expression, argument: str, scope: Mapping[str, int]) -> Reported | None:
        """An error where something stands in a derivative that is no function of its argument, unit by unit."""
        for part in _parts(body):
            what = self.not_allowed(part, argument, scope)
            if what:
                help = f"an elementwise function of its argument, as in {_EXAMPLE}"
                message = f"a derivative is made of numbers, constants and its argument; {what}"
                return self.report.error("RNN204", message, _place(part), "not in a derivative", help)
        return None

    def not_allowed(self, part: Expression, argument: str, scope: Mapping[str, int]) -> str:
        match part:
            case Name(name):
                # What was reported is wrong once.
                known = name in (argument, *scope, *NAMED_NUMBERS, *self.symbols.ignored) or self.is_number(name)
                return "" if known else f"'{name}' is none of these"
            case Index(base):
                return f"'{base}[…]' is none of these"
            case Binary("@"):
                return "a product mixes units"
            case Call(function, arguments):
                constant = self.symbols.constants.get(function)
                name = constant.value if constant is not None and isinstance(constant.value, str) else function
                # An unknown function is reported as such.
                mixes = name in MATRIX_FUNCTIONS or is_across_units(name, len(arguments))
                return f"'{name}' mixes units" if mixes else ""
            case _:
                return ""

    def is_number(self, name: str) -> bool:
        constant = self.symbols.constants.get(name)
        return constant is not None and not isinstance(constant.value, str)


def _given(slope: Term) -> tuple[str, Term] | Reported:
    return slope.reported if isinstance(slope, Bad) else (GIVEN, slope)


def _parts(expression: Expression) -> Iterator[Expression]:
    """An expression and those inside it; what stands after a keyword is another derivative."""
    yield expression
    for part in expression.arguments if isinstance(expression, Call) else children(expression):
        if not isinstance(part, Lambda):
            yield from _parts(part)


def _place(part: Expression) -> Span:
    return part.function_span if isinstance(part, Call) and part.function_span.end else part.span
