"""Values at other times: `h[t-k]` of a state, `x[t-k]` of an input, `u[t-k]` of a value that inputs make.

A value that depends on a state has no past but what a state holds. What parameters and inputs per sequence alone make
is the same at all times. Which values these are shows once every equation is resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnncc.analysis import graph
from rnncc.ir.term import Bad, Equation, Term, Val, first_bad, names
from rnncc.language.report import Report, Reported
from rnncc.language.source import Span
from rnncc.stages.check.declare import Symbols
from rnncc.stages.check.unroll import MOST_EQUATIONS

# Steps that h[t-k] reaches back. Each is a value that every step of the kernels moves on, forward and backward: with 64
# they compile in about 5 s more than with 1, with 300 in a minute more.
MOST_STATE_STEPS = 64
# Steps that the value of an equation reaches back. Each is a tensor as large as the value.
MOST_VALUE_STEPS = 64


@dataclass(frozen=True, slots=True)
class _Shift:
    """`name[t-steps]` in the equation of `reader`, where `name` is the value of an equation. It is `written` so, with
    the turn of its loop."""

    name: str
    written: str
    steps: int
    reader: str
    span: Span


class Times:
    """The largest k of `s[t-k]`: `states` of states, `values` of inputs and of values that inputs make. `wrong`: names
    of older values that cannot be, with the error that `check` reported."""

    def __init__(self, symbols: Symbols, report: Report) -> None:
        self.symbols, self.report = symbols, report
        self.states: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.wrong: dict[str, Reported] = {}
        self._shifts: list[_Shift] = []

    def state(self, name: str, steps: int, span: Span) -> Term:
        """A state, `steps` ago."""
        if steps == 0:
            return Val(name, span)
        if wrong := self._too_far(name, steps, MOST_STATE_STEPS, span):
            return Bad(span, wrong)
        self.states[name] = max(self.states.get(name, 0), steps)
        return Val(f"{name}__1" if steps == 1 else f"{name}__delay{steps - 1}__1", span)

    def given(self, name: str, steps: int, span: Span) -> Term:
        """An input, `steps` ago."""
        if wrong := self._too_far(name, steps, MOST_EQUATIONS, span):
            return Bad(span, wrong)
        return self._kept(name, steps, span)

    def value(self, name: str, written: str, steps: int, reader: str, span: Span) -> Term:
        """The value of an equation, `steps` ago, as the equation of `reader` reads it. `check` says whether it may."""
        if wrong := self._too_far(written, steps, MOST_VALUE_STEPS, span):
            return Bad(span, wrong)
        self._shifts.append(_Shift(name, written, steps, reader, span))
        return self._kept(name, steps, span)

    def _kept(self, name: str, steps: int, span: Span) -> Term:
        if steps == 0:
            return Val(name, span)
        self.values[name] = max(self.values.get(name, 0), steps)
        return Val(f"{name}__{steps}", span)

    def _too_far(self, written: str, steps: int, most: int, span: Span) -> Reported | None:
        if steps <= most:
            return None
        message = f"'{written}[t-{steps}]' reaches back more than {most:,} steps"
        help = "each step back is one more value that the layer keeps; keep a mean of older values in a state"
        return self.report.error("RNN221", message, span, help=help)

    def check(self, equations: Sequence[Equation]) -> dict[str, int]:
        """`values` without those that cannot be, which are reported: inputs first, then in the order of the text."""
        made = _made_of(equations, self._shifts, self.symbols)
        wrong: dict[str, Reported] = {}
        for shift in self._shifts:
            # The reader reads the value, so that the two are in one circle where the value needs the reader.
            needs_itself = shift.steps > 0 and made[shift.name].circle == made[shift.reader].circle
            if shift.name not in wrong and (found := self._wrong(shift, made[shift.name], needs_itself)):
                wrong[shift.name] = found
        for name, found in wrong.items():
            self.wrong |= {f"{name}__{step}": found for step in range(1, self.values.get(name, 0) + 1)}
        order = dict.fromkeys((*self.symbols.inputs, *(equation.target for equation in equations)))
        return {name: self.values[name] for name in order if name in self.values and name not in wrong}

    def _wrong(self, shift: _Shift, made: _Made, needs_itself: bool) -> Reported | None:
        """An error where a value has no past."""
        written, span = shift.written, shift.span
        if needs_itself:
            message = f"'{written}' needs its own older value: what goes from step to step is a state"
            help = f"declare a state for it: 'state {shift.name}', '{shift.name}[t] = …'"
        elif made.state:
            message = f"'{written}' depends on the state '{made.state}', so it has no time index"
            held, time = f"{shift.name}_held", f"t-{shift.steps}"
            help = f"write '{written}' for this step's value"
            if shift.steps:
                help = f"declare a state that holds it: 'state {held}', '{held}[t] = {written}', '{held}[{time}]'"
        elif made.is_known and made.inputs <= self.symbols.per_sequence:
            of = "of inputs per sequence" if made.inputs else "of parameters alone"
            message = f"'{written}' is made {of} and does not change with time"
            help = f"write '{written}'"
        else:
            return None
        return self.report.error("RNN216", message, span, help=help)


@dataclass(frozen=True, slots=True)
class _Made:
    """What a value is made of, at this step and at others.

    circle    the number of the values that need each other, of which it is one
    state     the name of a state in it, or nothing
    inputs    the inputs in it
    is_known  whether no part of it was reported as an error
    """

    circle: int
    state: str
    inputs: frozenset[str]
    is_known: bool


def _made_of(equations: Sequence[Equation], shifts: Sequence[_Shift], symbols: Symbols) -> dict[str, _Made]:
    reads: dict[str, list[str]] = {}
    known: dict[str, bool] = {}
    for equation in equations:
        if equation.target not in reads:
            reads[equation.target] = list(names(equation.term))
            known[equation.target] = first_bad(equation.term) is None
    for shift in shifts:
        reads[shift.reader].append(shift.name)
    found: dict[str, _Made] = {}
    for number, circle in enumerate(graph.components(reads)):
        read = dict.fromkeys(name for target in circle for name in reads[target])
        bases = [name.partition("__")[0] for name in read]
        parts = [found[name] for name in read if name in found]
        states = [base for base in bases if base in symbols.states] + [part.state for part in parts if part.state]
        made = _Made(
            circle=number,
            state=states[0] if states else "",
            inputs=frozenset(base for base in bases if base in symbols.inputs).union(*(part.inputs for part in parts)),
            is_known=all(known[target] for target in circle) and all(part.is_known for part in parts),
        )
        found |= dict.fromkeys(circle, made)
    return found
