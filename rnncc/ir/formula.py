"""Formulas that parameters start at: numbers, sizes, vectors of numbers alone, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from rnncc.ir.dim import Dim

# What a formula may apply, and to how many operands; rnncc/runtime/modules/formulas.py computes them.
OPERATORS = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "pow": 2, "neg": 1, "exp": 1, "log": 1, "log1p": 1, "sqrt": 1, "abs": 1,
    "sin": 1, "cos": 1, "tanh": 1, "sigmoid": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, or a constant of the cell."""

    value: float


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the layer, as a number."""

    dim: Dim


@dataclass(frozen=True, slots=True)
class Vector:
    """`ones(dim)`, `arange(dim)`."""

    function: str
    dim: Dim


@dataclass(frozen=True, slots=True)
class Applied:
    """An operator, element by element."""

    operator: str
    arguments: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Outer:
    """`left@T(right)` of two vectors."""

    left: Part
    right: Part


Part = Number | Size | Vector | Applied | Outer


@dataclass(frozen=True, slots=True)
class Formula:
    """`shape`: nothing for a number, the width of a vector, rows and columns of a matrix. `text`: as it is written."""

    root: Part
    shape: tuple[Dim, ...]
    text: str = field(default="", compare=False)
