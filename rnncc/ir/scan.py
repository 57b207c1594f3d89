"""A loop without products, in the form that its GPU kernels run. A *channel* is one unit of one batch entry; a thread
works on one channel or on some.

There are three kinds of kernels. A *scan* runs a loop whose new carries are an affine map of the carries before: slices
of time run side by side, each finds the map of all its steps, and it runs its steps once its first carries are known. A
*walk* runs any other loop: a thread goes through all steps. *Newton's method* runs the slices of such a loop side by
side; it takes the derivatives of a step. templates/include/rnncc/cuda/scan reads these types name by name.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any

from rnncc.ir.cell import ACTIVE
from rnncc.ir.dim import Dim
from rnncc.ir.expr import Apply, Const, Expr
from rnncc.ir.family import SCAN, WALK, Family
from rnncc.ir.fused import FusedEdge, FusedLoop, FusedRead, FusedRow, FusedVector, FusedWrite
from rnncc.ir.step import Place, Statement

# None where a new carry does not depend on a carry.
Matrix = tuple[tuple[Expr | None, ...], ...]


def slopes(matrix: Matrix) -> tuple[bool, ...]:
    """Which slopes of a step may differ from zero, row by row."""
    return tuple(slope is not None for row in matrix for slope in row)


def entries(matrix: Matrix) -> tuple[bool, ...]:
    """The same for the map of any number of steps, zero steps included."""
    size = range(len(matrix))
    reached = [[i == j or matrix[i][j] is not None for j in size] for i in size]
    for k in size:
        for i in size:
            for j in size:
                reached[i][j] = reached[i][j] or (reached[i][k] and reached[k][j])
    return tuple(entry for row in reached for entry in row)


@dataclass(frozen=True, slots=True)
class AffineMap:
    """What a step does to the carries: `next[i] = Σ matrix[i][j] * carry[j] + offset[i]`. The entries read values of
    `statements`, which read no carry."""

    statements: tuple[Statement, ...]
    matrix: Matrix
    offset: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Tangent:
    """How the new carries of a walk change with the carries before: `matrix[i][j]` is d next[i] / d carry[j]. The
    entries read values of the step's own statements and of `statements`."""

    statements: tuple[Statement, ...]
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class ScanLoop:
    """One direction of a loop.

    edges    the carries
    totals   values of which only the sum over all steps is wanted
    map      what a step does to the carries; None where it is no affine map, or a map of too many carries
    kept     values that read no carry, computed once for the map of a step and for its run
    masked   the same as in a FusedLoop
    width    that of all values
    tangent  the derivatives of a walk's step, where they are known
    """

    reads: tuple[FusedRead, ...]
    rows: tuple[FusedRow, ...]
    vectors: tuple[FusedVector, ...]
    constants: tuple[str, ...]
    edges: tuple[FusedEdge, ...]
    statements: tuple[Statement, ...]
    writes: tuple[FusedWrite, ...]
    totals: tuple[str, ...]
    map: AffineMap | None
    kept: tuple[str, ...]
    masked: bool
    width: Dim
    tangent: Tangent | None = None

    @property
    def family(self) -> Family:
        """The family of its kernels: scan or walk. (A walk may also have a kernel for Newton's method.)"""
        return SCAN if self.map else WALK


def without_names(loop: ScanLoop) -> Hashable:
    """The loop with numbers for its names, in the order in which they come, and without lines of the source. Loops for
    which this is equal have the same kernels. It also tells loops apart whose tensors lie in different places, though
    their kernels may be the same."""
    numbers = {ACTIVE: ACTIVE}

    def numbered(part: Any) -> Hashable:
        match part:
            case str():
                return numbers.setdefault(part, str(len(numbers)))
            case tuple():
                return tuple(map(numbered, part))
            case Const(value):
                return repr(value)  # -0.0 equals 0.0, and NaN does not equal NaN
            case Apply(operator, arguments):
                return operator, numbered(arguments)
            case Statement(target, expr, _):
                return numbered(target), numbered(expr)
            case Place() | Dim() | int() | None:
                return part
            case _:
                return type(part), *(numbered(getattr(part, field.name)) for field in fields(part))

    return numbered(loop)


def row_values(loop: FusedLoop | ScanLoop) -> tuple[str, ...]:
    """The values per step and batch entry: what is read at (t, entry), and what kernels know: in a masked loop whether
    the entry has that step, and the head_dims where a statement names one."""
    head_dims = loop.head_dims if isinstance(loop, FusedLoop) else ()
    return (*(row.name for row in loop.rows), *((ACTIVE,) if loop.masked else ()), *head_dims)
