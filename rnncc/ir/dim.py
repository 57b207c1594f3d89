"""Sizes as polynomials in named dims, with exact floor division: `4*H`, `P`, `H//4`.

A Dim is canonical, so equality of dims is equality of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import gcd


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """`numerator // denominator`, kept whole because it is not a polynomial."""

    numerator: Dim
    denominator: Dim


Atom = str | FloorDiv
_RANK = re.compile(r"\b(\w+)__rank\b")


@dataclass(frozen=True, slots=True)
class Dim:
    """A sum of `coefficient * product of atoms`: terms sorted, no zero coefficient. Build with the functions below."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]


def constant(value: int) -> Dim:
    """The dim of a known size."""
    return Dim((((), value),)) if value else Dim(())


def named(name: str) -> Dim:
    """The dim called `name`."""
    return Dim((((name,), 1),))


def add(left: Dim, right: Dim) -> Dim:
    """`left + right`."""
    return _canonical([*left.terms, *right.terms])


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of all: the width of values side by side."""
    return _canonical([term for dim in dims for term in dim.terms])


def scale(dim: Dim, factor: int) -> Dim:
    """`factor * dim`."""
    return _canonical([(atoms, coefficient * factor) for atoms, coefficient in dim.terms])


def subtract(left: Dim, right: Dim) -> Dim:
    """`left - right`."""
    return add(left, scale(right, -1))


def multiply(left: Dim, right: Dim) -> Dim:
    """`left * right`."""
    return _canonical([((*a, *b), m * n) for a, m in left.terms for b, n in right.terms])


def floor_divide(numerator: Dim, denominator: Dim) -> Dim:
    """`numerator // denominator`; exact quotients by a number are simplified."""
    divisor = as_int(denominator)
    if divisor is not None:
        if divisor == 0:
            raise ZeroDivisionError("a dim is divided by zero")
        known = as_int(numerator)
        if known is not None:
            return constant(known // divisor)
        if all(coefficient % divisor == 0 for _, coefficient in numerator.terms):
            return _canonical([(atoms, coefficient // divisor) for atoms, coefficient in numerator.terms])
    if numerator == denominator:
        return constant(1)
    if len(denominator.terms) == 1 and (exact := _divided(numerator, *denominator.terms[0])) is not None:
        return exact
    return Dim((((FloorDiv(numerator, denominator),), 1),))


def _divided(numerator: Dim, atoms: tuple[Atom, ...], factor: int) -> Dim | None:
    """The dim divided by a product of names and a number, where no term leaves a remainder."""
    terms: list[tuple[tuple[Atom, ...], int]] = []
    for own, coefficient in numerator.terms:
        left = list(own)
        for atom in atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if coefficient % factor:
            return None
        terms.append((tuple(left), coefficient // factor))
    return _canonical(terms) if atoms else None


def as_int(dim: Dim) -> int | None:
    """The value of a dim that names nothing, else None."""
    if not dim.terms:
        return 0
    if len(dim.terms) == 1 and not dim.terms[0][0]:
        return dim.terms[0][1]
    return None


def names(dim: Dim) -> frozenset[str]:
    """Every name a dim depends on."""
    found: set[str] = set()
    for atoms, _ in dim.terms:
        for atom in atoms:
            if isinstance(atom, str):
                found.add(atom)
            else:
                found |= names(atom.numerator) | names(atom.denominator)
    return frozenset(found)


@cache
def split_multiple(dim: Dim) -> tuple[int, Dim]:
    """`(k, base)` with `dim == k*base` and k the largest such integer (a known size n is `(1, n)`)."""
    if as_int(dim) is not None:
        return 1, dim
    k = 0
    for _, coefficient in dim.terms:
        k = gcd(k, coefficient)
    return k, _canonical([(atoms, coefficient // k) for atoms, coefficient in dim.terms])


def repeats_whole(operand: Dim, result: Dim) -> bool:
    """Whether `repeat` works on the row as it is, because each head's units lie side by side before and after it."""
    return split_multiple(operand)[0] == split_multiple(result)[0] == 1


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace names by dims."""
    total = constant(0)
    for atoms, coefficient in dim.terms:
        product = constant(coefficient)
        for atom in atoms:
            if isinstance(atom, str):
                factor = values.get(atom, named(atom))
            else:
                factor = floor_divide(substitute(atom.numerator, values), substitute(atom.denominator, values))
            product = multiply(product, factor)
        total = add(total, product)
    return total


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value of a dim, every name of which `sizes` must hold."""
    total = 0
    for atoms, coefficient in dim.terms:
        product = coefficient
        for atom in atoms:
            if isinstance(atom, str):
                product *= sizes[atom]
            else:
                product *= evaluate(atom.numerator, sizes) // evaluate(atom.denominator, sizes)
        total += product
    return total


