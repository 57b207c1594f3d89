"""Draws cells from seeds: declarations, values before, in and after the loops, states of several widths, an output."""

from __future__ import annotations

import ast
import re
from random import Random

from tests.generated.declarations import OF_INPUTS, STATE
from tests.generated.definitions import with_functions
from tests.generated.gates import Gates
from tests.generated.interpreter import Step, states
from tests.generated.leaves import NARROW, Bounded, Leaf, Scope
from tests.generated.narrow import is_narrow, names_an_input, reads_values
from tests.generated.norms import written_out
from tests.generated.program import HEADS, read, spelled
from tests.generated.records import Generated
from tests.generated.rounds import rounds
from tests.language.loop import Case, Setting

# What a value is cut into: the parts, each with its width.
_SPLIT = {
    "2*H": (("H", "H"),),
    "3*H": (("H", "H", "H"), ("H", "2*H"), ("H", "H", "H"), ("2*H", "H")),
    "2*num_heads": ((NARROW, HEADS), (HEADS, NARROW), (NARROW, NARROW)),
    "H + P": (("H", "P"), ("P", "H")),
}


class _Cell(Gates):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # Targets that may do without a declaration, and their widths.
        self.open: dict[str, str] = {}
        # Constants, and values that these alone make.
        self.numbers = ["dt"]
        # Whether the text says `num_heads`: then all widths are those of one number of heads.
        self.needs_heads = False

    def make(self) -> Generated:
        self.sizes()
        self.inputs()
        self.constants()
        self.parameters()
        self.declare_states()
        self.declare_gated()
        for _ in range(self.random.randrange(3)):
            self.value("P")
        for _ in range(self.random.randrange(4)):
            self.value("X")
        if self.chance(0.1):
            self.loop("X")
        self.norm("X")
        self.draw_gates()
        previous = list(self.draft.leaves)
        first = next(name for name in self.draft.states if name not in self.gated)
        for number, name in enumerate(self.draft.states):
            if name in self.gated:
                self.scope("X")
                self.write(f"{name}[t]", Bounded(self.gated_state(name), -STATE, STATE))
                self.leaf(f"{name}[t]", self.draft.states[name], "S", STATE)
                continue
            if number and self.chance(0.3):
                # A loop of its own, which reads what the others leave.
                self.draft.leaves = [
                    e for e in self.draft.leaves if e.level != "S" or e.value.text.startswith(name)
                ] + [e for e in self.draft.leaves if e.value.text.endswith("[t]")]
            for _ in range(self.random.randrange(4)):
                self.value("S")
            if self.chance(0.12):
                self.loop("S")
            self.norm("S")
            self.state(name, always=name == first)
            self.draft.leaves += [e for e in previous if e not in self.draft.leaves]
        self.output()
        return self.finished()

    # Equations

    def scope(self, level: str, batched_only: bool = False) -> Scope:
        # W never multiplies a value that depends on a state where there are heads.
        inputs = "X" if self.heads > 1 else ""
        matrices = [("W", "", "", inputs or level), ("U", "", "", inputs or level)]
        matrices += [(name, "", "", level) for name in ("R", "V", "Q", *self.draft.groups)]
        matrices += [("Dg", w, w, level) for w in self.units if w not in OF_INPUTS]
        shared = self.random.sample(self.draft.shared, min(3, len(self.draft.shared)))
        matrices += [(text, to, of, top or level) for text, to, of, top in self.draft.matrices + shared]
        self.draw.products = []
        # An operand must have a width of its own: one that values of the level have.
        self.draw.scope = Scope(self.draft.leaves, level, [], list(self.draft.vectors), batched_only)
        widths = self.draw.operand_widths(level)
        self.draw.scope.matrices = [m for m in matrices if (not m[2] and (level != "P" or widths)) or m[2] in widths]
        return self.draw.scope

    def widths(self, level: str) -> list[str]:
        return [w for w in self.units if (level != "P" and self.heads == 1) or w not in OF_INPUTS]

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

    def with_sizes(self, value: Bounded, left: str) -> Bounded:
        """The value with numbers that are made of sizes in place of some literal ones."""
        # Of a generator of its own, as `norm`.
        own = Random(f"{self.seed} sizes {left}")
        names = ["H", "I", HEADS, *(["P"] if "P" in self.draft.sizes else [])]

        def made(match: re.Match[str]) -> str:
            size = own.choice(names)
            return f"({match[1]}*{size}/{size})" if own.random() < 0.2 else match[0]

        return Bounded(re.sub(r"(?<![\w*])\((-?\d+(?:\.\d+)?)\)", made, value.text), value.low, value.high)

    def write(self, left: str, value: Bounded, width: str = "") -> None:
        value = self.with_sizes(value, left)
        self.draft.equations.append(f"{left} = {ast.unparse(ast.parse(value.text, mode='eval'))}")
        self.settle(left, value.text)
        if not reads_values(value.text, self.numbers):
            self.numbers.append(left)
        if not width:
            return
        # Another equation may share parameters by their full names.
        name = left.removesuffix("[t]")
        narrows = re.search(r"@| if |sum|mean|max|min|concat|repeat", value.text)
        if re.search(r"\bg\b", value.text) and not narrows:
            self.draft.vectors.append((f"g_{name}", width))
        for group, operand, level in self.draw.products:
            if re.search(rf"\b{group}@", value.text):
                self.draft.shared.append((f"{group}_{name}", width, operand, level))

    def value(self, level: str) -> None:
        """An equation for a value, of a level at most."""
        self.scope(level, batched_only=level != "S")
        width = self.random.choice([*self.widths(level), "H", NARROW])
        kind = self.random.random()
        wholes = [each for each in self.units if each in _SPLIT and self.draw.can_pin(each)]
        if kind < 0.13 and wholes:
            self.split(level, self.random.choice(wholes))
            return
        if kind < 0.2 and width != NARROW:
            several = [self.target(width) for _ in range(2)]
            value = self.draw.draw(width, 2)
            self.write(", ".join(several), value)
            for name in several:
                self.draft.leaves.append(Leaf(Bounded(name, value.low, value.high), width, level))
            return
        if width == NARROW and kind < 0.5 and level != "P" and (self.heads == 1 or level == "X"):
            self.row(level)
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
        for steps in (1, 3):
            if self.chance(0.5):
                bounded = Bounded(f"{name}[t-{steps}]", min(value.low, 0), max(value.high, 0))
                self.draft.leaves.append(Leaf(bounded, width, "X"))
        if self.chance(0.4):
            self.draft.leaves.append(Leaf(Bounded(f"{name}[t]", value.low, value.high), width, "X"))

    def row(self, level: str) -> None:
        """One number that a product with one row makes."""
        name = self.new("v")
        self.declare(f"local {name}: 1")
        product = self.draw.product(NARROW, 2, pinned=False)
        text = self.random.choice(("sigmoid({} + b)", "tanh({})", "sin({} + b)")).format(product.text)
        self.write(name, Bounded(text, -1, 1), NARROW)
        self.leaf(name, NARROW, level)

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

    def split(self, level: str, whole: str) -> None:
        # The split value contains a value of declared width, since no target gives it a width.
        value = self.draw.binary_of(self.random.choice(self.draw.leaves(whole)).value, self.draw.draw(whole, 2))
        if self.chance(0.3):
            value = Bounded(f"softmax({value.text})", 0, 1)
        parts = self.random.choice(_SPLIT[whole])
        names = [self.new("part") for _ in parts]
        for name, width in zip(names, parts, strict=True):
            if width != "H" or self.chance(0.3):
                self.declare(f"local {name}: {width}")
            if width == HEADS:
                self.units[HEADS] = self.heads
            self.draft.leaves.append(Leaf(Bounded(name, value.low, value.high), width, level))
        self.write(", ".join(names), Bounded(f"split({value.text})", value.low, value.high))

    def loop(self, level: str) -> None:
        self.scope(level)
        start = self.draw.leaf("H")
        if start is None or (level == "X" and not names_an_input(start.text, self.moving)):
            return
        declarations, equations, last = rounds(self.random, self.new("s"), start.text, level)
        self.declare(*declarations)
        self.draft.equations += equations
        self.leaf(last, "H", level, 1.5)

    def norm(self, level: str) -> None:
        # Of a generator of its own: what else a seed draws does not depend on it.
        own = Random(f"{self.seed} {level} {len(self.draft.equations)}")
        if own.random() > 0.1:
            return
        self.scope(level)
        found = [e for e in [*self.draw.leaves(NARROW), *self.draw.leaves("H")] if e.level == level]
        # A number has no units.
        found = [e for e in found if reads_values(e.value.text, self.numbers)]
        if not found:
            return
        name = self.new("norm")
        declarations, equations, value = written_out(own, own.choice(found).value.text, name)
        self.declare(*declarations)
        self.draft.equations += equations
        self.draft.leaves.append(Leaf(value, "H", level))

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
        self.write(f"{name}[t]", self.within(value), width)
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
        self.random.shuffle(self.draft.declarations)
        name = f"Cell{self.seed}"
        equations = with_functions(self.draft.equations, self.seed)
        # A width may stand anywhere.
        late = [line for line in self.draft.declarations if line.startswith("local ") and self.chance(0.3)]
        for line in late:
            equations.insert(self.random.randrange(len(equations) + 1), line)
        declarations = [line for line in self.draft.declarations if line not in late]
        text = spelled("\n".join((f"cell {name}", *declarations, *equations, "")))
        self.needs_heads = HEADS in text
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
        plain = self.heads if self.needs_heads else 1
        steps = self.random.choice((1, 2, 3, 5))
        lengths = (
            (self.random.randrange(steps + 1), self.random.randrange(steps + 1), steps) if self.chance(0.6) else None
        )
        return (
            Setting(heads=plain, steps=self.random.choice((1, 2, 4)), states=self.chance(0.5)),
            Setting(
                heads=self.heads, steps=steps, bidirectional=self.chance(0.5), states=self.chance(0.5),
                lengths=lengths, reset=self.chance(0.5),
            ),
        )  # fmt: skip


def generate(seed: int) -> Generated:
    """The cell of a seed."""
    return _Cell(seed).make()
