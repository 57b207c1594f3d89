"""A loop without products, as its GPU kernels run it: one thread has a unit of a batch column.

Where the carries of a step are an affine map of those before, slices of time are worked on side by side: each sums up
what it does to the carries, and runs its steps once they are known (a scan). Otherwise a thread walks through all
steps, or slices are worked on side by side by Newton's method, which takes the derivatives of a step.
templates/include/rnncc/cuda/scan reads these types name by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.cell import ACTIVE
from rnncc.ir.expr import Expr
from rnncc.ir.fused import FusedEdge, FusedLoop, FusedRead, FusedRow, FusedStatement, FusedVector, FusedWrite

# None: no such term.
Matrix = tuple[tuple[Expr | None, ...], ...]


def slopes(matrix: Matrix) -> tuple[bool, ...]:
    """Row by row, which slopes of a step may not be zero."""
    return tuple(slope is not None for row in matrix for slope in row)


def entries(matrix: Matrix) -> tuple[bool, ...]:
    """The same of any number of steps, none among them."""
    size = range(len(matrix))
    reached = [[i == j or matrix[i][j] is not None for j in size] for i in size]
    for k in size:
        for i in size:
            for j in size:
                reached[i][j] = reached[i][j] or (reached[i][k] and reached[k][j])
    return tuple(entry for row in reached for entry in row)


@dataclass(frozen=True, slots=True)
class AffineMap:
    """What a step does to the carries: `next[i] = Σ matrix[i][j] * carry[j] + offset[i]`, over `statements`, which read
    no carry. None: no such term."""

    statements: tuple[FusedStatement, ...]
    matrix: Matrix
    offset: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Tangent:
    """How the new carries of a walk change with those before: `matrix[i][j]` is d next[i] / d carry[j], over the step's
    own statements and these. None: they do not."""

    statements: tuple[FusedStatement, ...]
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class ScanLoop:
    """One direction of a loop. `edges` are the carries; `totals` are values that are only summed over all steps;
    `map` is None where a step is no affine map of the carries, or one of too many; `kept` are values free of carries
    that are worked out once for the map of a step and for its run; `masked`: as of a FusedLoop; `tangent` is a
    walk's, where it is known."""

    reads: tuple[FusedRead, ...]
    rows: tuple[FusedRow, ...]
    vectors: tuple[FusedVector, ...]
    constants: tuple[str, ...]
    edges: tuple[FusedEdge, ...]
    statements: tuple[FusedStatement, ...]
    writes: tuple[FusedWrite, ...]
    totals: tuple[str, ...]
    map: AffineMap | None
    kept: tuple[str, ...]
    masked: bool
    tangent: Tangent | None = None

    @property
    def family(self) -> str:
        """Which kernel runs it: scan or walk."""
        return "scan" if self.map else "walk"


def row_values(loop: FusedLoop | ScanLoop) -> tuple[str, ...]:
    """What a step has of a batch column: what is read at (t, column), and in a masked loop whether the step is the
    column's, which kernels know."""
    return (*(row.name for row in loop.rows), *((ACTIVE,) if loop.masked else ()))
