"""Draws cells whose states are matrices: their shapes, the vectors and numbers beside them, what reads them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.generated.definitions import with_functions
from tests.generated.grid_values import Value, Values, atom
from tests.generated.grids import GridStep
from tests.generated.interpreter import states
from tests.generated.program import HEADS, read, sides
from tests.generated.records import Generated
from tests.language.loop import HIDDEN, INPUT, Case, Setting

_ROWS = ("H", "H", "K", "2*H", "2*K", f"D*{HEADS}", f"3*{HEADS}", "H//2")
_COLUMNS = ("K", "K", f"D*{HEADS}", "H", "2*K", f"2*{HEADS}")


class _Cell:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(f"matrices {seed}")
        self.heads = random.choice((1, 1, 2, 2, 3))
        self.sizes = {"I": INPUT, "H": HIDDEN, HEADS: self.heads}
        self.given: dict[str, Any] = {}
        self.declarations: list[str] = []
        self.equations: list[str] = []
        self.states: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.extra: dict[str, int] = {}
        self.per_sequence: set[str] = set()
        self.draw = Values(random, self.heads, {"H": HIDDEN})

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def make(self) -> Generated:
        self.widths()
        self.parameters()
        self.of_inputs()
        self.declare_states()
        self.updates()
        self.output()
        return self.finished()

    def widths(self) -> None:
        size = self.random.choice({1: (1, 2, 3, 5), 2: (2, 4), 3: (3, 6)}[self.heads])
        self.declarations.append(f"dim K = {self.random.choice(('H', 'H', '4'))}")
        if self.chance(0.2) and "H" in self.declarations[-1]:
            size = HIDDEN
        else:
            self.given["K"] = size
        self.sizes["K"] = size
        self.sizes["D"] = self.heads * self.random.choice((1, 2))
        choices = [w for w in _ROWS if w != "H//2" or self.heads in (1, 3)]
        self.rows = self.random.sample(choices, 2)
        self.columns = self.random.sample(_COLUMNS, 2)
        for width in ("H", *self.rows, *self.columns):
            self.draw.widths[width] = int(eval(width, dict(self.sizes)))
        if any("D" in width for width in self.draw.widths):
            self.declarations.append(f"dim D = {self.sizes['D']}")

    def new(self, stem: str, shape: tuple[str, ...] | None = None) -> str:
        """A name, which is declared where its shape is given."""
        self.counts[stem] = self.counts.get(stem, 0) + 1
        name = f"{stem}{self.counts[stem]}"
        if shape is not None:
            self.declarations.append(f"local {name}: {_written(shape)}")
        return name

    def write(self, left: str, text: str) -> None:
        self.equations.append(f"{left} = {ast.unparse(ast.parse(text, mode='eval'))}")

    def keep(self, name: str, shape: tuple[str, ...], bound: float, is_state: bool = False) -> Value:
        self.draw.known.append(Value(name, shape, bound, is_state))
        return self.draw.known[-1]

    def parameters(self) -> None:
        kind = self.random.choice(("matrix", "matrix", "matrix", "lowrank(2)", "mask"))
        self.declarations.append(f"weights V: {kind}, U: matrix, Q: matrix, g: vector")
        widths = list(self.draw.widths)
        for number in range(self.random.choice((0, 1, 2, 3))):
            p, q = self.random.choice(widths), self.random.choice(widths)
            name = f"A{number}"
            self.declarations.append(f"param {name}: matrix({p}, {q})")
            texts = [name, name, f"tanh({name})", f"softmax({name}, axis=rows)", f"(0.5*{name} + 0.1)"]
            texts += [f"cumsum({name}, axis=columns)/3", f"roll({name}, 1, axis=rows)"]
            if p == q:
                texts += [f"({name} - T({name}))", f"expm(0.3*{name})"]
            text = self.random.choice(texts)
            self.draw.params += [Value(text, (p, q), 1.0), Value(f"T({name})", (q, p), 1.0)]
        for number in range(self.random.choice((0, 0, 1, 2))):
            width = self.random.choice((*widths, HEADS))
            self.declarations.append(f"param p{number}: vector({width})")
            if width == HEADS:
                self.keep(f"p{number}", (), 1.0)
            else:
                self.draw.vectors.append(Value(f"p{number}", (width,), 1.0))

    # Values of inputs alone

    def of_inputs(self) -> None:
        """A vector of each width, some numbers, and what these make."""
        for width in self.draw.widths:
            for _ in range(self.random.choice((1, 1, 2))):
                name = self.new("u", (width,))
                text = self.random.choice(
                    ("tanh(W@x + b)", "sin(W@x)", "sigmoid(U@x + b)", "normalize(W@x + 3.1)", "tanh(W@x)*p")
                )
                own = [value.text for value in self.draw.vectors if value.shape == (width,)]
                self.write(name, text.replace("*p", f"*{own[0]}" if own else ""))
                self.keep(name, (width,), 1.0)
        for _ in range(self.random.choice((1, 2))):
            name = self.new("n", ())
            self.write(name, self.random.choice(("sigmoid(W@x + b)", "tanh(W@x)", "sigmoid(W@x)")))
            self.keep(name, (), 1.0)
        if self.sizes["D"] and f"D*{HEADS}" in self.draw.widths:
            name = self.new("w", ("D",))
            self.write(name, "tanh(W@x + b)")
            self.keep(f"heads({name})", (f"D*{HEADS}",), 1.0)
        if self.heads == 1 and self.chance(0.15):
            # As wide as the input.
            self.draw.widths["I"] = INPUT
            self.keep("x", ("I",), 1.0)
        self.flat(0.6)
        self.inputs()
        for _ in range(self.random.choice((0, 0, 1, 2))):
            self.value()

    def inputs(self) -> None:
        """Inputs beside x: as wide as rows or columns, or one number per head."""
        for width in (HEADS, self.random.choice(list(self.draw.widths))):
            if width == "I" or not self.chance(0.15):
                continue
            name = self.new("in")
            self.extra[name] = self.draw.widths.get(width, self.heads)
            once = " per sequence" if self.chance(0.4) else ""
            if once:
                self.per_sequence.add(name)
            self.declarations.append(f"input {name}: {width}{once}")
            self.keep(name, () if width == HEADS else (width,), 1.0)

    def rounds(self, name: str, p: str, q: str) -> str:
        """The state after two turns of a delta rule."""
        turn = self.new("turn", (p, q))
        kn, v = self.named(self.key(q), q), self.draw.vector(p, 0).text
        turns = f"{turn}[l] = {turn}[l - 1] + {self.gate()}*({atom(v)} - {turn}[l - 1]@{atom(kn)})@T({kn})"
        self.equations += [f"{turn}[0] = {name}[t-1]", f"for l in 1..2:\n    {turns}"]
        return f"{turn}[2]"

    def flat(self, chance: float) -> None:
        """A vector that makes a matrix."""
        if self.chance(chance):
            p, q = self.random.choice(self.rows), self.random.choice(self.columns)
            width = f"{p}*{q}//{HEADS}"
            name = self.new("z", (width,))
            self.draw.start()
            terms = [found.text for found in (self.draw.source("H"), self.draw.source("H")) if found is not None]
            self.write(name, f"tanh({' + '.join(['W@x' if not terms else terms[0], *terms[1:]])})")
            self.keep(name, (width,), 1.0)

    def value(self) -> None:
        """A matrix, vector or number with a name."""
        self.draw.start()
        kind = self.random.random()
        is_state = any(value.is_state for value in self.draw.known)
        if kind < 0.45:
            both = self.random.choice(self.rows), self.random.choice(self.columns)
            if self.chance(0.3) and self.draw.shapes():
                both = self.random.choice(self.draw.shapes())
            shape: tuple[str, ...] = both
            found = self.draw.matrix(*both, self.random.choice((1, 2, 2, 3)))
        elif kind < 0.8:
            shape = (self.random.choice(list(self.draw.widths)),)
            found = self.draw.vector(shape[0], self.random.choice((1, 2, 3)))
        else:
            shape, found = (), self.draw.number(2)
        says = len(shape) == 2 and not re.search(r"\b([WURVQ]@|[bg]\b)", found.text)
        name = self.new("v", None if says and self.chance(0.5) else shape)
        self.write(name, found.text)
        self.keep(name, shape, found.bound, is_state)

    # States

    def declare_states(self) -> None:
        count = self.random.choice((1, 1, 1, 2, 2))
        shapes: list[tuple[str, ...]] = []
        for number in range(count):
            shape: tuple[str, ...] = (self.rows[number], self.columns[number])
            shapes.append(shapes[0] if number and self.chance(0.4) else shape)
        for _ in range(self.random.choice((0, 0, 1, 2))):
            shapes.append((self.random.choice((*self.draw.widths, "")),))
        self.random.shuffle(shapes)
        for number, shape in enumerate(shapes):
            shape = () if shape == ("",) else shape
            name = f"{'mhS'[len(shape)]}{number}"
            starts = ["", "", "", " = learned", " = 0.5"]
            if len(shape) == 2 and shape[0] == shape[1]:
                starts += [" = eye", " = 0.7*eye", " = -eye"]
            self.states[name] = _written(shape)
            self.declarations.append(f"state {name}: {self.states[name]}{self.random.choice(starts)}")
            self.keep(f"{name}[t-1]", shape, 2.0, True)

    def updates(self) -> None:
        before = [value for value in self.draw.known if not value.is_state]
        old = [value for value in self.draw.known if value.is_state]
        apart = self.chance(0.4)
        for name in self.states:
            if apart:
                # This state reads itself and what has its value already, so that its loop is its own.
                done = [value for value in self.draw.known if value.is_state and not value.text.endswith("[t-1]")]
                self.draw.known = [*before, *(v for v in old if v.text.startswith(name)), *done]
            for _ in range(self.random.choice((0, 0, 1, 1, 2))):
                self.value()
            self.draw.start()
            text = sides(self.states[name]) or ((self.states[name],) if self.states[name] != HEADS else ())
            if len(text) == 2:
                found = self.matrix_state(name, *text)
            elif text:
                new = self.draw.vector(text[0], self.random.choice((2, 3)))
                found = self.mixed(f"{name}[t-1]", new)
            else:
                found = self.mixed(f"{name}[t-1]", self.draw.number(2))
            self.write(f"{name}[t]", found)
            self.keep(f"{name}[t]", tuple(text), 3.0, True)
        self.draw.known += [value for value in old if value not in self.draw.known]

    def mixed(self, old: str, new: Value) -> str:
        gate = self.gate()
        match self.random.randrange(3):
            case 0:
                return f"{gate}*{old} + (1 - {gate})*{atom(new.text)}"
            case 1:
                return f"tanh(0.5*{old} + {new.text})"
            case _:
                return f"{gate}*{old} + {new.text}"

    def gate(self) -> str:
        return self.draw.gate(self.random.choice((0, 0, 1))).text

    def key(self, width: str) -> str:
        """A vector whose length is at most one."""
        found = self.draw.vector(width, self.random.choice((0, 0, 1)))
        return self.random.choice(("normalize(1.5 + sin({}))", "softmax({})")).format(found.text)

    def named(self, text: str, width: str) -> str:
        """The vector with a name, or as it is."""
        if self.chance(0.3):
            return text
        name = self.new("k", (width,))
        self.write(name, text)
        return name

    def matrix_state(self, name: str, p: str, q: str) -> str:
        old = f"{name}[t-1]"
        depth = self.random.choice((0, 1, 1, 2))
        v = atom(self.draw.vector(p, depth).text)
        if self.chance(0.15):
            v, depth = "(W@x)", 0
            self.draw.free.discard("W")
        k = self.draw.vector(q, self.random.choice((0, 0, 1))).text
        match self.random.randrange(13):
            case 0:
                return f"{self.gate()}*{old} + {v}@T({k})"
            case 9:
                return f"{self.gate()}*{self.rounds(name, p, q)}"
            case 1:
                gate = self.draw.vector(q, 1).text
                return f"{old}@diag(sigmoid({gate})) + {v}@T({k})"
            case 2:
                return f"diag(sigmoid({self.draw.vector(p, 1).text}))@{old} + {v}@T({k})"
            case 3:
                kn = self.named(self.key(q), q)
                return f"{old} + {self.gate()}*({v} - {old}@{kn})@T({kn})"
            case 4:
                kn, be = self.named(self.key(q), q), self.gate()
                return f"{self.gate()}*{old}@(eye({q}) - {be}*{kn}@T({kn})) + {be}*{v}@T({kn})"
            case 5:
                kn, w = self.named(self.key(q), q), self.draw.vector(q, 0).text
                return f"{old}@(diag(sigmoid({w})) - {kn}@T({self.gate()}*{kn})) + {v}@T({k})"
            case 6:
                gate = self.draw.matrix(p, q, 1).text
                new = self.draw.matrix(p, q, 2).text
                return f"sigmoid({gate})*{old} + (1 - sigmoid({gate}))*{atom(new)}"
            case 7:
                w, e = self.key(p), self.draw.vector(q, 0).text
                return f"{old}*(1 - {w}@T(sigmoid({e}))) + {v}@T({k})"
            case 8:
                ins = [value for value in self.draw.params if value.shape == (p, p)]
                outs = [value for value in self.draw.params if value.shape == (q, q)]
                if ins and (not outs or self.chance(0.5)):
                    return f"tanh({self.random.choice(ins).text}@{old} + {v}@T({k}))"
                if outs and self.chance(0.7):
                    return f"sin({old}@{self.random.choice(outs).text}) + {v}@T({k})"
                if not self.draw.free & {"R", "V"} or self.chance(0.2):
                    return f"0.7*{old} + {v}@T({k})"
                # A group's matrix belongs to this state.
                group = self.random.choice(sorted(self.draw.free & {"R", "V"}))
                # What is no plain matrix multiplies from the left alone.
                right = group == "V" and any(f"{group}: matrix" in line for line in self.declarations)
                side = f"{old}@{group}" if right and self.chance(0.5) else f"{group}@{old}"
                return f"tanh({side} + {v}@T({k}))"
            case _:
                return self.mixed(old, self.draw.matrix(p, q, self.random.choice((2, 3))))

    def output(self) -> None:
        vectors = [name for name, text in self.states.items() if not sides(text)]
        if vectors and self.chance(0.2):
            self.declarations.append(f"output {self.random.choice(vectors)}")
            return
        self.draw.start()
        for _ in range(self.random.choice((0, 0, 1))):
            self.value()
        self.draw.start()
        states = [name for name, text in self.states.items() if sides(text)]
        p, q = sides(self.states[self.random.choice(states)])
        name = self.new("y")
        width = self.random.choice((p, q))
        # Of undeclared width where the value says it.
        found = self.draw.from_matrix(width, 2) if self.chance(0.6) else None
        text = found.text if found is not None else self.draw.vector(width, 3).text
        self.declarations.append(f"local {name}: {width}")
        self.write(name, text)
        self.declarations.append(f"output {name}")

    def finished(self) -> Generated:
        self.random.shuffle(self.equations)
        self.random.shuffle(self.declarations)
        name = f"Matrices{self.seed}"
        equations = with_functions(self.equations, self.seed)
        text = "\n".join((f"cell {name}", *self.declarations, *equations, ""))
        program = read(text, {key: value for key, value in self.sizes.items() if key != "K" or "K" in self.given})
        kept: dict[str, float] = {}
        if self.chance(0.1):
            kept = {state: 0.25 for state in self.states if self.chance(0.7)}
            if kept:
                self.given["zoneout"] = kept
        elif self.chance(0.3):
            self.given["recompute"] = True
        found = states(program, self.heads)
        case = Case(
            text, lambda H: found, GridStep(program, kept), heads=self.heads, extra=self.extra, arguments=self.given,
            bounded=True, per_sequence=self.per_sequence,
        )  # fmt: skip
        return Generated(self.seed, text, case, self.settings(), self.sizes, {})

    def settings(self) -> tuple[Setting, ...]:
        steps = self.random.choice((1, 2, 3, 5))
        lengths = (self.random.randrange(steps + 1), self.random.randrange(steps + 1), steps)
        return (
            Setting(heads=self.heads, steps=self.random.choice((1, 2, 4)), states=self.chance(0.5)),
            Setting(
                heads=self.heads, steps=steps, bidirectional=self.chance(0.5), states=self.chance(0.5),
                lengths=lengths if self.chance(0.6) else None, reset=self.chance(0.5),
            ),
        )  # fmt: skip


def _written(shape: tuple[str, ...]) -> str:
    return HEADS if not shape else shape[0] if len(shape) == 1 else f"matrix({', '.join(shape)})"


def given(text: str, heads: int, dims: Mapping[str, int]) -> Generated:
    """The cell of a text, with these sizes where it declares them."""
    own = {name: size for name, size in dims.items() if f"dim {name}" in text}
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    sizes = {"I": INPUT, "H": HIDDEN, HEADS: heads, **own}
    program = read("\n".join(lines), sizes)
    found = states(program, heads)
    case = Case("\n".join(lines), lambda H: found, GridStep(program, {}), heads=heads, arguments=own, bounded=True)
    settings = tuple(
        Setting(heads=heads, steps=3, bidirectional=both, states=both, lengths=(2, 0, 3) if both else None, reset=both)
        for both in (False, True)
    )
    return Generated(0, f"{case.text}\n", case, settings, sizes, {})


def generate(seed: int) -> Generated:
    """The cell with matrices of a seed."""
    return _Cell(seed).make()
