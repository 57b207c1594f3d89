"""What may come next in a chain (chains.py): products, norms, softmax, sums and running sums, of one
width and of several."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.generated.draft import Draft
from tests.language.loop import HIDDEN


class Links(Draft):
    """A chain's text, and the links that it may go on by. Each makes the next value of the chain of the last one.

    others   whether there are links that no fused kernel takes
    own      the last value of another width than H, and that width
    """

    def __init__(self, random: Random, others: bool) -> None:
        super().__init__(random)
        self.others, self.own = others, ("", "")

    def links(self) -> list[tuple[int, Callable[[], None]]]:
        """What may come next in the chain, and how many phases each takes."""
        found: list[tuple[int, Callable[[], None]]] = [
            (1, self.product), (1, self.product), (1, self.product), (1, self.rmsnorm), (1, self.number),
            (1, self.parts), (1, self.divided), (2, self.layernorm), (2, self.softmax), (2, self.rounds),
            (2, lambda: self.norm_of_parts("rmsnorm")), (3, lambda: self.norm_of_parts("layernorm")),
            (3, self.attention), (1, self.cumsum), (2, self.logsumexp),
        ]  # fmt: skip
        found += [
            (2, self.own_width), (2, self.own_width), (3, self.own_norm), (3, self.own_square), (4, self.own_softmax),
            (2, self.own_number), (1, self.own_state), (2, self.low_rank),
        ]  # fmt: skip
        if HIDDEN // self.heads % 2 == 0:
            found.append((2, self.repeat))
        if self.others:
            found += [
                (1, self.state_of_parts), (1, self.numbers), (1, self.operand_of_parts), (1, self.repeated_parts),
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

    def logsumexp(self) -> None:
        """Rounding may change which number is the largest: its gradient cancels."""
        self.features.add("max")
        name = self.new("e")
        self.write(name, self.taken())
        self.narrow(f"0.3*(max({name}) + log(sum(exp({name} - max({name})))))")

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

    def cumsum(self) -> None:
        self.result(f"0.1*cumsum({self.taken()})", 4, "cumsum")

    def repeat(self) -> None:
        """Two units share each number."""
        if "K" not in self.sizes:
            self.sizes["K"] = HIDDEN // 2
            self.declarations.insert(0, "dim K")
        name = self.new("q", "K")
        self.write(name, f"tanh({self.sums(False)})")
        self.result(f"repeat({name}, 2)*{self.some().text}", 1, "repeat")

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

    def repeated_parts(self) -> None:
        whole = self.new("w", "2*H")
        self.features.add("repeated parts")
        self.write(whole, f"repeat({self.taken()}, 2)")
        self.split(whole, 2)
        self.result(f"R@{self.now.text}{self.source()}")
