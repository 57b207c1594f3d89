"""Draws vectors, numbers per head and matrices that change with the step, as text with a bound of its size."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from random import Random

from tests.generated.program import HEADS

# Larger values would make rounding errors grow.
_LARGEST = 4.0
# Elementwise functions by the bound of their value; "" where it is the argument's.
_BOUNDED = {"tanh": 1.0, "sin": 1.0, "sigmoid": 1.0, "cos": 1.0, "abs": None, "relu": None}


@dataclass(frozen=True, slots=True)
class Value:
    """A text of a shape: () is one number per head, (P,) a vector, (P, Q) a matrix. Its size is at most `bound`."""

    text: str
    shape: tuple[str, ...]
    bound: float = 1.0
    is_state: bool = False


@dataclass(slots=True)
class Values:
    """Draws expressions.

    known    what they may read
    widths   the widths of vectors, rows and columns, with their sizes
    params   matrices of parameters: text and shape
    free     groups of matrices that the equation has not used
    """

    random: Random
    heads: int
    widths: dict[str, int]
    known: list[Value] = field(default_factory=list)
    params: list[Value] = field(default_factory=list)
    vectors: list[Value] = field(default_factory=list)
    free: set[str] = field(default_factory=set)

    def start(self) -> None:
        """Another equation."""
        self.free = {"W", "U", "R", "V", "Q", "b", "g"}

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def read(self, *shape: str) -> Value | None:
        found = [value for value in self.known if value.shape == shape]
        return self.random.choice(found[-4:] if self.chance(0.5) else found) if found else None

    def shapes(self) -> list[tuple[str, str]]:
        """Of the matrices that can be read."""
        return [(v.shape[0], v.shape[1]) for v in self.known if len(v.shape) == 2]

    def tame(self, value: Value) -> Value:
        """The same or a bounded function of it."""
        if value.bound <= _LARGEST:
            return value
        if self.chance(0.3):
            factor = round(1.7 / value.bound, 3) or 0.001
            return Value(f"{factor}*({value.text})", value.shape, 2.0)
        return Value(f"{self.random.choice(('tanh', 'sin', 'tanh'))}({value.text})", value.shape, 1.0)

    def function(self, value: Value) -> Value:
        name = self.random.choice(list(_BOUNDED))
        return Value(f"{name}({value.text})", value.shape, _BOUNDED[name] or value.bound)

    # Vectors

    def source(self, width: str) -> Value | None:
        """A product or a vector of parameters, by a group that the equation has not used."""
        options = sorted(self.free)
        if not options:
            return None
        name = self.random.choice(options)
        self.free.remove(name)
        if name in ("b", "g"):
            return Value(name, (width,), 1.0)
        if name in ("W", "U"):
            return Value(f"{name}@x", (width,), 3.0)
        operand = self.read(self.random.choice(list(self.widths)))
        return operand and Value(f"{name}@{atom(operand.text)}", (width,), 3.0 * operand.bound)

    def vector(self, width: str, depth: int) -> Value:
        return self.tame(self._vector(width, depth))

    def _vector(self, width: str, depth: int) -> Value:
        leaf = self.read(width)
        if depth <= 0:
            return leaf or self._some_vector(width)
        match self.random.randrange(12):
            case 0 | 1:
                made = self.source(width)
                return self.function(made) if made else self._vector(width, depth - 1)
            case 2 | 3 | 4 | 5:
                return self.from_matrix(width, depth) or self._vector(width, depth - 1)
            case 6:
                number = self.number(depth - 1)
                other = self.vector(width, depth - 1)
                return Value(f"{atom(number.text)}*{atom(other.text)}", (width,), number.bound * other.bound)
            case 7:
                return self.function(self.vector(width, depth - 1))
            case 8:
                value = self.vector(width, depth - 1)
                return Value(f"softmax({value.text})", (width,), 1.0)
            case 9:
                value = self.vector(width, depth - 1)
                # No vector is near zero.
                return Value(f"normalize(1.5 + sin({value.text}))", (width,), 1.0)
            case _:
                one, two = self.vector(width, depth - 1), self.vector(width, depth - 1)
                return self.binary(one, two)

    def _some_vector(self, width: str) -> Value:
        own = [value for value in self.vectors if value.shape == (width,)]
        return self.random.choice(own) if own else Value(f"(0.3*ones({width}))", (width,), 0.3)

    def binary(self, one: Value, two: Value) -> Value:
        match self.random.randrange(5):
            case 0 | 1:
                sign = self.random.choice("+-")
                return Value(f"{one.text} {sign} {atom(two.text)}", one.shape, one.bound + two.bound)
            case 2 | 3:
                return Value(f"{atom(one.text)}*{atom(two.text)}", one.shape, one.bound * two.bound)
            case _:
                name = self.random.choice(("max", "min"))
                return Value(f"{name}({one.text}, {two.text})", one.shape, max(one.bound, two.bound))

    def from_matrix(self, width: str, depth: int) -> Value | None:
        """A vector that a matrix and another vector make, or a matrix alone."""
        shapes = [shape for shape in self.shapes() if width in shape]
        if not shapes:
            return None
        p, q = self.random.choice(shapes)
        if width == p and (width != q or self.chance(0.6)):
            matrix, other, axis = self.matrix(p, q, self.random.choice((0, 0, depth - 1))), q, "rows"
            left = atom(matrix.text)
        else:
            matrix, other, axis = self.matrix(p, q, self.random.choice((0, 0, depth - 1))), p, "columns"
            left = f"T({matrix.text})"
        size = self.widths[other] // self.heads
        match self.random.randrange(8):
            case 0:
                return Value(f"sum({matrix.text}, axis={axis})", (width,), matrix.bound * size)
            case 1:
                name = self.random.choice(("mean", "max", "min", "logsumexp"))
                more = 2.0 if name == "logsumexp" else 0.0
                return Value(f"{name}({matrix.text}, axis={axis})", (width,), matrix.bound + more)
            case 2 if p == q:
                return Value(f"diag({matrix.text})", (width,), matrix.bound)
            case _:
                vector = self.vector(other, self.random.choice((0, 0, 1)))
                return Value(f"{left}@{atom(vector.text)}", (width,), matrix.bound * vector.bound * size)

    # Numbers

    def number(self, depth: int) -> Value:
        return self.tame(self._number(depth))

    def gate(self, depth: int) -> Value:
        """Between 0 and 1."""
        return Value(f"sigmoid({self.number(depth).text})", (), 1.0)

    def _number(self, depth: int) -> Value:
        leaf = self.read()
        if leaf is not None and (depth <= 0 or self.chance(0.5)):
            return leaf
        shapes = self.shapes()
        if shapes and self.chance(0.5):
            p, q = self.random.choice(shapes)
            matrix = self.matrix(p, q, self.random.choice((0, 0, depth - 1)))
            name = self.random.choice(("sum", "mean", "max", "min", "norm", "logsumexp"))
            size = self.widths[p] * self.widths[q] // self.heads**2
            text = f"norm(1.5 + sin({matrix.text}))" if name == "norm" else f"{name}({matrix.text})"
            more = 4.0 if name == "logsumexp" else 0.0
            whole = 2.5 * size if name == "norm" else matrix.bound * (size if name == "sum" else 1) + more
            return Value(text, (), whole)
        widths = sorted({value.shape[0] for value in self.known if len(value.shape) == 1} & set(self.widths))
        width = self.random.choice(widths)
        one, two = self.read(width), self.read(width)
        assert one is not None and two is not None
        size = self.widths[width] // self.heads
        if self.chance(0.3):
            return Value(f"{self.random.choice(('mean', 'max', 'min'))}({one.text})", (), one.bound)
        return Value(f"sum({atom(one.text)}*{atom(two.text)})", (), one.bound * two.bound * size)

    # Matrices

    def matrix(self, p: str, q: str, depth: int) -> Value:
        return self.tame(self._matrix(p, q, depth))

    def _matrix(self, p: str, q: str, depth: int) -> Value:
        leaf = self.read(p, q)
        if leaf is not None and (depth <= 0 or self.chance(0.3)):
            return leaf
        if depth <= 0:
            turned = self.read(q, p)
            return Value(f"T({turned.text})", (p, q), turned.bound) if turned else self.outer(p, q, 0)
        match self.random.randrange(17):
            case 16:
                return self.moved(p, q, depth)
            case 0 | 1:
                return self.outer(p, q, depth)
            case 2 | 3 | 4:
                return self.product(p, q, depth)
            case 5:
                number, other = self.number(depth - 1), self.matrix(p, q, depth - 1)
                if self.chance(0.3):
                    return Value(f"{atom(other.text)}/(1 + abs({number.text}))", (p, q), other.bound)
                return Value(f"{atom(number.text)}*{atom(other.text)}", (p, q), number.bound * other.bound)
            case 6:
                other = self.matrix(p, q, depth - 1)
                text, more = self.random.choice(
                    (("1 - {}", 1.0), ("max({}, 0)", 0.0), ("{} + 0.25", 0.25), ("-{}", 0.0))
                )
                return Value(text.format(atom(other.text)), (p, q), other.bound + more)
            case 7 | 8:
                return self.binary(self.matrix(p, q, depth - 1), self.matrix(p, q, depth - 1))
            case 9:
                return self.function(self.matrix(p, q, depth - 1))
            case 10:
                other, axis = self.matrix(p, q, depth - 1), self.random.choice(("rows", "columns"))
                inner = other.text if self.chance(0.6) else f"1.5 + sin({other.text})"
                name = "normalize" if inner != other.text else "softmax"
                return Value(f"{name}({inner}, axis={axis})", (p, q), 1.0)
            case 11:
                return self.unflattened(p, q, depth)
            case 12:
                params = [value for value in self.params if value.shape == (p, q)]
                if not params:
                    return self._matrix(p, q, depth - 1)
                return self.binary(self.matrix(p, q, depth - 1), self.random.choice(params))
            case 13:
                other = self.matrix(p, q, depth - 1)
                zero = self.random.choice(("0.1", atom(self.number(depth - 1).text)))
                return Value(f"where({other.text} > {zero}, {other.text}, 0.3)", (p, q), max(other.bound, 0.3))
            case _:
                return self.scaled(p, q, depth)

    def moved(self, p: str, q: str, depth: int) -> Value:
        """Running sums, or elements that have moved."""
        matrix, axis = self.matrix(p, q, depth - 1), self.random.choice(("rows", "columns"))
        if self.chance(0.4):
            size = self.widths[q if axis == "rows" else p] // self.heads
            return Value(f"cumsum({matrix.text}, axis={axis})", (p, q), matrix.bound * size)
        places = self.random.choice((1, 1, -1, 2, -3, 7, 0))
        fill = self.random.choice(("", "", ", fill=0", ", fill=0.25", ", fill=-1/K"))
        return Value(f"roll({matrix.text}, {places}{fill}, axis={axis})", (p, q), max(matrix.bound, 1.0))

    def outer(self, p: str, q: str, depth: int) -> Value:
        left, right = self.vector(p, depth - 1), self.vector(q, depth - 1)
        return Value(f"{atom(left.text)}@T({right.text})", (p, q), left.bound * right.bound)

    def scaled(self, p: str, q: str, depth: int) -> Value:
        """Rows or columns scaled; a square matrix may also be `eye` with something."""
        matrix = self.matrix(p, q, depth - 1)
        if self.chance(0.5):
            vector = self.vector(p, depth - 1)
            return Value(f"diag({vector.text})@{atom(matrix.text)}", (p, q), vector.bound * matrix.bound)
        vector = self.vector(q, depth - 1)
        if self.chance(0.4):
            key = self.read(q) or self._some_vector(q)
            first = self.random.choice((f"eye({q})", f"diag({vector.text})"))
            text = f"{atom(matrix.text)}@({first} - {atom(self.gate(0).text)}*{atom(key.text)}@T({key.text}))"
            size = self.widths[q] // self.heads
            return Value(text, (p, q), matrix.bound * (max(vector.bound, 1) + key.bound**2 * size))
        return Value(f"{atom(matrix.text)}@diag({vector.text})", (p, q), vector.bound * matrix.bound)

    def product(self, p: str, q: str, depth: int) -> Value:
        """Of two matrices, one of which may be of parameters."""
        middle = self.random.choice(list(self.widths))
        lefts = [value for value in self.params if value.shape == (p, middle)]
        rights = [value for value in self.params if value.shape == (middle, q)]
        size = self.widths[middle] // self.heads
        if lefts and self.chance(0.5):
            left, right = self.random.choice(lefts), self.matrix(middle, q, depth - 1)
        elif rights and self.chance(0.7):
            left, right = self.matrix(p, middle, depth - 1), self.random.choice(rights)
        else:
            left, right = self.matrix(p, middle, depth - 1), self.matrix(middle, q, depth - 1)
        if self.chance(0.15) and right not in rights:
            # (the right one turned twice)
            right = Value(f"T(T({right.text}))", right.shape, right.bound)
        return Value(f"{atom(left.text)}@{atom(right.text)}", (p, q), left.bound * right.bound * size)

    def unflattened(self, p: str, q: str, depth: int) -> Value:
        known = self.read(f"{p}*{q}//{HEADS}")
        if known is not None and self.chance(0.5):
            return Value(f"unflatten({known.text}, {p}, {q})", (p, q), known.bound)
        terms = [found.text for found in (self.source(p), self.source(p)) if found is not None]
        if not any("@" in term for term in terms):
            return self.outer(p, q, depth)
        return Value(f"tanh(unflatten({' + '.join(terms)}, {p}, {q}))", (p, q), 1.0)


def atom(text: str) -> str:
    """In brackets where it is more than a name or a call."""
    tree = ast.parse(text, mode="eval").body
    return text if isinstance(tree, ast.Name | ast.Call | ast.Subscript) else f"({text})"
