"""The shape of a value, and which widths belong to inputs alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rnncc.ir import dim as dims
from rnncc.ir.cell import Constraint
from rnncc.ir.dim import HEADS, ONE, Dim, FloorDiv
from rnncc.stages.check.declare import Symbols


@dataclass(frozen=True, slots=True)
class Shape:
    """`kind` is vector, matrix or diag. A matrix has `columns`."""

    width: Dim
    columns: Dim | None = None
    kind: str = "vector"

    @property
    def is_matrix(self) -> bool:
        return self.kind != "vector"


@dataclass(frozen=True, slots=True)
class Shapes:
    """`values` by name; `solved` the dims that follow from others; `constraints` for construction. `canonical`
    writes a width in the sizes left: H for 4*K where K is solved as H//4."""

    values: dict[str, Shape]
    solved: dict[str, Dim]
    constraints: tuple[Constraint, ...]
    canonical: Callable[[Dim], Dim]


def is_of_inputs(width: Dim, input_dims: frozenset[str]) -> bool:
    """Whether inputs alone have this width: it is not laid out by heads."""
    found = dims.names(width)
    return bool(found) and found <= input_dims


def reduced(width: Dim, input_dims: frozenset[str]) -> Dim:
    """The width of a sum or mean: one number a head, or one number where inputs alone have that width."""
    return ONE if width == ONE or is_of_inputs(width, input_dims) else HEADS


def joint(widths: Sequence[Dim], input_dims: frozenset[str]) -> Dim:
    """The width of values that must be equally wide, where I == H say: with heads if one of them has these."""
    return next((width for width in widths if not is_of_inputs(width, input_dims)), widths[0])


def input_dims(symbols: Symbols) -> frozenset[str]:
    """The dims that measure inputs only: values of such a width are not laid out by heads."""
    inputs = {"I"} | {name for value in symbols.inputs.values() for name in dims.names(value.width or ONE)}
    inside = [*symbols.states.values(), *symbols.locals.values()]
    return frozenset(
        inputs - {"H", "num_heads"} - {name for value in inside for name in dims.names(value.width or ONE)}
    )


def is_quotient(width: Dim) -> bool:
    match width.terms:
        case (((FloorDiv(),), 1),):
            return True
        case _:
            return False
