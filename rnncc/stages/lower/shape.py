"""Widths: what is narrow, how a row is laid out, which units go together."""

from __future__ import annotations

from rnncc.ir.dim import HEADS, ONE, Dim, split_multiple
from rnncc.ir.kernel import Access


def is_narrow(width: Dim) -> bool:
    """Whether a value has less than a number a unit."""
    return width in (ONE, HEADS)


def access(width: Dim, stage: Dim) -> Access:
    """How a statement of a stage's width reads a value."""
    if width == stage:
        return Access.UNIT
    return Access.ONE if width == ONE else Access.HEAD


def is_contiguous(offset: Dim, width: Dim, whole: Dim) -> bool:
    """Whether units [offset, offset + width) of each head lie side by side: both are multiples of the base of `whole`."""
    _, base = split_multiple(whole)
    return split_multiple(width)[1] == base and (not offset.terms or split_multiple(offset)[1] == base)
