"""Draws cells from seeds: declarations, values before, in and after the loops, states of several widths, an output."""

from __future__ import annotations

import ast
import re
from random import Random

from tests.generated.definitions import with_functions
from tests.generated.expressions import NARROW, Bounded, Expressions, Leaf, Scope
from tests.generated.interpreter import Step, states
from tests.generated.matrices import DRAWN
from tests.generated.narrow import is_narrow, names_an_input, reads_values
from tests.generated.program import read, spelled
from tests.generated.records import Generated, Parts
from tests.language.loop import HIDDEN, INPUT, Case, Setting

# States, hx and initial values lie between -STATE and STATE.
STATE = 2.0


class _Cell:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.seed = seed
        self.heads = random.choice((1, 1, 2, 3))
        self.square = random.random() < 0.25
        self.draft = Parts()
        self.counts: dict[str, int] = {}
        # Targets that may do without a declaration, and their widths.
        self.open: dict[str, str] = {}
        # Inputs of every step, and values that depend on one.
        self.moving = {"x"}
        inputs = HIDDEN if self.square else INPUT
        self.draft.sizes = {"I": inputs, "H": HIDDEN}
        self.units = {"H": HIDDEN, "2*H": 2 * HIDDEN}
        self.draw = Expressions(random, self.units, self.heads)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def new(self, stem: str) -> str:
        self.counts[stem] = self.counts.get(stem, 0) + 1
        return f"{stem}{self.counts[stem]}"

    def leaf(self, text: str, width: str, level: str, bound: float = 1.0) -> None:
        self.draft.leaves.append(Leaf(Bounded(text, -bound, bound), width, level))

    def make(self) -> Generated:
        self.sizes()
        self.inputs()
        self.constants()
        self.parameters()
        self.declare_states()
        for _ in range(self.random.randrange(3)):
            self.value("P")
        for _ in range(self.random.randrange(4)):
            self.value("X")
        previous = list(self.draft.leaves)
        for number, name in enumerate(self.draft.states):
            if number and self.chance(0.3):
                # A loop of its own, which reads what the others leave.
                self.draft.leaves = [
                    e for e in self.draft.leaves if e.level != "S" or e.value.text.startswith(name)
                ] + [e for e in self.draft.leaves if e.value.text.endswith("[t]")]
            for _ in range(self.random.randrange(4)):
                self.value("S")
            if self.chance(0.12):
                self.loop()
            self.state(name, always=number == 0)
            self.draft.leaves += [e for e in previous if e not in self.draft.leaves]
        self.output()
        return self.finished()

    # Declarations

    def declare(self, *lines: str) -> None:
        self.draft.declarations += lines

    def sizes(self) -> None:
        if self.chance(0.4):
            size = self.random.choice({1: (2, 3, 5), 2: (2, 4), 3: (3, 6)}[self.heads])
            default = self.random.choice((4, 6))
            self.declare(f"dim P = {default}")
            self.draft.given["P"] = size
            self.units["P"] = self.draft.sizes["P"] = size
        if self.heads in (1, 3) and self.chance(0.2):
            self.units["H//2"] = HIDDEN // 2

    def inputs(self) -> None:
        self.leaf("x", "I", "X")
        self.units["I"] = self.draft.sizes["I"]
        for width, units, chance in ((NARROW, 1, 0.25), ("H", HIDDEN, 0.2), ("E", 3, 0.2), ("", self.units["I"], 0.1)):
            if not self.chance(chance):
                continue
            name = self.new("in")
            if width == "E":
                self.declare("dim E = 3")
                self.units["E"] = self.draft.sizes["E"] = 3
            # Of a generator of its own, so that what else a seed draws is what it was.
            default = Random(f"{self.seed} {name}")
            if default.random() < 0.3:
                self.draft.defaults[name] = default.randrange(-4, 5) / 4
            start = f" = {self.draft.defaults[name]}" if name in self.draft.defaults else ""
            if default.random() < 0.4:
                self.draft.per_sequence.add(name)
                start = f" per sequence{start}"
            self.declare(f"input {name}: {width}{start}" if width else f"input {name}{start}")
            self.leaf(name, width or "I", "X")
            self.draft.extra[name] = units
            earlier = self.chance(0.3)
            if name in self.draft.per_sequence:
                continue
            self.moving.add(name)
            if earlier:
                self.leaf(f"{name}[t-1]", width or "I", "X")
        for steps in (1, 2):
            if self.chance(0.15):
                self.leaf(f"x[t-{steps}]", "I", "X")
        if self.square and self.heads == 1:
            # With I == H, values as wide as x may meet values as wide as H.
            self.draft.leaves += [Leaf(e.value, "H", "X") for e in self.draft.leaves if e.width == "I"]

    def constants(self) -> None:
        if self.chance(0.3):
            self.declare("const dt = 0.7")
            self.leaf("dt", NARROW, "P")
            if self.chance(0.5):
                self.draft.given["dt"] = 0.45

    def parameters(self) -> None:
        for name, kind, width in (("pv", "vector", "H"), ("pw", "vector", "2*H"), ("ps", "scalar", NARROW)):
            if self.chance(0.3):
                self.declare(f"param {name}: {kind}")
                self.draft.vectors.append((name, width))
                if width != "2*H":  # the width of a vector is H where nothing else decides it
                    self.leaf(name, width, "P")
        self.draft.vectors += [("b", ""), ("bR", ""), ("g", "")]
        self.declare("weights g: vector, V: matrix, U: matrix, Q: matrix, Dg: diag")
        if self.chance(0.3):
            self.declare("param MA: matrix(H, H)")
            self.draft.matrices += [(text, "H", "H") for text in ("MA", "T(MA)", "(MA - T(MA) - 0.5*eye(H))")]
        if "P" in self.units and self.chance(0.5):
            self.declare("param MP: matrix(P, H)")
            self.draft.matrices += [("MP", "P", "H"), ("T(MP)", "H", "P")]
        if self.heads == 1 and self.chance(0.2):
            self.declare(f"weights BD: blockdiag({self.random.choice((2, 3))})", "param PB: blockdiag(2)")
            self.draft.matrices += [("BD", "H", "H"), ("PB", "H", "H"), ("T(PB)", "H", "H")]

        own = Random(f"{self.seed} matrices")
        if own.random() < 0.4:
            self.declare(f"{own.choice(('param', 'buffer'))} MF: matrix(H, H)", "buffer bs: vector")
            self.draft.matrices += [(text, "H", "H") for text in own.sample(DRAWN, 5)]

    def declare_states(self) -> None:
        widths = [w for w in self.units if w not in ("I", "E")] + ["H", "H", "H", "H"]
        if self.heads == 1:
            widths.append(NARROW)
        for number in range(self.random.choice((1, 1, 2, 2, 3))):
            name, width = f"h{number}", self.random.choice(widths)
            initial = self.random.choice(("", "", "", " = learned", " = 0.5", " = -1"))
            self.declare(f"state {name}{'' if width == 'H' else f': {width}'}{initial}")
            self.draft.states[name] = width
            self.leaf(f"{name}[t-1]", width, "S", STATE)
            if self.square and width == "H":
                self.leaf(self.random.choice((f"x*{name}[t-1]", f"({name}[t-1] - x)")), width, "S", 3.0)
            if self.chance(0.2):
                self.leaf(f"{name}[t-{self.random.choice((2, 3))}]", width, "S", STATE)

        if self.chance(0.1):
            self.largest()

    def largest(self) -> None:
        """A state that is a running maximum, from -inf. It keeps exp within bounds, as in an xLSTM."""
        self.declare("state m = -inf")
        self.draft.equations.append(f"m[t] = max(m[t - 1] - 0.301, {self.random.choice(('W@x', 'tanh(W@x + b)'))})")
        self.draft.leaves.append(Leaf(Bounded("exp(m[t-1] - m[t])", 0, 1.36), "H", "S"))

    # Equations

    def scope(self, level: str, batched_only: bool = False) -> Scope:
        state = "S" if self.heads > 1 else ""
        inputs = "X" if self.heads > 1 else ""
        matrices = [("W", "", "", inputs or level), ("U", "", "", inputs or level)]
        if level == "S" or not state:
            matrices += [("R", "", "", level), ("V", "", "", level), ("Q", "", "", level)]
        matrices += [("Dg", w, w, level) for w in self.units if w not in ("I", "E")]
        matrices += [(*entry, level) for entry in self.draft.matrices]
        # An operand must have a width of its own: one that values of the level have.
        self.draw.scope = Scope(self.draft.leaves, level, [], list(self.draft.vectors), batched_only)
        widths = self.draw.operand_widths(level)
        self.draw.scope.matrices = [m for m in matrices if (not m[2] and (level != "P" or widths)) or m[2] in widths]
        return self.draw.scope

    def widths(self, level: str) -> list[str]:
        return [w for w in self.units if (level != "P" and self.heads == 1) or w not in ("I", "E")]

    def target(self, width: str, stem: str = "v") -> str:
        name = self.new(stem)
        if width not in ("H", NARROW) or self.chance(0.3):
            self.declare(f"local {name}: {width}")
        else:
            self.open[name] = width
        return name

    def settle(self, left: str, text: str) -> None:
        """Declare targets whose values would give them another width, and some of the others."""
        narrow = is_narrow(text, self.draft.leaves) and reads_values(text)
        for name in left.split(", "):
            width = self.open.pop(name, "")
            if width and narrow != (width == NARROW):
                self.declare(f"local {name}: {width}")

    def write(self, left: str, value: Bounded, width: str = "") -> None:
        self.draft.equations.append(f"{left} = {ast.unparse(ast.parse(value.text, mode='eval'))}")
        self.settle(left, value.text)
        narrows = re.search(r"@| if |sum|mean|max|min|concat|repeat", value.text)
        if width and re.search(r"\bg\b", value.text) and not narrows:
            # Another equation may share the parameter by its full name.
            self.draft.vectors.append((f"g_{left}", width))

    def value(self, level: str) -> None:
        """An equation for a value, of a level at most."""
        self.scope(level, batched_only=level != "S")
        width = self.random.choice([*self.widths(level), "H", NARROW])
        kind = self.random.random()
        if kind < 0.1 and width == "H" and self.draw.can_pin("2*H"):
            self.split(level)
            return
        if kind < 0.2 and width != NARROW:
            several = [self.target(width) for _ in range(2)]
            value = self.draw.draw(width, 2)
            self.write(", ".join(several), value)
            for name in several:
                self.draft.leaves.append(Leaf(Bounded(name, value.low, value.high), width, level))
            return
        name = self.target(width)
        value = self.bare(width) if kind < 0.35 else self.draw.draw(width, self.random.choice((1, 2, 3)))
        self.write(name, value, width)
        self.draft.leaves.append(Leaf(Bounded(name, value.low, value.high), width, level))
        if level == "X" and names_an_input(value.text, self.moving):
            self.moving.add(name)
            self.older(name, value, width)

    def older(self, name: str, value: Bounded, width: str) -> None:
        """Older values of what depends on an input. They are zero before the start."""
        # Of a generator of its own, as with inputs.
        chosen = Random(f"{self.seed} {name}")
        for steps in (1, 3):
            if chosen.random() < 0.5:
                bounded = Bounded(f"{name}[t-{steps}]", min(value.low, 0), max(value.high, 0))
                self.draft.leaves.append(Leaf(bounded, width, "X"))

    def bare(self, width: str) -> Bounded:
        """A right side that is just one function across units, one product, or one value."""
        match self.random.randrange(4):
            case 0 | 1:
                return self.draw.reduction(2) or self.draw.draw(width, 1)
            case 2:
                return self.draw.draw(width, 0)
            case _:
                makers = (self.draw.across, self.draw.product)
                pinned = self.draw.can_pin(width)
                return (
                    self.random.choice(makers)(width, 2, pinned)
                    if width != NARROW and pinned
                    else self.draw.draw(width, 1)
                )

    def split(self, level: str) -> None:
        # The split value contains a value of declared width, since no target gives it a width.
        whole = next(e.value for e in self.draw.leaves("2*H"))
        value = self.draw.binary_of(whole, self.draw.draw("2*H", 2))
        names = [self.target("H", "part"), self.target("H", "part")]
        self.write(", ".join(names), Bounded(f"split({value.text})", value.low, value.high))
        for name in names:
            self.draft.leaves.append(Leaf(Bounded(name, value.low, value.high), "H", level))

    def loop(self) -> None:
        """Rounds of one equation, with parameters of their own."""
        self.scope("S")
        start = self.draw.leaf("H")
        if start is None or not self.draw.can_pin("H"):
            return
        name, rounds = self.new("s"), self.random.choice((1, 2, 3))
        self.declare(f"const L{name} = {rounds}", f"local {name}: H")
        inner = self.random.choice((
            f"tanh(R@{name}[l - 1] + (W@x if l == 1 else 0) + b)",
            f"{name}[l - 1]*sigmoid(V@{name}[l - 1]) + g*(mean({name}[l - 1]) if l > 1 else 0)",
            f"mean(Q@{name}[l - 1])",
            f"0.5*(softmax({name}[l - 1]) + {name}[0])",
        ))  # fmt: skip
        squashed = self.random.choice(("tanh({})", "sin({})")).format(inner)
        self.draft.equations.append(f"{name}[0] = tanh({start.text})")
        self.draft.equations.append(f"for l in 1..L{name}:\n    {name}[l] = {squashed}")
        self.leaf(f"{name}[L{name}]", "H", "S")

    def state(self, name: str, always: bool) -> None:
        """The equation of a state. The first reads an input or a parameter, so that there is a gradient."""
        width = self.draft.states[name]
        self.scope("S")
        kind = self.random.random()
        if always and kind < 0.25:
            kind = 0.5
        if kind < 0.25:
            value = self.bare(width)
        elif kind < 0.5 and width != NARROW:
            gate, new = self.draw.draw(width, 1), self.draw.draw(width, 2)
            value = Bounded(
                f"sigmoid({gate.text})*{name}[t-1] + (1 - sigmoid({gate.text}))*tanh({new.text})", -STATE, STATE
            )
        else:
            value = self.draw.draw(width, self.random.choice((2, 3, 3)))
        if always:
            source = "W@x" if width != NARROW else "mean(x)"
            self.draw.scope.matrices = []
            held = value if "W@" not in value.text else self.draw.draw(width, 1)
            value = Bounded(f"({held.text}) + {source}", held.low - 3, held.high + 3)
        self.write(f"{name}[t]", self.within(value))
        self.leaf(f"{name}[t]", width, "S", STATE)

    def within(self, value: Bounded) -> Bounded:
        """The value within a state's bounds."""
        if value.size <= STATE:
            return value
        match self.random.randrange(5):
            case 0:
                return Bounded(f"clamp({value.text}, -1.8127, 1.7391)", -STATE, STATE)
            case 1 | 2:
                return self.draw.scaled(value, STATE)
            case _:
                return self.draw.squashed(value)

    def output(self) -> None:
        kind = self.random.random()
        if kind < 0.5:
            return
        if kind < 0.6:
            self.declare(f"output {self.random.choice(list(self.draft.states))}")
            return
        self.scope("S", batched_only=self.chance(0.5))
        width = self.random.choice([*self.widths("S"), "H", NARROW])
        name = self.target(width, "y")
        self.write(name, self.bare(width) if self.chance(0.25) else self.draw.draw(width, 3))
        self.declare(f"output {name}")

    # The whole

    def finished(self) -> Generated:
        self.random.shuffle(self.draft.equations)
        name = f"Cell{self.seed}"
        equations = with_functions(self.draft.equations, self.seed)
        text = spelled("\n".join((f"cell {name}", *self.draft.declarations, *equations, "")))
        constants = {key: value for key, value in self.draft.given.items() if key != "P"}
        program = read(text, self.draft.sizes, constants)
        given = dict(self.draft.given)
        if self.chance(0.3):
            given["recompute"] = True
        found = states(program)
        case = Case(
            text, lambda H: found, Step(program), heads=self.heads, extra=self.draft.extra, arguments=given,
            square=self.square, bounded=True, defaults=self.draft.defaults, per_sequence=self.draft.per_sequence,
        )  # fmt: skip
        return Generated(self.seed, text, case, self.settings(), self.draft.sizes, constants)

    def settings(self) -> tuple[Setting, ...]:
        """Once plain; once in both directions, from given states, with lengths and resets, or with some of these."""
        steps = self.random.choice((1, 2, 3, 5))
        lengths = (
            (self.random.randrange(steps + 1), self.random.randrange(steps + 1), steps) if self.chance(0.6) else None
        )
        return (
            Setting(heads=1, steps=self.random.choice((1, 2, 4)), states=self.chance(0.5)),
            Setting(
                heads=self.heads, steps=steps, bidirectional=self.chance(0.5), states=self.chance(0.5),
                lengths=lengths, reset=self.chance(0.5),
            ),
        )  # fmt: skip


def generate(seed: int) -> Generated:
    """The cell of a seed."""
    return _Cell(seed).make()
