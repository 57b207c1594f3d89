"""Draws random expressions, each with known bounds of its value.

Bounds keep results comparable by construction. No function leaves its domain or overflows. The argument of a function
with a jump or kink (relu, max, a comparison) gets a constant of its own added, so that rounding decides no branch."""

from __future__ import annotations

from collections.abc import Iterable
from math import log, sqrt
from random import Random

from rnncc.language.operators import OPERATORS, STEPS
from tests.generated import functions
from tests.generated.leaves import NARROW, Bounded, Reader, Scope
from tests.generated.program import HEADS

LIMIT = 40.0
SMOOTH = functions.names((1,), kinked=False)
KINKED = functions.names((1,), kinked=True)
# Not where a state is read.
BATCHED = functions.names((1,), kinked=True, in_loop=False) + functions.names((1,), kinked=False, in_loop=False)
SEVERAL = functions.names((2, 3), kinked=False) + functions.names((2, 3), kinked=True)
SAME_WIDTH = ("layernorm", "rmsnorm", "softmax", "cumsum", "normalize", "roll")
# What values are joined of, by concat or repeat.
JOINED = {
    "2*H": ("H", "H"), "n*H": ("H", "H"), "3*H": ("2*H", "H"), "H + P": ("H", "P"), f"2*{HEADS}": (HEADS, HEADS),
}  # fmt: skip
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class Expressions(Reader):
    """Draws expressions. `sizes` gives the number of elements of every width that may be drawn."""

    def __init__(self, random: Random, sizes: dict[str, int], heads: int) -> None:
        super().__init__(random, sizes, heads)
        # Functions whose values lie between -1 and 1.
        self.squashes: tuple[str, ...] = ("tanh", "sin")
        # The products that the equation at hand has: group, operand's width, highest level of operands.
        self.products: list[tuple[str, str, str]] = []

    # Expressions

    def draw(self, width: str, depth: int, pinned: bool = False) -> Bounded:
        """An expression of this width, or a number that its place spreads over it. `pinned`: its own values give it
        the width, not its place."""
        if width == NARROW:
            found = self.narrow(depth)
        elif depth <= 0 or self.random.random() < 0.1:
            found = self.end(width, pinned)
        else:
            makers = (
                self.unary,
                self.unary,
                self.binary,
                self.binary,
                self.binary,
                self.across,
                self.product,
                self.odd,
            )
            found = self.random.choice(makers)(width, depth, pinned)
        return self.shrunk(found)

    def shrunk(self, value: Bounded) -> Bounded:
        if value.size <= LIMIT:
            return value
        return self.random.choice((self.squashed, self.scaled))(value)

    def squashed(self, value: Bounded) -> Bounded:
        return Bounded(f"{self.random.choice(self.squashes)}({value.text})", -1, 1)

    def scaled(self, value: Bounded, to: float = 1.5) -> Bounded:
        factor = float(f"{to / value.size:.1g}") * 0.5
        return Bounded(
            f"{factor:.9f}".rstrip("0") + f"*({value.text})", *sorted((factor * value.low, factor * value.high))
        )

    def end(self, width: str, pinned: bool) -> Bounded:
        vectors = [name for name, of in self.scope.vectors if of in ("", width)]
        if not pinned and vectors and self.random.random() < 0.35:
            name = self.random.choice(vectors)
            self.scope.vectors = [each for each in self.scope.vectors if each[0] != name or each[1] != ""]
            return Bounded(name, -1, 1)
        if self.may_reduce(width) and self.random.random() < 0.06:
            return Bounded(self.random.choice((f"ones({width})", f"(arange({width})/{self.sizes[width]})")), 0, 1)
        found = self.leaf(width)
        if found is not None:
            return found
        assert not pinned, f"no value has the width {width}: ask can_pin first"
        return self.narrow(0)

    def narrow(self, depth: int) -> Bounded:
        """One number, or one per head."""
        found = self.leaf(NARROW)
        kind = self.random.random()
        if depth > 0 and kind < 0.04 and (copied := self.copied(depth)) is not None:
            return copied
        if depth > 0 and kind < 0.55 and (reduced := self.reduction(depth)) is not None:
            return reduced
        if found is None or kind > 0.9:
            return self.number()
        return self.unary_of(found) if depth > 0 and kind < 0.75 else found

    def reduction(self, depth: int, among: Iterable[str] | None = None) -> Bounded | None:
        """sum, mean, max or min of something wide. `among`: the widths that this may have."""
        widths = [w for w in among or self.sizes if self.can_pin(w) and self.may_reduce(w)]
        if not widths:
            return None
        width = self.random.choice(widths)
        inner = self.draw(width, depth - 1, pinned=True)
        kind, units = self.random.random(), self.sizes[width]
        if kind < 0.08:
            # A length has a kink where it is 0, so one unit is away from it.
            return Bounded(f"norm(1.5 + sin({inner.text}))", 0.5, 2.5 * sqrt(units))
        if kind < 0.16:
            return Bounded(f"logsumexp({inner.text})", inner.low, inner.high + log(units))
        if kind < 0.7:
            name = "mean" if kind < 0.4 else "max" if kind < 0.6 else "min"
            return Bounded(f"{name}({inner.text})", inner.low, inner.high)
        if inner.size * units > LIMIT:
            inner = self.scaled(inner)
        return Bounded(f"sum({inner.text})", min(0.0, units * inner.low), max(0.0, units * inner.high))

    def per_head(self, depth: int) -> Bounded | None:
        """A reduction whose width is num_heads. That of an input is 1, also where the input stands for H units."""
        known = self.scope.leaves
        self.scope.leaves = [leaf for leaf in known if leaf.is_said]
        found = self.reduction(depth, [width for width in self.sizes if "H" in width])
        self.scope.leaves = known
        return found

    def copied(self, depth: int) -> Bounded | None:
        """The mean of the copy that each head has of a value of inputs."""
        outer = self.scope
        if outer.level == "P" or outer.is_headless:
            return None
        # What `heads` copies says how wide it is.
        self.scope = Scope([leaf for leaf in outer.leaves if leaf.is_said], "X")
        widths = [width for width in self.sizes if HEADS not in width and self.can_pin(width)]
        inner = None
        if widths:
            width = self.random.choice(widths)
            self.scope = self.of_inputs_alone(width, batched_only=True)
            inner = self.draw(width, depth - 1, pinned=True)
        self.scope = outer
        return None if inner is None else Bounded(f"mean(heads({inner.text}))", inner.low, inner.high)

    def wide_or_narrow(self, width: str, depth: int) -> Bounded:
        return self.draw(NARROW if self.random.random() < 0.25 else width, depth)

    def unary(self, width: str, depth: int, pinned: bool) -> Bounded:
        return self.unary_of(self.draw(width, depth - 1, pinned))

    def unary_of(self, v: Bounded) -> Bounded:
        kind = self.random.random()
        if kind < 0.6:
            return self.smooth(v)
        if kind < 0.7:
            return Bounded(f"(-({v.text}))", -v.high, -v.low)
        return self.kinked(v) if kind < 0.9 else self.power(v)

    def smooth(self, v: Bounded) -> Bounded:
        return self.called(self.random.choice(SMOOTH), v)

    def called(self, name: str, *arguments: Bounded) -> Bounded:
        """A function of these arguments, or of others in its domain."""
        if not functions.is_tame(name, [(each.low, each.high) for each in arguments]):
            arguments = tuple(self.within(each, *functions.inner(name)) for each in arguments)
        bounds = functions.values(name, [(each.low, each.high) for each in arguments])
        return Bounded(f"{name}({', '.join(each.text for each in arguments)})", *bounds)

    def within(self, v: Bounded, middle: float, half: float) -> Bounded:
        """The value squashed to the middle, plus or minus half."""
        return Bounded(f"({middle:.9f} + {half:.9f}*tanh({v.text}))", middle - half, middle + half)

    def kinked(self, v: Bounded) -> Bounded:
        off = self.off()
        moved = Bounded(f"{v.text} + ({off})", v.low + off, v.high + off)
        name = self.random.choice(KINKED + (BATCHED if self.scope.batched_only else ()))
        bounds = functions.values(name, [(moved.low, moved.high)])
        if name in STEPS and self.random.random() < 0.7:
            named = f"{self.random.choice(functions.NAMED)}({self.random.choice((0.5, 2, 3))})"
            return Bounded(
                f"{name}({moved.text}, grad={self.random.choice((named, self.random.choice(functions.GIVEN)))})",
                *bounds,
            )
        return Bounded(f"{name}({moved.text})", *bounds)

    def positive(self, v: Bounded, least: float = 0.4) -> Bounded:
        """The value made greater than `least`, smoothly."""
        if v.low >= least:
            return v
        add = self.random.choice((0.0, 0.25)) + least
        match self.random.randrange(4):
            case 0 if v.size <= 5:
                return Bounded(f"(({v.text})**2 + {add})", add, v.size**2 + add)
            case 1:
                return Bounded(f"(sigmoid({v.text}) + {add})", add, 1 + add)
            case 2 if v.size <= 5:
                return Bounded(f"(softplus({v.text}) + {add})", add, v.size + 1 + add)
            case _:
                return (
                    Bounded(f"exp(tanh({v.text}))", 0.36, 2.72)
                    if least <= 0.36
                    else self.positive(self.squashed(v), least)
                )

    def power(self, v: Bounded) -> Bounded:
        if self.random.random() < 0.5:
            p, exponent = self.positive(v), self.random.choice((0.5, -1, 1.5, -0.5))
            return Bounded(f"({p.text})**({exponent})", *sorted((p.low**exponent, p.high**exponent)))
        small, exponent = (v if v.size <= 3 else self.squashed(v)), self.random.choice((2, 3))
        return Bounded(f"({small.text})**{exponent}", min(0.0, small.low**3), small.size**exponent)

    def binary(self, width: str, depth: int, pinned: bool) -> Bounded:
        a, b = self.draw(width, depth - 1, pinned), self.wide_or_narrow(width, depth - 1)
        if self.random.random() < 0.3:
            a, b = b, a
        return self.binary_of(a, b)

    def binary_of(self, a: Bounded, b: Bounded) -> Bounded:
        match self.random.choice(("+", "+", "-", "*", "*", "/", "**", *["several"] * 3, "compare", "mod")):
            case "+":
                return Bounded(f"(({a.text}) + ({b.text}))", a.low + b.low, a.high + b.high)
            case "-":
                return Bounded(f"(({a.text}) - ({b.text}))", a.low - b.high, a.high - b.low)
            case "/":
                p = self.positive(b)
                corners = [x / y for x in (a.low, a.high) for y in (p.low, p.high)]
                return Bounded(f"(({a.text})/({p.text}))", min(corners), max(corners))
            case "**":
                p, power = self.positive(a), b if b.size <= 2 else self.squashed(b)
                if p.high > 6:
                    p = Bounded(f"(sigmoid({a.text}) + 0.4)", 0.4, 1.4)
                corners = [x**y for x in (p.low, p.high) for y in (power.low, power.high)]
                return Bounded(f"({p.text})**({power.text})", min(*corners, 1.0), max(*corners, 1.0))
            case "several":
                return self.several(a, b)
            case "compare":
                sign = self.random.choice(COMPARISONS)
                return Bounded(f"(({a.text}) {sign} ({b.text} + ({self.off()})))", 0, 1)
            case "mod" if self.scope.batched_only:
                p = self.positive(b)
                return Bounded(f"mod({a.text} + ({self.off()}), {p.text})", 0, p.high)
            case _:
                corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
                return Bounded(f"(({a.text})*({b.text}))", min(corners), max(corners))

    def several(self, a: Bounded, b: Bounded) -> Bounded:
        """A function of several arguments; all but the first are moved, so that there are no ties."""
        name = self.random.choice(SEVERAL)
        others = [b, self.number()][: OPERATORS[name].arity - 1]
        offs = [self.off() for _ in others]
        return self.called(
            name, a, *(Bounded(f"{v.text} + ({d})", v.low + d, v.high + d) for v, d in zip(others, offs, strict=True))
        )

    def odd(self, width: str, depth: int, pinned: bool) -> Bounded:
        """where, clamp, a choice while compiling; and functions that a loop does not have, on inputs."""
        a = self.draw(width, depth - 1, pinned)
        match self.random.randrange(4):
            case 0:
                b, c = self.wide_or_narrow(width, depth - 1), self.wide_or_narrow(width, depth - 2)
                text = f"where({c.text} < {self.off()}, {a.text}, {b.text})"
                return Bounded(text, min(a.low, b.low), max(a.high, b.high))
            case 1:
                low = self.off() - 0.5
                high: Bounded | float = round(low + self.random.uniform(0.3, 1.3), 4)
                if self.random.random() < 0.4:
                    b = self.wide_or_narrow(width, depth - 2)
                    return Bounded(
                        f"clamp({a.text}, {low:.6f}, sigmoid({b.text}) + {self.random.random():.6f})", low, 2
                    )
                return Bounded(f"clamp({a.text}, {low:.6f}, {high})", low, float(str(high)))
            case 2:
                known = len(self.products)
                b = self.wide_or_narrow(width, depth - 1)
                # What is never chosen has no parameters, so that no other equation may name them.
                del self.products[known:]
                first = self.random.choice(("1 == 1", "3 > 2 + 0"))
                return Bounded(f"(({a.text}) if {first} else ({b.text}))", a.low, a.high)
            case _:
                return self.of_inputs(a, width, depth)

    def of_inputs(self, a: Bounded, width: str, depth: int) -> Bounded:
        if self.scope.level == "P":
            return a
        outer = self.scope
        self.scope = self.of_inputs_alone(width, batched_only=True)
        b = self.kinked(self.draw(width, depth - 2)) if self.leaves(width) else None
        self.scope = outer
        if b is None:
            return a
        return Bounded(f"(({a.text}) + ({b.text}))", a.low + b.low, a.high + b.high)

    def across(self, width: str, depth: int, pinned: bool) -> Bounded:
        """A function of all units that keeps the width."""
        if not self.may_reduce(width) or not self.can_pin(width):
            return self.unary(width, depth, pinned)
        if width in JOINED and self.random.random() < 0.5 and (joined := self.joined(width, depth)) is not None:
            return joined
        # A function across units of one number is allowed too; it has one unit.
        one = None if pinned or self.random.random() > 0.1 else self.reduction(depth - 1)
        inner, units = one or self.draw(width, depth - 1, pinned=True), self.sizes[width]
        name = self.random.choice(SAME_WIDTH)
        if name in ("layernorm", "rmsnorm"):
            moved = f"{inner.text} + ({self.off()})" if name == "rmsnorm" else inner.text
            return Bounded(f"{name}({moved})", -sqrt(units), sqrt(units))
        if name == "roll":
            places, fill = self.random.choice((-2, -1, 1, 1, 2, 7)), self.random.choice((None, None, 0.0, 0.25, -1.5))
            filled, low, high = ("", 0.0, 0.0) if fill is None else (f", fill={fill}", min(fill, 0), max(fill, 0))
            return Bounded(f"roll({inner.text}, {places}{filled})", min(inner.low, low), max(inner.high, high))
        if name == "softmax":
            return Bounded(f"softmax({inner.text})", 0, 1)
        if name == "normalize":
            return Bounded(f"normalize(1.5 + sin({inner.text}))", 0, 1)
        if inner.size * units > LIMIT:
            inner = self.scaled(inner)
        return Bounded(f"cumsum({inner.text})", min(0.0, units * inner.low), max(0.0, units * inner.high))

    def joined(self, width: str, depth: int) -> Bounded | None:
        """concat or repeat of narrower values."""
        parts: list[Bounded] = []
        for part in JOINED[width]:
            if part == HEADS:
                own = self.leaf(HEADS) if self.random.random() < 0.5 else None
                found = own or self.per_head(depth - 1) or self.leaf(HEADS)
            else:
                found = self.draw(part, depth - 1, pinned=True) if self.can_pin(part) else None
            if found is None:
                return None
            parts.append(found)
        if len(set(JOINED[width])) == 1 and self.random.random() < 0.3:
            return Bounded(f"repeat({parts[0].text}, 2)", parts[0].low, parts[0].high)
        text = ", ".join(part.text for part in parts)
        return Bounded(f"concat({text})", min(part.low for part in parts), max(part.high for part in parts))

    def product(self, width: str, depth: int, pinned: bool) -> Bounded:
        """A matrix times a vector."""
        wanted = [
            entry
            for entry in self.scope.matrices
            if entry[1] in ("", width) and (entry[3] != "S" or self.scope.level == "S")
            and not (pinned and width != "H") and (entry[2] or self.operand_widths(entry[3]))
        ]  # fmt: skip
        if not wanted or (pinned and width != "H"):
            return self.unary(width, depth, pinned)
        entry = self.random.choice(wanted)
        name, _, operand, level = entry
        if name[0].isupper() and "*" not in name and not name.startswith("M"):
            self.scope.matrices = [each for each in self.scope.matrices if each[0] != name]
        outer = self.scope
        source = operand or self.random.choice(self.operand_widths(level))
        if not self.may_reduce(source) or (outer.level == "S" and level == "X"):
            self.scope = self.of_inputs_alone(source, batched_only=False)
        inner = self.draw(source, depth - 2, pinned=True)
        self.scope = outer
        if name.startswith("Dg"):
            return Bounded(f"{name}@({inner.text})", -inner.size, inner.size)
        if len(name) == 1 and not pinned:
            # Who shares it must not give it a state either.
            of_inputs = level == "X" and self.heads > 1 and name in ("W", "U")
            self.products.append((name, source, level if of_inputs or level != outer.level else ""))
        bound = 0.6 * self.sizes[source] * inner.size
        text = f"{name}@({inner.text})"
        return Bounded(text, -bound, bound)
