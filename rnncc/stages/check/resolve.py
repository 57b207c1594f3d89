"""Names: what every name of an equation means, with loops unrolled and static parts computed.

Input: the instances of `unroll`. Output: an Equation a gate, over value names, and the members of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rnncc.ir import dim as dims
from rnncc.ir.syntax import Binary, Call, Expression, IfElse, Index, Keyword, Lambda, Name, Number, Unary, children
from rnncc.ir.term import Argument, Bad, Equation, Num, Product, Term, Unflatten, Val, first_bad, negative, walk
from rnncc.ir.typed import GroupMember, written
from rnncc.language.diagnostics import Label
from rnncc.language.names import FUNCTIONS
from rnncc.language.outside import INTEGERS
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import article, closest
from rnncc.stages.check.calls import Calls
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.elsewhere import report_outside
from rnncc.stages.check.fold import fold, refuse_zero_divisor
from rnncc.stages.check.mentions import names_in
from rnncc.stages.check.static import NAMED_NUMBERS, Time
from rnncc.stages.check.suggest import undefined_name
from rnncc.stages.check.times import Times
from rnncc.stages.check.unroll import Instance

MOST_NODES = 4096
# A bound on the whole cell: a loop may repeat a long equation.
MOST_NODES_IN_CELL = 65_536
_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow",
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resolved:
    """A cell's equations in the order of the text. `state_delays` and `value_delays`: as in a typed cell. `wrong`: the
    names in the equations that stand for nothing, with the error that says so. `sizes`: those that equations read as
    numbers, with the place of the first reading."""

    equations: tuple[Equation, ...]
    members: dict[str, GroupMember]
    state_delays: dict[str, int]
    value_delays: dict[str, int]
    wrong: dict[str, Reported]
    sizes: dict[str, Span]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of these numbers."""
        return tuple(map(dims.number_of, self.sizes))


