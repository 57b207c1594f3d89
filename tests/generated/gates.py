"""States of several widths whose loops have no products, and share numbers: one for all units, or one per head."""

from __future__ import annotations

from tests.generated.declarations import Declarations
from tests.generated.leaves import NARROW, Bounded, Leaf
from tests.generated.program import HEADS


class Gates(Declarations):
    """Declares such states, and writes their equations."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # The states, and the numbers that they share.
        self.gated: list[str] = []
        self.gates: list[Bounded] = []

    def declare_gated(self) -> None:
        """Two or three states, most of different widths, before the others or behind them."""
        if not self.chance(0.35):
            return
        widths = [w for w in self.units if w not in ("I", "E")]
        number = min(len(widths), self.random.choice((2, 2, 3)))
        earlier, self.draft.states = self.draft.states, {}
        for width in self.random.sample(widths, number):
            name = self.new("n")
            self.declare_state(name, width)
            self.gated.append(name)
        together = [earlier, self.draft.states]
        self.draft.states = {name: width for part in self.random.sample(together, 2) for name, width in part.items()}

    def draw_gates(self) -> None:
        """The shared numbers: of inputs, of products with one row (or one per head), of reductions."""
        if not self.gated:
            return
        for _ in range(self.random.choice((1, 1, 2))):
            kind = self.random.random()
            if kind < 0.3:
                width = NARROW if self.chance(0.6) else HEADS
                if width == HEADS:
                    self.units[HEADS] = self.heads
                name = self.new("gate")
                self.declare(f"local {name}: {width}")
                product = "W@x + b" if self.chance(0.5) else "U@x"
                self.draft.equations.append(f"{name} = sigmoid({product})")
                self.draft.leaves.append(Leaf(Bounded(name, 0, 1), width, "X"))
                self.gates.append(Bounded(name, 0, 1))
                continue
            self.draw.scope.level = "X"
            self.draw.scope.leaves = self.draft.leaves
            narrow = self.draw.leaves(NARROW)
            wide = [leaf for leaf in self.draw.leaves("H") if leaf.level == "X"]
            if kind < 0.8 and narrow:
                found = self.random.choice(narrow).value
            elif wide:
                found = self.random.choice(wide).value
                found = Bounded(f"mean({found.text})", found.low, found.high)
            else:
                found = Bounded("mean(x)" if self.heads == 1 else "0.3", -1, 1)
            self.gates.append(self.gate_of(found))

    def gate_of(self, value: Bounded) -> Bounded:
        """A number between 0 and 1."""
        text = self.random.choice(("sigmoid({})", "exp(-({})**2)", "exp(-sigmoid({}))", "hardsigmoid({} + 0.213)"))
        return Bounded(text.format(value.text), 0, 1)

    def gated_state(self, name: str) -> str:
        """The right side of the equation of such a state. Nothing in it depends on the state but itself."""
        width = self.draft.states[name]
        gates = list(self.gates)
        # A number that another state left.
        left = [e for e in self.draft.leaves if e.width in (NARROW, HEADS) and e.value.text.endswith("[t]")]
        if left and self.chance(0.5):
            gates = [self.gate_of(self.random.choice(left).value)]
        gate, other = self.random.choice(gates).text, self.random.choice(gates).text
        source = self.draw.squashed(self.draw.draw(width, self.random.choice((0, 1)))).text
        if "W@" not in source and self.chance(0.6):
            source = self.random.choice((f"tanh(W@x + {source})", f"({source})*tanh(W@x)"))
        if self.chance(0.6):
            return f"{gate}*{name}[t-1] + (1 - {gate})*{source}"
        return f"0.5*{gate}*{name}[t-1] + {source}*{other}"
