"""The recurrence class of a segment: what of its loop may run in parallel over time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rnncc.ir.expr import Expr


class RecurrenceKind(Enum):
    """The classes of docs/language.md, "What the compiler finds out by itself", from the most parallel to the
    least; the last one is that of matrices."""

    AFFINE = "AFFINE"  # s[t] = A s[t-1] + b, A and b free of the segment's states: a scan
    ELEMENTWISE = "ELEMENTWISE"  # units do not mix: one sequential chain per unit
    DENSE = "DENSE"  # units mix: a recurrent matrix, or an operation across a row
    MATRIX = "MATRIX"  # a state is a matrix


# The classes of loops in which units mix, so that no scan runs them.
MIXING = frozenset((RecurrenceKind.DENSE, RecurrenceKind.MATRIX))


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One segment's class.

    form     for AFFINE `diagonal`, or `affine2`, `affine3` for that many coupled states. For ELEMENTWISE `clamp`, where
             the step is a clamp of an affine map of one state. Else it is empty.
    why      what prevents a better class, with its line; for AFFINE what makes it affine; for MATRIX which states
             are matrices
    matrix   for AFFINE: matrix[i][j] multiplies the previous state j in the new state i, element by element
    offset   for AFFINE: offset[i] is added to the new state i
    shared   named parts that several coefficients contain; a part follows those that it reads

    Coefficients and parts read streams, weights, constants, names of `shared`, and values of the loop that do not
    depend on the segment's states."""

    states: tuple[str, ...]
    kind: RecurrenceKind
    form: str
    why: str
    matrix: tuple[tuple[Expr, ...], ...] = ()
    offset: tuple[Expr, ...] = ()
    shared: tuple[tuple[str, Expr], ...] = ()
