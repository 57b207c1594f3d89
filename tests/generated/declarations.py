"""Draws what a cell declares: sizes, inputs, constants, parameters, states, and the values that equations may read of
them."""

from __future__ import annotations

from random import Random

from tests.generated.expressions import Expressions
from tests.generated.leaves import NARROW, Bounded, Leaf
from tests.generated.matrices import DRAWN, MOVED
from tests.generated.program import HEADS
from tests.generated.records import Parts
from tests.language.loop import HIDDEN, INPUT

# States, hx and initial values lie between -STATE and STATE.
STATE = 2.0
# Widths of inputs alone, which have no heads.
OF_INPUTS = ("I", "E")


class Declarations:
    """The declarations of a seed's cell."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.seed = seed
        self.heads = random.choice((1, 1, 2, 3))
        self.square = random.random() < 0.25
        self.draft = Parts()
        self.counts: dict[str, int] = {}
        # Inputs of every step, and values that depend on one.
        self.moving = {"x"}
        inputs = HIDDEN if self.square else INPUT
        self.draft.sizes = {"I": inputs, "H": HIDDEN, HEADS: self.heads}
        self.units = {"H": HIDDEN, "2*H": 2 * HIDDEN}
        self.draw = Expressions(random, self.units, self.heads)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def new(self, stem: str) -> str:
        self.counts[stem] = self.counts.get(stem, 0) + 1
        return f"{stem}{self.counts[stem]}"

    def leaf(self, text: str, width: str, level: str, bound: float = 1.0) -> None:
        self.draft.leaves.append(Leaf(Bounded(text, -bound, bound), width, level))

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
        for width in self.random.sample(self.further(), self.random.choice((0, 0, 1, 2))):
            self.further_width(width)

    def further(self) -> list[str]:
        """Widths that few cells have."""
        literal = {1: "5", 2: "4", 3: "3"}[self.heads]
        found = [HEADS, f"2*{HEADS}", f"K*{HEADS}", "3*H", "n*H", literal]
        if self.heads == 1 and "P" in self.units:
            found.append("H + P")
        if self.heads in (1, 3):
            found.append("S")
        return found

    def further_width(self, width: str) -> None:
        match width:
            case "K*num_heads":
                self.declare("dim K = 2")
                self.draft.sizes["K"] = 2
            case "n*H":
                self.declare("const n = 2")
            case "S":
                # A size that the equations give: repeated, it is H.
                self.declare("dim S", "local half: S", "local whole: H")
                self.draft.sizes["S"] = HIDDEN // 2
                self.draft.equations += ["half = tanh(W@x + b)", "whole = repeat(half, 2)"]
                self.leaf("half", "S", "X")
                self.leaf("whole", "H", "X")
            case _:
                pass
        self.units[width] = int(eval(width, {"n": 2, **self.draft.sizes}))

    def inputs(self) -> None:
        self.leaf("x", "I", "X")
        self.units["I"] = self.draft.sizes["I"]
        kinds = [(NARROW, 0.3), ("H", 0.2), ("E", 0.2), ("", 0.1), (NARROW, 0.1)]
        kinds += [(width, 0.3) for width in self.units if HEADS in width or width.isdigit()]
        for width, chance in kinds:
            if self.chance(chance):
                self.input(width)
        for steps in (1, 2):
            if self.chance(0.15):
                self.leaf(f"x[t-{steps}]", "I", "X")
        if self.square and self.heads == 1:
            # With I == H, values as wide as x may meet values as wide as H.
            self.draft.leaves += [Leaf(e.value, "H", "X", False) for e in self.draft.leaves if e.width == "I"]

    def input(self, width: str) -> None:
        """An input beside x; as wide as x where it has no width."""
        name = self.new("in")
        if width == "E":
            self.declare("dim E = 3")
            self.units["E"] = self.draft.sizes["E"] = 3
        if self.chance(0.3):
            self.draft.defaults[name] = self.random.randrange(-4, 5) / 4
        start = f" = {self.draft.defaults[name]}" if name in self.draft.defaults else ""
        if self.chance(0.4):
            self.draft.per_sequence.add(name)
            start = f" per sequence{start}"
        before = "x, " if self.chance(0.1) and self.counts["in"] == 1 else ""
        self.declare(f"input {before}{name}: {width}{start}" if width else f"input {before}{name}{start}")
        self.leaf(name, width or "I", "X")
        self.draft.extra[name] = 1 if width == NARROW else self.units[width or "I"]
        if name not in self.draft.per_sequence:
            self.moving.add(name)
            if self.chance(0.3):
                self.leaf(f"{name}[t-1]", width or "I", "X")

    def constants(self) -> None:
        if self.chance(0.3):
            self.declare("const dt = 0.7")
            self.leaf("dt", NARROW, "P")
            if self.chance(0.5):
                self.draft.given["dt"] = 0.45
        if self.chance(0.2):
            self.declare("const act = tanh")
            self.draw.squashes += ("act",)
        if self.chance(0.2):
            self.declare("const back = 2")

    def parameters(self) -> None:
        for name, kind, width in (("pv", "vector", "H"), ("pw", "vector", "2*H"), ("ps", "scalar", NARROW)):
            if self.chance(0.3):
                # Of a generator of its own, as `norm` of cells.py.
                is_said = Random(f"{self.seed} {name}").random() < 0.5
                self.declare(
                    f"param {name}: {kind}({width})" if kind == "vector" and is_said else f"param {name}: {kind}"
                )
                self.draft.vectors.append((name, width))
                if width != "2*H":  # the width of a vector is H where nothing else decides it
                    self.draft.leaves.append(Leaf(Bounded(name, -1, 1), width, "P", is_said or kind == "scalar"))
        self.draft.vectors += [("b", ""), ("bR", ""), ("g", "")]
        self.declare("weights g: vector, V: matrix, U: matrix, Q: matrix, Dg: diag")
        if self.chance(0.2):
            self.declare("weights gs: scalar")
            self.leaf("gs", NARROW, "P")
        if self.chance(0.3):
            kind = self.random.choice(("lowrank(2)", "mask", "sparse(density=0.9)"))
            self.declare(f"weights Z: {kind}")
            self.draft.groups.append("Z")
        if self.chance(0.15):
            self.declare(f"weights R: {self.random.choice(('lowrank(1)', 'mask'))}")
        if self.chance(0.3):
            self.declare("param MA: matrix(H, H)")
            self.draft.matrices += [(text, "H", "H", "") for text in ("MA", "T(MA)", "(MA - T(MA) - 0.5*eye(H))")]
        if self.chance(0.2):
            # The equations say which widths it has.
            self.declare("param MI: matrix")
            self.draft.matrices.append(("MI", "H", "H", ""))
        if "P" in self.units and self.chance(0.5):
            self.declare("param MP: matrix(P, H)")
            self.draft.matrices += [("MP", "P", "H", ""), ("T(MP)", "H", "P", "")]
        if self.heads == 1 and self.chance(0.2):
            self.declare(f"weights BD: blockdiag({self.random.choice((2, 3))})", "param PB: blockdiag(2)")
            self.draft.matrices += [("BD", "H", "H", ""), ("PB", "H", "H", ""), ("T(PB)", "H", "H", "")]
        if self.chance(0.4):
            self.declare(f"{self.random.choice(('param', 'buffer'))} MF: matrix(H, H)", "buffer bs: vector")
            drawn, own = self.random.sample(DRAWN, 5), Random(f"{self.seed} moved")
            if own.random() < 0.5:
                drawn[0] = own.choice(MOVED)
            self.draft.matrices += [(text, "H", "H", "") for text in drawn]

    def declare_states(self) -> None:
        widths = [w for w in self.units if w not in OF_INPUTS] + ["H", "H", "H", "H"]
        if self.heads == 1:
            widths += [NARROW, "I"]
        for number in range(self.random.choice((1, 1, 2, 2, 3))):
            name, width = f"h{number}", self.random.choice(widths)
            self.declare_state(name, width)
            if self.square and width == "H":
                self.leaf(self.random.choice((f"x*{name}[t-1]", f"({name}[t-1] - x)")), width, "S", 3.0)
            if self.chance(0.2):
                back = "back" if "const back = 2" in self.draft.declarations and self.chance(0.7) else "3"
                self.leaf(f"{name}[t-{back}]", width, "S", STATE)
        if self.chance(0.1):
            self.largest()

    def declare_state(self, name: str, width: str) -> None:
        initial = self.random.choice(("", "", "", " = learned", " = 0.5", " = -1"))
        self.declare(f"state {name}{'' if width == 'H' else f': {width}'}{initial}")
        self.draft.states[name] = width
        self.leaf(f"{name}[t-1]", width, "S", STATE)

    def largest(self) -> None:
        """A state that is a running maximum, from -inf. It keeps exp within bounds, as in an xLSTM."""
        self.declare("state m = -inf")
        self.draft.equations.append(f"m[t] = max(m[t - 1] - 0.301, {self.random.choice(('W@x', 'tanh(W@x + b)'))})")
        self.draft.leaves.append(Leaf(Bounded("exp(m[t-1] - m[t])", 0, 1.36), "H", "S"))