def show(dim: Dim) -> str:
    """The dim as a reader sees it: `4*H`, `H//4 + 1`, `rank(R)`."""
    match dim.terms:
        case (((FloorDiv(numerator, denominator),), 1),):
            # Python reads `H*K//num_heads` as (H*K)//num_heads.
            left = code(numerator) if len(numerator.terms) == 1 else _operand(numerator)
            text = f"{left}//{_operand(denominator)}"
        case _:
            text = code(dim)
    return _RANK.sub(r"rank(\1)", text)


def rank_of(group: str) -> str:
    """The name of the size that is the rank of a group's matrices. Nobody writes it."""
    return f"{group}__rank"


def number_of(size: str) -> str:
    """The name of the number that a size is in equations: a constant, whose value a layer knows."""
    return f"{size}__size"


def code(dim: Dim) -> str:
    """The dim as text that is valid Python in the names of its sizes."""
    if not dim.terms:
        return "0"
    text = ""
    for atoms, coefficient in dim.terms:
        factors = [_show_atom(atom) for atom in atoms]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+"
        product = "*".join(factors)
        text = f"{text} {sign} {product}" if text else ("-" if coefficient < 0 else "") + product
    return text


def _show_atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    return f"({_operand(atom.numerator)}//{_operand(atom.denominator)})"


def _operand(dim: Dim) -> str:
    text = code(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _key(atom: Atom) -> str:
    return atom if isinstance(atom, str) else _show_atom(atom)


def _canonical(terms: list[tuple[tuple[Atom, ...], int]]) -> Dim:
    sums: dict[tuple[Atom, ...], int] = {}
    for atoms, coefficient in terms:
        ordered = tuple(sorted(atoms, key=_key))
        sums[ordered] = sums.get(ordered, 0) + coefficient
    kept = [(atoms, coefficient) for atoms, coefficient in sums.items() if coefficient]
    # Longer products first, the plain number last: 4*H + 1.
    kept.sort(key=lambda term: (-len(term[0]), tuple(_key(atom) for atom in term[0])))
    return Dim(tuple(kept))


ZERO = constant(0)
ONE = constant(1)
# The number of heads: the width of what a reduction over each head leaves, one value a head.
HEADS = named("num_heads")
INPUT_SIZE = named("I")
HIDDEN_SIZE = named("H")


@dataclass(frozen=True, slots=True)
class Grid:
    """The shape of a matrix that changes from step to step. Each of N heads has a block of rows/N x columns/N: rows
    and columns count all blocks together. The blocks lie one after the other, each row by row."""

    rows: Dim
    columns: Dim

    @property
    def width(self) -> Dim:
        """How many numbers the blocks have together. It stays a quotient: a head's block is one part, also where
        num_heads is a factor of a side."""
        return Dim((((FloorDiv(multiply(self.rows, self.columns), HEADS),), 1),))

    @property
    def sides(self) -> tuple[Dim, Dim]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def transposed(self) -> Grid:
        """The shape of the transpose."""
        return Grid(self.columns, self.rows)