class _Resolver:
    def __init__(self, instances: tuple[Instance, ...], symbols: Symbols, report: Report) -> None:
        self.symbols, self.report = symbols, report
        self.instances = instances
        self.targets = {instance.target for instance in instances}
        self.bases = {instance.base for instance in instances if instance.target != instance.base}
        self.members: dict[str, GroupMember] = {}
        self.shared: list[tuple[str, str, str, Span]] = []
        self.times = Times(symbols, report)
        self.instance = instances[0] if instances else None
        self.scope: Mapping[str, int] = {}
        self.calls = Calls(symbols, self.targets | self.bases, report, self.term)
        self.nodes = 0
        self.wrong: dict[str, Reported] = {}
        self.sizes: dict[str, Span] = {}

    def run(self) -> Resolved:
        equations = [self.equation(instance) for instance in self.instances]
        for name, group, target, span in self.shared:
            self.check_shared(name, group, target, span)
        for equation in equations:
            self.one_operand(equation)
        delays = self.times.check(equations)
        wrong = self.wrong | self.times.wrong
        return Resolved(tuple(equations), self.members, self.times.states, delays, wrong, self.sizes)

    def equation(self, instance: Instance) -> Equation:
        self.instance, self.scope = instance, instance.scope
        count = _count(instance.expression)
        self.nodes += count
        term: Term
        if count > MOST_NODES or self.nodes > MOST_NODES_IN_CELL:
            most, what = (MOST_NODES, "the equation") if count > MOST_NODES else (MOST_NODES_IN_CELL, "the cell")
            message = f"{what} has more than {most:,} operators and names"
            term = Bad(instance.span, self.report.error("RNN221", message, instance.span))
        else:
            term = self.calls.right_side(instance)
        return Equation(instance.target, instance.written, term, instance.span, instance.target_span)

    def term(self, expression: Expression) -> Term:
        match expression:
            case Number(number, _, span):
                return Num(number, span)
            case Name(name, span):
                return self.name(name, span)
            case Index():
                return self.index(expression)
            case Unary(operator, operand, span):
                value = self.term(operand)
                return negative(value, span) if operator == "-" else value
            case Binary("@", Name(name, at), right, span) if factors := self.factors(name, at):
                return Product(factors[0], Product(factors[1], self.term(right), span), span)
            case Binary("@", left, right, span):
                return Product(self.term(left), self.term(right), span)
            case Binary("//", left, right, span):
                # What is wrong inside is the mistake: the step's number, `t//2`, or a size.
                if bad := first_bad(self.term(left), self.term(right)):
                    return Bad(span, bad.reported)
                help = "write 'a/b', or 'floor(a/b)' for the whole part of the quotient"
                return Bad(span, self.report.error("RNN220", "'//' stands in widths and indices only", span, help=help))
            case Binary(operator, left, right, span):
                name, arguments = _OPERATORS[operator], (self.term(left), self.term(right))
                wrong = refuse_zero_divisor(name, arguments, self.report)
                return Bad(span, wrong) if wrong else fold(name, arguments, span)
            case IfElse(condition, then, otherwise, span):
                chosen = self.symbols.statics.number(
                    condition, self.scope, "the condition of 'if'", help="at run time, 'where(condition, a, b)' chooses"
                )
                if isinstance(chosen, Reported):
                    return Bad(span, chosen)
                return self.term(then if chosen else otherwise)
            case Call():
                return self.calls.call(expression, self.scope)

    def name(self, name: str, span: Span) -> Term:
        symbols = self.symbols
        if name == self.calls.derivatives.argument:
            return Argument(span)
        if name in self.scope:
            return Num(float(self.scope[name]), span)
        if name in symbols.constants:
            if isinstance(symbols.constants[name].value, str):
                message = f"the constant '{name}' is a function and must be called"
                return Bad(span, self.report.error("RNN202", message, span, help=f"write '{name}(…)'"))
            return Val(name, span)
        if name in symbols.states:
            return Bad(span, self.bare_state(name, span))
        if name in symbols.ignored:
            return Bad(span, symbols.ignored[name])
        if name in symbols.grids:
            return Unflatten(Val(name, span), *symbols.grids[name].sides, span)
        if name in symbols.inputs or name in symbols.params or name in self.targets:
            return Val(name, span)
        if name in symbols.groups:
            return self.member(name, span)
        if self.factors(name, span):
            message = f"'{name}' is of low rank: it can only stand before '@'"
            help = f"write '{name}@v' for a product; a dense matrix may also stand elsewhere"
            return Bad(span, self.report.error("RNN211", message, span, "of low rank", help))
        if name in NAMED_NUMBERS:
            return Num(NAMED_NUMBERS[name], span)
        if name in symbols.statics.dims:
            self.sizes.setdefault(name, span)
            return Val(dims.number_of(name), span)
        member = self.full_name(name, span)
        if member is not None:
            return member
        return Bad(span, self.undefined(name, span))

    def bare_state(self, name: str, span: Span) -> Reported:
        return self.report.error(
            "RNN201",
            f"the state '{name}' needs a time: is its old or its new value meant?",
            span,
            "old or new?",
            f"write '{name}[t-1]' for the value before this step, '{name}[t]' for the one this step computes",
        )

    def undefined(self, name: str, span: Span) -> Reported:
        if name == "t":
            help = "count in a state, 'n[t] = n[t-1] + 1', or add it as an input: 'input time: 1'"
            return self.report.once("RNN216", "the step's number 't' is no value", span, help)
        if name in FUNCTIONS or self.symbols.kinds.get(name) == "function":
            message, help = f"'{name}' is a function and must be called", f"write '{name}(…)'"
            return self.report.error("RNN202", message, span, "not called", help)
        if name in self.bases:
            message = f"'{name}' is defined for each turn of a loop and needs an index"
            return self.report.error("RNN202", message, span, help=f"write '{name}[…]'")
        help = self.suggestion(name, span)
        return self.report.error("RNN202", f"'{name}' is not defined", span, "not defined", help)

    def suggestion(self, name: str, span: Span) -> str:
        symbols = self.symbols
        known = {*symbols.inputs, *symbols.states, *symbols.params, *symbols.constants, *map(written, symbols.groups)}
        known |= self.targets | {symbols.first} | set(self.scope)
        multiplies = self.report.source.text[span.end :].lstrip().startswith("@")
        return undefined_name(name, symbols, known, multiplies=multiplies)

    def member(self, group: str, span: Span) -> Term:
        assert self.instance is not None
        target = self.instance.target
        name = f"{group}_{target}"
        known = self.members.get(name)
        taken = self.symbols.kinds.get(name) or ("gate" if name in self.targets else None)
        if known is None and taken is None:
            self.members[name] = GroupMember(name, group, target, span)
        elif known is None or (known.group, known.target) != (group, target):
            other = f"the {taken} '{name}'" if known is None else f"'{known.group}' of '{known.target}'"
            message = f"'{group}' of '{self.instance.written}' and {other} are two spellings of '{name}'"
            return Bad(span, self.report.error("RNN219", message, span, help="rename one of them"))
        return Val(name, span)

    def factors(self, name: str, span: Span) -> tuple[Term, Term] | None:
        """The two factors of a member of a group of low rank: of R, or of the R_f of another equation."""
        for group, made in self.symbols.low_rank.items():
            if name == group:
                return self.member(made.left, span), self.member(made.right, span)
            target = name.removeprefix(f"{group}_")
            assert self.instance is not None
            if target != name and target == self.instance.target:
                return self.member(made.left, span), self.member(made.right, span)
            if target != name and target in self.targets:
                both = [(f"{factor}_{target}", factor, target, span) for factor in (made.left, made.right)]
                self.shared += both
                return Val(both[0][0], span), Val(both[1][0], span)
        return None

    def full_name(self, name: str, span: Span) -> Term | None:
        """What `W_f` stands for: the parameter W of the equation of f. There it is what a bare `W` is; another equation
        shares it. None if there is no such group or equation."""
        assert self.instance is not None
        ignored = self.symbols.ignored
        for group in sorted({*self.symbols.groups, *ignored}, key=len, reverse=True):
            target = name.removeprefix(f"{group}_")
            if target == name or target not in self.targets:
                continue
            if group in ignored:
                return Bad(span, ignored[group])
            if target == self.instance.target:
                return self.member(group, span)
            self.shared.append((name, group, target, span))
            return Val(name, span)
        return None

    def check_shared(self, name: str, group: str, target: str, span: Span) -> None:
        if name not in self.members:
            message = f"'{name}' is the {group} of '{target}', whose equation uses no {group}"
            help = f"use {group} in the equation of '{target}', or write 'param {name}: …' under another name"
            self.wrong[name] = self.report.error("RNN233", message, span, help=help)

    def index(self, expression: Index) -> Term:
        name, span, symbols = expression.base, expression.span, self.symbols
        if name in symbols.ignored:
            return Bad(span, symbols.ignored[name])
        values = names_in((expression.index, expression.time)) & {*symbols.inputs, *symbols.states, *self.targets}
        if values and (name in symbols.params or name in symbols.groups):
            return Bad(span, report_outside(INTEGERS, span, self.report))
        found = symbols.statics.index(expression.index, self.scope)
        time = found if expression.time is None else symbols.statics.index(expression.time, self.scope)
        match found, time:
            case (Reported() as wrong, _) | (_, Reported() as wrong):
                return Bad(span, wrong)
            case (int(instance), Time(offset)):
                value = self.loop_value(name, instance, span)
                if not isinstance(value, Val):
                    return value
                return self.at_time(value.name, f"{name}[{instance}]", offset, expression)
            case (Time(offset), _) if expression.time is None:
                return self.at_time(name, name, offset, expression)
            case (int(instance), _) if expression.time is None:
                return self.loop_value(name, instance, span)
            case _:
                message = "of two indices, the first is that of a loop and the second a time"
                return Bad(span, self.report.error("RNN216", message, span, help=f"write '{name}[l][t-1]'"))

    def at_time(self, name: str, written: str, offset: int, expression: Index) -> Term:
        """What a name stands for at the time t + offset. It is `written` so, with the turn of its loop."""
        span, symbols = expression.span, self.symbols
        if name in symbols.per_sequence:
            message = f"the input '{name}' is given once per sequence: it has no time"
            help = f"write '{name}'"
            if name not in symbols.grids:
                help += ", or declare it without 'per sequence' to give it at every step"
            return Bad(span, self.report.error("RNN216", message, span, "the same at all steps", help))
        if offset > 0:
            help = "use t or t-1; a reversed layer reads the sequence backwards"
            message = f"'{written}[t+{offset}]' lies in the future"
            return Bad(span, self.report.error("RNN215", message, span, help=help))
        if name in symbols.states:
            return self.times.state(name, -offset, span)
        if name in symbols.inputs:
            return self.times.given(name, -offset, span)
        if name in self.targets:
            assert self.instance is not None
            return self.times.value(name, written, -offset, self.instance.target, span)
        if name in self.bases:
            message = f"'{name}' is defined for each turn of a loop: its index stands before the time"
            help = f"write '{name}[…][{self.report.text(expression.index.span)}]'"
            return Bad(span, self.report.error("RNN202", message, span, "which turn?", help))
        if name in symbols.kinds or name in symbols.groups or name in symbols.statics.dims or written != name:
            kind = "size" if name in symbols.statics.dims else symbols.kinds.get(name, "group")
            message = f"the {kind} '{written}' does not change with time"
            return Bad(span, self.report.error("RNN216", message, span, help=f"write '{written}'"))
        return Bad(span, self.undefined(name, expression.base_span))

    def loop_value(self, name: str, instance: int, span: Span) -> Term:
        written, value = f"{name}[{instance}]", f"{name}_{abs(instance)}"
        if name in self.symbols.states or name in self.symbols.inputs:
            kind = self.symbols.kinds[name]
            help = (
                f"write '{name}[t]' or '{name}[t-1]'; a vector's units have no numbers: 'split' cuts it, 'a, c = "
                f"split({name}[t-1])'"
            )
            message = f"'{name}' is {article(kind)}: its index is the time"
            return Bad(span, self.report.error("RNN216", message, span, help=help))
        if instance >= 0 and value in self.targets and name in self.bases:
            return Val(value, span)
        member = self.full_name(value, span) if instance >= 0 else None
        if member is not None:
            return member
        known = sorted(base for base in self.bases)
        help = closest(name, known) if name not in self.bases else f"no equation defines {written}"
        if name in self.targets:
            help = f"a vector's units have no numbers: 'split' cuts it, 'a, c = split({name})'"
        return Bad(span, self.report.error("RNN202", f"'{written}' is not defined", span, "not defined", help))

    def one_operand(self, equation: Equation) -> None:
        """One group stands before one operand in an equation: two would silently share a matrix."""
        first: dict[str, Product] = {}
        left_factors = {made.left for made in self.symbols.low_rank.values()}
        for product in _products(equation.term):
            matrix = product.matrix
            member = self.members.get(matrix.name) if isinstance(matrix, Val) else None
            if member is None or member.target != equation.target:
                continue
            if member.group in left_factors:
                continue  # its right factor is in the operand, and says the same
            earlier = first.setdefault(member.name, product)
            if earlier.operand != product.operand:
                help = f"declare a second group: 'weights {member.written}2: matrix'"
                if self.moved(product) == self.moved(earlier) != "":
                    text = self.report.text(product.operand.span)
                    help += f"; each step of a causal convolution has its own, '{member.written}2@{text}'"
                self.report.error(
                    "RNN210",
                    f"the group '{member.written}' stands before two operands in the equation of '{equation.written}'",
                    product.span,
                    help=help,
                    notes=(Label(earlier.span, "its first operand"),),
                )

    def moved(self, product: Product) -> str:
        """What a product takes, now or of an earlier step, if it is an input or has a past; or nothing."""
        name = product.operand.name.partition("__")[0] if isinstance(product.operand, Val) else ""
        return name if name in self.symbols.inputs or name in self.times.values else ""


def _products(term: Term) -> list[Product]:
    return [part for part in walk(term) if isinstance(part, Product)]


def _count(expression: Keyword) -> int:
    """How many operators and names an expression has."""
    match expression:
        case Index():
            return 1
        case Lambda(_, body):
            return _count(body)
        case _:
            return 1 + sum(map(_count, children(expression)))


def resolve(instances: tuple[Instance, ...], symbols: Symbols, report: Report) -> Resolved:
    """Resolve every equation; see the module's docstring."""
    return _Resolver(instances, symbols, report).run()
