"""The text of a chain (chains.py) while it is drawn: declarations, equations, and values that equations may read."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from random import Random

from tests.generated.expressions import SMOOTH, Expressions
from tests.generated.leaves import Bounded
from tests.language.loop import HIDDEN, INPUT

# What P and Q may be where H is HIDDEN, by the number of heads.
_DIMS = {1: (2, 3, 5, 7), 2: (2, 4), 3: (3, 6)}


@dataclass(slots=True)
class Value:
    """What equations may read: H units, or one number per head (`is_narrow`). `uses`: how many equations read it."""

    text: str
    bound: float = 1.0
    is_narrow: bool = False
    uses: int = 0


class Draft:
    """A text.

    features   what it has (FEATURES of chains.py)
    known      the values that equations may read
    now        the last value of the chain
    late       the states that have no equation yet
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.heads = random.choice((1, 1, 2, 3))
        self.draw = Expressions(random, {"H": HIDDEN}, self.heads)
        self.features: set[str] = set()
        self.declarations: list[str] = ["weights V: matrix, U: matrix, g: vector, k: vector"]
        self.equations: list[str] = []
        self.extra: dict[str, int] = {}
        self.sizes = {"I": INPUT, "H": HIDDEN, "num_heads": self.heads}
        self.counts: dict[str, int] = {}
        self.known: list[Value] = []
        self.states: list[str] = []
        self.late: list[str] = []
        self.matrices = ["R", "V", "U"]
        self.now = Value("")

    # Small things

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def new(self, stem: str, width: str = "H") -> str:
        self.counts[stem] = self.counts.get(stem, 0) + 1
        name = f"{stem}{self.counts[stem]}"
        if width != "H":
            self.declarations.append(f"local {name}: {width}")
        return name

    def declare(self, line: str, feature: str) -> None:
        self.features.add(feature)
        if line not in self.declarations:
            self.declarations.append(line)

    def write(self, left: str, right: str) -> None:
        self.equations.append(f"{left} = {ast.unparse(ast.parse(right, mode='eval'))}")

    def keep(self, text: str, bound: float = 1.0, is_narrow: bool = False) -> Value:
        self.known.append(Value(text, bound, is_narrow))
        return self.known[-1]

    def some(self, but: Value | None = None) -> Value:
        """A value H wide, which nothing has read where there is one."""
        found = [value for value in self.known if not value.is_narrow and value is not but]
        fresh = [value for value in found if not value.uses]
        chosen = self.random.choice(fresh if fresh and self.chance(0.7) else found)
        chosen.uses += 1
        return chosen

    def gate(self, but: Value | None = None) -> str:
        """Something between 0 and 1."""
        narrow = [value for value in self.known if value.is_narrow]
        if narrow and self.chance(0.3):
            chosen = self.random.choice(narrow)
            chosen.uses += 1
            return f"sigmoid({chosen.text})"
        if self.chance(0.15):
            self.declare("param ps: scalar = 0.3", "scalar")
            return "sigmoid(ps)"
        return f"sigmoid({self.some(but).text})"

    def taken(self) -> str:
        """The last value of the chain as an expression H wide."""
        now = self.now
        now.uses += 1
        if now.is_narrow:
            return f"({now.text}*{self.some().text} + {self.some().text})"
        match self.random.randrange(6):
            case 0:
                self.features.add("reset before product")
                return f"({self.gate(now)}*{now.text})"
            case 1:
                return f"({now.text} + 0.5*{self.some(now).text})"
            case 2:
                gate = self.gate(now)
                return f"({gate}*{now.text} + (1 - {gate})*{self.some(now).text})"
            case 3 if self.draw.random.random() < 0.3:
                return self.function(now.text, now.bound)[0]
            case _:
                return now.text

    def function(self, text: str, bound: float = 4.0) -> tuple[str, float]:
        """A smooth function of an expression, and the bound of its value."""
        name = self.random.choice(("tanh", "tanh", "sigmoid", "sin", ""))
        if name:
            return f"{name}({text})", 1.0
        # What multiplies small differences by large numbers would make a comparison in 16 bits mean nothing.
        inner = Bounded(text, -bound, bound) if bound <= 1 else Bounded(f"tanh({text})", -1, 1)
        found = self.draw.called(self.random.choice(SMOOTH), inner)
        if found.size > 2:
            found = self.draw.squashed(found)
        return found.text, found.size

    def source(self) -> str:
        """What comes from the input, to be added, or nothing."""
        terms = []
        if self.chance(0.6):
            terms.append("W@x")
            if self.chance(0.15):
                # In turns, so that nothing else that a seed draws depends on it.
                if len(self.equations) % 2:
                    self.features.add("earlier input")
                    terms[-1] = "W@(x + 0.5*x[t-1])"
                else:
                    self.declare("weights K: matrix", "earlier value")
                    name = self.new("u")
                    self.write(name, "tanh(W@x)")
                    terms[-1] = f"K@({name} + 0.5*{name}[t-1] + 0.25*{name}[t-3])"
        if self.chance(0.7):
            terms.append("b")
        return "".join(f" + {term}" for term in terms)

    def matrix(self, free: list[str], is_square: bool) -> str:
        """One of those that are free, or one that is computed."""
        if is_square and self.chance(0.1):
            self.declare("param MA: matrix(H, H)", "computed matrix")
            return "(MA - T(MA))" if self.chance(0.5) else "T(MA)"
        name = self.random.choice(free)
        free.remove(name)
        return name

    def width(self) -> str:
        """A width of its own."""
        name = self.random.choice("PPQ")
        if name not in self.sizes:
            self.sizes[name] = self.random.choice(_DIMS[self.heads])
            self.declarations.insert(0, f"dim {name} = 12")
        return name
