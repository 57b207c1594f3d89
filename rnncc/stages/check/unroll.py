"""Static loops and several targets: one instance for each equation and gate, with its value's name."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.syntax import CellDecl, EquationDecl, Expression, ForDecl, Statement, Target
from rnncc.language.diagnostics import Label
from rnncc.language.names import instead_of_reserved, reserved
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.language.spelling import article
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.mentions import names_in
from rnncc.stages.check.static import Time

MOST_EQUATIONS = 1024
_TURNS = (
    "take the most turns, 'for l in 1..4:', and leave the value as it is in those beyond n: 's[l] = where(l <= n, "
    "tanh(R@s[l-1] + b), s[l-1])'"
)


@dataclass(frozen=True, slots=True)
class Instance:
    """One gate of one equation of one turn of the loops. `siblings` are all gates of the equation."""

    target: str
    base: str
    written: str
    expression: Expression
    scope: dict[str, int]
    siblings: tuple[str, ...]
    span: Span
    target_span: Span


class _TooMany(Exception):
    pass


class _Unroller:
    def __init__(self, symbols: Symbols, report: Report) -> None:
        self.symbols = symbols
        self.report = report
        self.instances: list[Instance] = []
        self.turns = 0
        # Value names by the spelling that made them: `n_1` by `n[1]`.
        self.spellings: dict[str, tuple[str, Span]] = {}

    def statements(self, statements: tuple[Statement, ...], scope: dict[str, int]) -> None:
        for statement in statements:
            match statement:
                case EquationDecl():
                    self.equation(statement, scope)
                case ForDecl():
                    self.loop(statement, scope)
                case _:
                    if scope:
                        message = "a declaration may not stand inside a loop"
                        reported = self.report.error("RNN234", message, statement.span, help="move it above the 'for'")
                        self.symbols.ignored[statement.name] = reported

    def loop(self, loop: ForDecl, scope: dict[str, int]) -> None:
        variable, symbols = loop.variable, self.symbols
        why = reserved(variable)
        if why:
            self.report.error("RNN217", f"the loop variable '{variable}' is {why}", loop.span)
        elif variable in scope or variable in symbols.kinds:
            kind = "loop variable" if variable in scope else symbols.kinds[variable]
            message = f"the loop variable '{variable}' is already {article(kind)}"
            self.report.error("RNN218", message, loop.span)
        first = symbols.statics.integer(loop.first, scope, "the first value of the loop", nearest=_TURNS)
        last = symbols.statics.integer(loop.last, scope, "the last value of the loop", nearest=_TURNS)
        if isinstance(first, Reported) or isinstance(last, Reported):
            first = last = 1
        for value in range(first, last + 1):
            self.turns += 1
            if self.turns > 4 * MOST_EQUATIONS:
                self.too_many(loop.span)
            self.statements(loop.body, {**scope, variable: value})

    def equation(self, equation: EquationDecl, scope: dict[str, int]) -> None:
        named = [(target, *self.name(target, scope)) for target in equation.targets]
        siblings = tuple(name for _, name, _ in named)
        for target, name, written in named:
            if name in {earlier for _, earlier, _ in named[: named.index((target, name, written))]}:
                self.report.error("RNN206", f"'{written}' stands twice on the left side", target.span)
                continue
            self.instances.append(
                Instance(name, target.name, written, equation.expression, scope, siblings, equation.span, target.span)
            )
            if len(self.instances) > MOST_EQUATIONS:
                self.too_many(equation.span)

    def too_many(self, span: Span) -> None:
        message = f"the cell has more than {MOST_EQUATIONS:,} equations once its loops are unrolled"
        self.report.error("RNN221", message, span)
        raise _TooMany

    def name(self, target: Target, scope: dict[str, int]) -> tuple[str, str]:
        """The value a target defines, and its spelling; reports what may not stand on the left."""
        name, symbols = target.name, self.symbols
        is_state = name in symbols.states
        kind = "loop variable" if name in scope else symbols.kinds.get(name, "")
        if name in symbols.groups:
            kind = "group"
        why = symbols.reserved(name)
        if kind not in ("", "state", "local"):
            help = "give the value another name"
            if kind == "group":
                help += f": '{name}' stands for a trained parameter of each equation"
            self.report.error("RNN236", f"'{name}' is {article(kind)} and cannot be written", target.span, help=help)
        elif why and not is_state:
            self.report.error("RNN217", f"'{name}' is {why}", target.span, "a reserved name", instead_of_reserved(name))
        if target.index is None:
            if is_state:
                message = f"'{name}' is a state: its new value is written '{name}[t]'"
                self.report.error("RNN207", message, target.span, "the time is missing", f"write '{name}[t] = …'")
            return name, name
        index = symbols.statics.index(target.index, scope)
        match index:
            case Time(0):
                if not is_state:
                    message = f"'{name}' is not a state, so its equation has no time index"
                    help = f"write '{name} = …', or declare 'state {name}'"
                    self.report.error("RNN208", message, target.span, help=help)
                return name, f"{name}[t]" if is_state else name
            case Time(offset):
                code = "RNN215" if offset > 0 else "RNN216"
                message = f"an equation gives the value at time t, not at t{offset:+d}"
                self.report.error(code, message, target.span, help=f"write '{name}[t] = …'")
                return name, f"{name}[t]" if is_state else name
            case Reported():
                return name, name
            case _:
                return self.instance(target, index, is_state)

    def instance(self, target: Target, index: int, is_state: bool) -> tuple[str, str]:
        written = f"{target.name}[{index}]"
        if is_state:
            message = f"'{target.name}' is a state: its index is the time"
            help = (
                f"write '{target.name}[t] = …'; its value before the first step is declared: 'state {target.name} = 1'"
            )
            self.report.error("RNN216", message, target.span, help=help)
        elif index < 0:
            self.report.error("RNN216", f"the index of '{written}' is negative", target.span)
        return f"{target.name}_{abs(index)}", written

    def spelled_once(self) -> None:
        """`n[1]` and `n_1` both make the value n_1: an error where both are written."""
        for instance in self.instances:
            if self.report.found_at(instance.target_span):
                continue
            spelling, span = self.spellings.setdefault(instance.target, (instance.written, instance.target_span))
            taken = self.symbols.kinds.get(instance.target)
            if spelling != instance.written:
                message = f"'{instance.written}' and '{spelling}' are two spellings of one name"
                note = Label(span, f"'{spelling}' is written here")
                self.report.error("RNN219", message, instance.target_span, notes=(note,), help="rename one of them")
            elif instance.target != instance.base and taken is not None:
                message = f"'{instance.written}' and the {taken} '{instance.target}' are two spellings of one name"
                self.report.error("RNN219", message, instance.target_span, help="rename one of them")


def unroll(decl: CellDecl, symbols: Symbols, report: Report) -> tuple[Instance, ...]:
    """All gates in the order of the text; see the module's docstring."""
    unroller = _Unroller(symbols, report)
    try:
        unroller.statements(decl.statements, {})
    except _TooMany:
        report.stop()
    unroller.spelled_once()
    _written_once(unroller.instances, report)
    return tuple(unroller.instances)


def _written_once(instances: list[Instance], report: Report) -> None:
    first: dict[str, Instance] = {}
    for instance in instances:
        if report.found_at(instance.target_span):
            continue
        earlier = first.setdefault(instance.target, instance)
        if earlier is not instance and earlier.written == instance.written:
            note = Label(earlier.target_span, "first written here")
            base = instance.base
            help = f"names are not overwritten: call this one '{base}2'"
            if instance.written.endswith("[t]"):
                help = "one equation gives the new value: join the two, with a name of its own for what stands between"
            elif base in names_in(instance.expression):
                help += f"; what goes from step to step is a state: 'state {base}', '{base}[t] = {base}[t-1] + 1'"
            message = f"'{instance.written}' is written twice"
            report.error("RNN206", message, instance.target_span, help=help, notes=(note,))
