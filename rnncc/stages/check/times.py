"""Values at other times: `h[t-k]` of a state, `x[t-k]` of an input, `u[t-k]` of a value that inputs make.

A value that depends on a state has no past but what a state holds, and what parameters alone make is the same at all
times. Which values these are shows once every equation is resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.term import Bad, Equation, Term, Val, names, walk
from rnncc.language.report import Report
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
    """The largest k of `s[t-k]`: `states` of states, `values` of inputs and of values that inputs make."""

    def __init__(self, symbols: Symbols, report: Report) -> None:
        self.symbols, self.report = symbols, report
        self.states: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self._shifts: list[_Shift] = []

    def state(self, name: str, steps: int, span: Span) -> Term:
        """A state, `steps` ago."""
        if steps == 0:
            return Val(name, span)
        if self._is_too_far(name, steps, MOST_STATE_STEPS, span):
            return Bad(span)
        self.states[name] = max(self.states.get(name, 0), steps)
        return Val(f"{name}__1" if steps == 1 else f"{name}__delay{steps - 1}__1", span)

    def given(self, name: str, steps: int, span: Span) -> Term:
        """An input, `steps` ago."""
        if self._is_too_far(name, steps, MOST_EQUATIONS, span):
            return Bad(span)
        return self._kept(name, steps, span)

    def value(self, name: str, written: str, steps: int, reader: str, span: Span) -> Term:
        """The value of an equation, `steps` ago, as the equation of `reader` reads it. `check` says whether it may."""
        if self._is_too_far(written, steps, MOST_VALUE_STEPS, span):
            return Bad(span)
        self._shifts.append(_Shift(name, written, steps, reader, span))
        return self._kept(name, steps, span)

    def _kept(self, name: str, steps: int, span: Span) -> Term:
        if steps == 0:
            return Val(name, span)
        self.values[name] = max(self.values.get(name, 0), steps)
        return Val(f"{name}__{steps}", span)

    def _is_too_far(self, written: str, steps: int, most: int, span: Span) -> bool:
        if steps <= most:
            return False
        message = f"'{written}[t-{steps}]' reaches back more than {most:,} steps"
        help = "each step back is one more value that the layer keeps; keep a mean of older values in a state"
        self.report.error("RNN221", message, span, help=help)
        return True

    def check(self, equations: Sequence[Equation]) -> dict[str, int]:
        """`values` without those that cannot be, which are reported: inputs first, then in the order of the text."""
        past = _Past(equations, self._shifts)
        wrong: set[str] = set()
        for shift in self._shifts:
            if shift.name not in wrong and self._is_wrong(shift, past.reached(shift.name)):
                wrong.add(shift.name)
        order = dict.fromkeys((*self.symbols.inputs, *(equation.target for equation in equations)))
        return {name: self.values[name] for name in order if name in self.values and name not in wrong}

    def _is_wrong(self, shift: _Shift, reached: Mapping[str, bool]) -> bool:
        """Whether a value has no past, which is an error. `reached`: what it is made of, and whether that is known."""
        written, span = shift.written, shift.span
        bases = dict.fromkeys(name.partition("__")[0] for name in reached)
        state = next((base for base in bases if base in self.symbols.states), None)
        if shift.steps and shift.reader in reached:
            message = f"'{written}' needs its own older value: what goes from step to step is a state"
            help = f"declare a state for it: 'state {shift.name}', '{shift.name}[t] = …'"
        elif state is not None:
            message = f"'{written}' depends on the state '{state}', so it has no time index"
            held, time = f"{shift.name}_held", f"t-{shift.steps}"
            help = f"write '{written}' for this step's value"
            if shift.steps:
                help = f"declare a state that holds it: 'state {held}', '{held}[t] = {written}', '{held}[{time}]'"
        elif all(reached.values()) and not any(base in self.symbols.inputs for base in bases):
            message = f"'{written}' is made of parameters alone and does not change with time"
            help = f"write '{written}'"
        else:
            return False
        self.report.error("RNN216", message, span, help=help)
        return True


class _Past:
    """What the values of equations are made of, at this step and at others."""

    def __init__(self, equations: Sequence[Equation], shifts: Sequence[_Shift]) -> None:
        self._reads: dict[str, list[str]] = {}
        self._known: dict[str, bool] = {}
        self._found: dict[str, dict[str, bool]] = {}
        for equation in equations:
            self._reads.setdefault(equation.target, list(names(equation.term)))
            self._known[equation.target] = not any(isinstance(part, Bad) for part in walk(equation.term))
        for shift in shifts:
            self._reads[shift.reader].append(shift.name)

    def reached(self, name: str) -> dict[str, bool]:
        """A value and all that it is made of; False for what an error left unknown."""
        if name not in self._found:
            found, waiting = dict[str, bool](), [name]
            for one in waiting:
                if one not in found:
                    found[one] = self._known.get(one, True)
                    waiting += self._reads.get(one, [])
            self._found[name] = found
        return self._found[name]
