"""Widths: what is narrow, how a row is laid out, which units go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rnncc.ir.cell import Cell, Value
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, ONE, Dim, named, names, split_multiple, substitute
from rnncc.ir.step import Access


@dataclass(frozen=True, slots=True)
class Key:
    """What the statements of a stage share: the width, and the blocks that its tiles must not cross."""

    width: Dim
    blocks: Dim


def unified(cell: Cell, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values, with dims that the cell's constraints make equal written in one way: equal widths look equal."""
    known: dict[str, Dim] = {}
    for constraint in cell.constraints:
        if constraint.divides:
            continue
        sides = [substitute(side, known) for side in (constraint.left, constraint.right)]
        for side, other in (sides, sides[::-1]):
            free = names(side)
            if len(free) == 1 and side == named(*free) and side != HIDDEN_SIZE and not free & names(other):
                known = {name: substitute(dim, {min(free): other}) for name, dim in known.items()}
                known[min(free)] = other
                break
    return {name: _written(value, known) for name, value in values.items()}


def _written(value: Value, known: Mapping[str, Dim]) -> Value:
    columns = None if value.columns is None else substitute(value.columns, known)
    return replace(value, width=substitute(value.width, known), columns=columns)


def is_narrow(width: Dim) -> bool:
    """Whether a value has less than one number per unit."""
    return width in (ONE, HEADS)


def access(width: Dim, stage: Dim) -> Access:
    """How a statement of a stage's width reads a value."""
    if width == stage or not is_narrow(width):
        return Access.UNIT
    return Access.ONE if width == ONE else Access.HEAD


def is_contiguous(offset: Dim, width: Dim, whole: Dim) -> bool:
    """Whether units [offset, offset + width) of each head lie side by side: both are multiples of the base of
    `whole`."""
    _, base = split_multiple(whole)
    return split_multiple(width)[1] == base and (not offset.terms or split_multiple(offset)[1] == base)
