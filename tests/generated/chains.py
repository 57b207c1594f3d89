"""Draws cells whose step is a chain of phases: products, norms, softmax and sums that wait for each other.

A fused kernel runs such a step (rnncc/ir/fused.py). Values stay near 1, by tanh, sigmoid and norms, and functions are
smooth. So a comparison in 16 bits means something after several steps, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.generated.interpreter import Step, states
from tests.generated.links import Links
from tests.generated.program import read
from tests.generated.records import Generated
from tests.language.loop import HIDDEN, Case, Setting

MOST_PHASES = 6
# What a chain may have, and a fused kernel takes.
FEATURES = (
    "product", "sum of operands", "two matrices of an operand", "reset before product", "several gates",
    "bias inside", "layernorm", "rmsnorm", "softmax", "mean", "sum", "max", "divided by its mean", "parts",
    "norm of parts", "concat", "per-head number", "spread number", "several states", "late state",
    "learned start", "earlier state", "loop", "computed matrix", "cumsum", "repeat", "no product",
    "value of its own width", "norm of its own width", "softmax of its own width", "number of its own width",
    "square of its own width", "state of its own width", "two widths", "low rank", "diagonal", "vector", "scalar",
    "constant", "input H", "stream", "norm of a stream", "number per entry", "earlier input", "earlier value", "output",
    "heads", "input per sequence",
)  # fmt: skip
# What a chain may have on request, and a fused kernel does not take.
OTHERS = ("state of parts", "numbers per head", "operand of parts", "repeated parts")


@dataclass(frozen=True, slots=True)
class Chain:
    """A cell, what it has of FEATURES and OTHERS, and the number of phases that its longest chain was drawn for."""

    cell: Generated
    features: frozenset[str]
    phases: int


class _Chain(Links):
    def __init__(self, seed: int, others: bool) -> None:
        super().__init__(Random(f"chain {seed} {others}"), others)
        self.seed = seed
        self.per_sequence: set[str] = set()
        # This generator is another one, so that a seed's number of phases does not depend on what else is drawn.
        self.phases = Random(f"phases {seed}").randint(1, MOST_PHASES)

    def make(self) -> Chain:
        self.inputs()
        self.declare_states()
        self.now = self.known[-1]
        left = self.phases
        while left:
            if self.chance(0.35):
                self.side()
            links = [(cost, link) for cost, link in self.links() if cost <= left]
            cost, link = self.random.choice(links)
            link()
            left -= cost
            if len(self.late) > 1 and self.chance(0.4):
                self.state(self.late.pop())
        while self.late:
            self.state(self.late.pop())
        self.output()
        return self.finished()

    def inputs(self) -> None:
        if self.heads > 1:
            self.features.add("heads")
        self.write("x0", "W@x + b")
        self.keep("tanh(x0)")
        self.features.add("stream")
        if self.chance(0.25):
            self.write("x1", f"layernorm(W@x)*{'g' if self.chance(0.5) else '0.5'} + b")
            self.features.add("norm of a stream")
            self.keep("tanh(x1)")
        if self.chance(0.2):
            self.declare(f"input u: H{self.once('u')}", "input H")
            self.extra["u"] = HIDDEN
            self.keep("u")
        if self.chance(0.15):
            self.declare(f"input gap: 1{self.once('gap')}", "number per entry")
            self.extra["gap"] = 1
            self.keep("exp(-gap)", is_narrow=True)
        if self.chance(0.2):
            self.declare("param pv: vector", "vector")
            self.keep("tanh(pv)")
        if self.chance(0.25):
            self.declare("const dt = 0.4", "constant")

    def once(self, name: str) -> str:
        """Whether an input is given per sequence. Of a generator of its own, so that a seed's other draws stay."""
        if Random(f"{self.seed} {name}").random() < 0.5:
            return ""
        self.features.add("input per sequence")
        self.per_sequence.add(name)
        return " per sequence"

    def declare_states(self) -> None:
        count = self.random.choice((1, 1, 2, 2, 3))
        if count > 1:
            self.features.add("several states")
        for number in range(count):
            name, start = f"h{number}", self.random.choice(("", "", "", " = learned", " = 0.5"))
            if "learned" in start:
                self.features.add("learned start")
            self.declarations.append(f"state {name}{start}")
            self.states.append(name)
            self.keep(f"{name}[t-1]")
        self.late = list(self.states)
        if self.chance(0.15):
            self.features.add("earlier state")
            self.keep(f"{self.random.choice(self.states)}[t-2]")

    def state(self, name: str) -> None:
        """The equation of a state. The first one comes last, and takes what nothing else has read."""
        is_last = not self.late
        if not is_last:
            self.features.add("late state")
        taken, gate = self.taken(), self.gate(self.now)
        forms = [f"{gate}*{name}[t-1] + (1 - {gate})*tanh({taken})", f"tanh({taken} + 0.5*{name}[t-1])"]
        if "const dt = 0.4" in self.declarations:
            forms.append(f"(1 - dt)*{name}[t-1] + dt*tanh({taken})")
        text = self.random.choice(forms)
        if is_last:
            for value in [value for value in self.known if not value.uses]:
                value.uses += 1
                text += f" + 0.1*{value.text}"
        self.write(f"{name}[t]", text)
        written = self.keep(f"{name}[t]", bound=2)
        if not is_last:
            self.now = written

    def output(self) -> None:
        if not self.chance(0.3):
            return
        self.features.add("output")
        first = f"{self.states[0]}[t]"
        self.write("y", self.random.choice((f"sigmoid(W@x + b)*{first}", f"R@{first} + b", f"g*layernorm({first})")))
        self.declarations.append("output y")

    def finished(self) -> Chain:
        if not any("@" in text.replace("W @ x", "") for text in self.equations):
            self.features.add("no product")
        self.random.shuffle(self.equations)
        name = f"Chain{self.seed}"
        text = "\n".join((f"cell {name}", *self.declarations, *self.equations, ""))
        program = read(text, self.sizes)
        found = states(program)
        given: dict[str, Any] = {name: self.sizes[name] for name in "KPQ" if name in self.sizes}
        case = Case(
            text, lambda H: found, Step(program), heads=self.heads, extra=self.extra, arguments=given, bounded=True,
            per_sequence=self.per_sequence,
        )  # fmt: skip
        lengths = (self.random.randrange(4), self.random.randrange(4), 3)
        settings = (
            Setting(heads=self.heads, steps=2, states=True),
            Setting(heads=self.heads, steps=3, bidirectional=True, lengths=lengths, reset=True),
        )
        cell = Generated(self.seed, text, case, settings, self.sizes, {})
        return Chain(cell, frozenset(self.features), self.phases)


def chain(seed: int, others: bool = False) -> Chain:
    """The chain of a seed. `others`: it may have what is in OTHERS."""
    return _Chain(seed, others).make()
