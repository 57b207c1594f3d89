"""Draws cells whose step is a chain of phases: products, norms, softmax and sums that wait for each other.

A fused kernel runs such a step (rnncc/ir/fused.py). Values stay near 1, by tanh, sigmoid and norms, and functions are
smooth. So a comparison in 16 bits means something after several steps, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.generated.cells import Generated
from tests.generated.draft import Draft
from tests.generated.interpreter import Step, states
from tests.generated.program import read
from tests.language.loop import HIDDEN, Case, Setting

MOST_PHASES = 6
# What a chain may have, and a fused kernel takes.
FEATURES = (
    "product", "sum of operands", "two matrices of an operand", "reset before product", "several gates",
    "bias inside", "layernorm", "rmsnorm", "softmax", "mean", "sum", "divided by its mean", "parts",
    "norm of parts", "concat", "per-head number", "spread number", "several states", "late state",
    "learned start", "loop", "computed matrix", "value of its own width", "norm of its own width",
    "softmax of its own width", "number of its own width", "square of its own width",
    "state of its own width", "two widths", "low rank", "diagonal", "vector", "scalar", "constant", "input H",
    "stream", "norm of a stream", "earlier input", "output", "heads",
)  # fmt: skip
# What a chain may have on request. A fused kernel takes some of it only.
OTHERS = (
    "state of parts", "numbers per head", "operand of parts", "cumsum", "repeat", "earlier state", "number per entry",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chain:
    """A cell, what it has of FEATURES and OTHERS, and the number of phases that its longest chain was drawn for."""

    cell: Generated
    features: frozenset[str]
    phases: int


class _Chain(Draft):
    def __init__(self, seed: int, others: bool) -> None:
        super().__init__(Random(f"chain {seed} {others}"))
        self.seed, self.others = seed, others
        # This generator is another one, so that a seed's number of phases does not depend on what else is drawn.
        self.phases = Random(f"phases {seed}").randint(1, MOST_PHASES)
        self.own = ("", "")  # the last value of another width than H, and that width

    def make(self) -> Chain:
        self.inputs()
        self.declare_states()
        self.now = self.known[-1]
        left = self.phases
        while left:
            if self.chance(0.35):
                self.side()
            links = [(cost, link) for cost, link in self.links() if cost <= left]
            # A fused kernel has a product.
            cost, link = self.random.choice(links) if left < self.phases else (1, self.product)
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
            self.declare("input u: H", "input H")
            self.extra["u"] = HIDDEN
            self.keep("u")
        if self.others and self.chance(0.25):
            self.declare("input gap: 1", "number per entry")
            self.extra["gap"] = 1
            self.keep("exp(-gap)", is_narrow=True)
        if self.chance(0.2):
            self.declare("param pv: vector", "vector")
            self.keep("tanh(pv)")
        if self.chance(0.25):
            self.declare("const dt = 0.4", "constant")

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
        if self.others and self.chance(0.25):
            self.features.add("earlier state")
            self.keep(f"{self.random.choice(self.states)}[t-2]")

    def links(self) -> list[tuple[int, Callable[[], None]]]:
        """What may come next in the chain, and how many phases each takes."""
        found: list[tuple[int, Callable[[], None]]] = [
            (1, self.product), (1, self.product), (1, self.product), (1, self.rmsnorm), (1, self.number),
            (1, self.parts), (1, self.divided), (2, self.layernorm), (2, self.softmax), (2, self.rounds),
            (2, lambda: self.norm_of_parts("rmsnorm")), (3, lambda: self.norm_of_parts("layernorm")),
            (3, self.attention),
        ]  # fmt: skip
        found += [
            (2, self.own_width), (2, self.own_width), (3, self.own_norm), (3, self.own_square), (4, self.own_softmax),
            (2, self.own_number), (1, self.own_state), (2, self.low_rank),
        ]  # fmt: skip
        if self.others:
            found += [
                (1, self.state_of_parts), (1, self.numbers), (1, self.operand_of_parts), (1, self.cumsum),
                (1, self.repeat),
            ]  # fmt: skip
        return found

    def side(self) -> None:
        """A gate beside the chain."""
        name = self.new("s")
        self.write(name, f"sigmoid({self.random.choice(self.matrices)}@{self.some().text}{self.source()})")
        self.keep(name)

    def result(self, text: str, bound: float = 4.0, feature: str = "") -> None:
        """The next value of the chain."""
        if feature:
            self.features.add(feature)
        name = self.new("v")
        text, bound = self.function(text, bound)
        self.write(name, text)
        self.now = self.keep(name, bound)

    # Links

    def sums(self, is_square: bool = True) -> str:
        """Products of the last value, and of others beside it. `is_square`: the sums are H units, as the operands."""
        free, taken = list(self.matrices), self.taken()
        self.features.add("product")
        text = f"{self.matrix(free, is_square)}@{taken}"
        if self.chance(0.35):
            same = self.chance(0.25)
            self.features.add("two matrices of an operand" if same else "sum of operands")
            text += f" + {self.matrix(free, is_square)}@{taken if same else self.some().text}"
        if self.chance(0.15):
            self.features.add("bias inside")
            text = f"{f'{self.gate()}*' if is_square else ''}({text} + bR)"
        return text + self.source()

    def product(self) -> None:
        if self.chance(0.3):
            self.features.add("several gates")
            names = [self.new("v"), self.new("v")]
            self.write(", ".join(names), f"{self.random.choice(('tanh', 'sigmoid'))}({self.sums()})")
            for name in names:
                self.now = self.keep(name)
            return
        self.result(self.sums())

    def parts(self) -> None:
        self.features.add("parts")
        count = self.random.choice((2, 3, 4))
        whole = self.new("w", f"{count}*H")
        self.write(whole, f"tanh({self.sums(False)})")
        self.split(whole, count)

    def split(self, whole: str, count: int) -> None:
        names = [self.new("p") for _ in range(count)]
        self.equations.append(f"{', '.join(names)} = split({whole})")
        for name in names:
            self.now = self.keep(name)

    def norm_of_parts(self, norm: str) -> None:
        self.features |= {"norm of parts", norm}
        whole = self.new("w", "2*H")
        if self.chance(0.5):
            self.write(whole, f"tanh(g*{norm}({self.sums(False)}) + k)")
        else:
            # The phase that a product would take is left out.
            self.features.add("concat")
            self.write(whole, f"tanh(g*{norm}(concat({self.taken()}, {self.some(self.now).text})) + k)")
        self.split(whole, 2)

    def norm(self, name: str) -> None:
        scale = "g*" if self.chance(0.7) else ""
        self.result(f"{scale}{name}({self.taken()}){' + b' if self.chance(0.5) else ''}", 4, name)

    def layernorm(self) -> None:
        self.norm("layernorm")

    def rmsnorm(self) -> None:
        self.norm("rmsnorm")

    def softmax(self) -> None:
        self.result(f"g*softmax({self.taken()}) + {self.some().text}", 2, "softmax")

    def diagonal(self, text: str) -> str:
        """Something that does not make the sum of a norm a constant."""
        if self.chance(0.3):
            self.declare("weights D: diag", "diagonal")
            return f"D@{text}"
        return f"{text}*{self.some().text}"

    def number(self) -> None:
        inner = self.diagonal(self.taken())
        kind = self.random.choice(("mean", "sum"))
        self.features.add(kind)
        self.narrow(f"{'' if kind == 'mean' else '0.05*'}{kind}({inner})")

    def attention(self) -> None:
        self.features |= {"softmax", "sum"}
        self.narrow(f"sum(softmax({self.taken()})*{self.some(self.now).text})")

    def narrow(self, text: str) -> None:
        """The next value is one number per head, or that number for all units."""
        is_narrow = self.chance(0.7)
        name = self.new("a", "1" if is_narrow else "H")
        self.features.add("per-head number" if is_narrow else "spread number")
        self.write(name, f"tanh({text})" if self.chance(0.7) else text)
        self.now = self.keep(name, is_narrow=True)

    def divided(self) -> None:
        name = self.new("e")
        self.write(name, f"0.1 + sigmoid({self.taken()})")
        self.result(f"{name}/mean({name})", 2, "divided by its mean")

    def rounds(self) -> None:
        name = self.new("l")
        self.features |= {"loop", "product"}
        self.declarations.append(f"const L{name} = 2")
        start = "(W@x if l == 1 else 0) + " if self.chance(0.5) else ""
        last = f"{name}[l - 1]"
        inner = self.random.choice((
            f"tanh({start}R@{last} + b)", f"0.5*{last} + 0.5*tanh({start}R@{last} + V@tanh(x0) + b)",
        ))  # fmt: skip
        self.write(f"{name}[0]", self.taken())
        self.equations.append(f"for l in 1..L{name}:\n    {name}[l] = {inner}")
        self.now = self.keep(f"{name}[L{name}]")

    # Links of several widths

    def own_value(self) -> str:
        """The chain's next value is of another width than H."""
        self.features.add("value of its own width")
        name = self.new("q", width := self.width())
        if "P" in self.sizes and "Q" in self.sizes:
            self.features.add("two widths")
        self.write(name, f"{self.random.choice(('tanh', 'sigmoid'))}({self.sums(False)})")
        self.own = (name, width)
        return name

    def own_made(self, text: str) -> str:
        """The next value of the same width."""
        name = self.new("q", self.own[1])
        self.write(name, text)
        return name

    def back(self, name: str) -> None:
        """From a value of another width to one of H units."""
        free = list(self.matrices)
        text = f"{self.matrix(free, False)}@{name}"
        if self.chance(0.3):
            text += f" + {self.matrix(free, False)}@{self.some().text}"
        self.result(f"{text}{self.source()}")

    def own_width(self) -> None:
        self.back(self.own_value())

    def own_norm(self) -> None:
        self.features.add("norm of its own width")
        norm = self.random.choice(("layernorm", "rmsnorm"))
        self.back(self.own_made(f"tanh(g*{norm}({self.own_value()}) + b)"))

    def own_square(self) -> None:
        self.features.add("square of its own width")
        name = self.own_value()
        self.back(self.own_made(f"tanh({self.random.choice(self.matrices)}@{name} + 0.5*{name})"))

    def own_softmax(self) -> None:
        self.features.add("softmax of its own width")
        name = self.own_value()
        self.back(self.own_made(f"softmax({name}) + 0.5*{name}"))

    def own_number(self) -> None:
        self.features.add("number of its own width")
        self.narrow(f"mean({self.own_value()})")

    def own_state(self) -> None:
        name = self.new("hp")
        self.features.add("state of its own width")
        self.declarations.append(f"state {name}: {self.width()}")
        self.write(f"{name}[t]", f"tanh(V@{self.taken()} + 0.5*{name}[t-1])")
        self.back(f"{name}[{self.random.choice(('t', 't-1'))}]")

    def low_rank(self) -> None:
        width = self.width()
        self.declare(f"param M{width}: matrix({width}, H)", "low rank")
        name = self.new("q", width)
        self.write(name, f"M{width}@{self.taken()}")
        self.result(f"T(M{width})@{name}{self.source()}")

    # Links on request

    def state_of_parts(self) -> None:
        name, whole = self.new("hw"), self.new("w", "2*H")
        self.features.add("state of parts")
        self.declarations.append(f"state {name}: 2*H")
        self.write(f"{name}[t]", f"tanh(concat({self.taken()}, {self.some().text}) + 0.5*{name}[t-1])")
        self.write(whole, f"0.7*{name}[t-1]")
        self.split(whole, 2)
        self.result(f"R@{self.now.text}{self.source()}")

    def numbers(self) -> None:
        name, one, two = self.new("n", "2*num_heads"), self.new("a", "1"), self.new("a", "1")
        self.features.add("numbers per head")
        first = self.taken()
        self.write(name, f"softmax(concat(mean({first}*{self.some().text}), mean({first})))")
        self.equations.append(f"{one}, {two} = split({name})")
        self.keep(one, is_narrow=True)
        self.now = self.keep(two, is_narrow=True)

    def operand_of_parts(self) -> None:
        self.result(f"R@concat({self.taken()}, {self.some().text}){self.source()}", 4, "operand of parts")

    def cumsum(self) -> None:
        self.result(f"0.1*cumsum({self.taken()})", 4, "cumsum")

    def repeat(self) -> None:
        whole = self.new("w", "2*H")
        self.features.add("repeat")
        self.write(whole, f"repeat({self.taken()}, 2)")
        self.split(whole, 2)
        self.result(f"R@{self.now.text}{self.source()}")

    # States

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
        self.random.shuffle(self.equations)
        name = f"Chain{self.seed}"
        text = "\n".join((f"cell {name}", *self.declarations, *self.equations, ""))
        program = read(text, self.sizes)
        found = states(program)
        given: dict[str, Any] = {name: self.sizes[name] for name in ("P", "Q") if name in self.sizes}
        case = Case(
            text, lambda H: found, Step(program), heads=self.heads, extra=self.extra, arguments=given, bounded=True
        )
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
