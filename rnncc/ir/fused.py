"""A loop with one product a step, as the fused kernels run it: start, product, finish.

`start` (elementwise) makes the product's operands, `finish` (elementwise) takes its sums. Between the two, and from
step to step, floats of a (unit, column) live in registers: the carries. templates/include/rnncc/cuda/fused/step.cuh
reads these types name by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.expr import Expr
from rnncc.ir.kernel import Place


@dataclass(frozen=True, slots=True)
class FusedRead:
    """A tensor [T, B, H] at t. With an `edge`: at the next step of the loop's order, and beyond the loop that one."""

    name: str
    place: Place
    edge: Place | None = None


@dataclass(frozen=True, slots=True)
class FusedRow:
    """A tensor [T, B, 1] at t."""

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class FusedVector:
    """A weight of H units, or of one number."""

    name: str
    place: Place
    scalar: bool


@dataclass(frozen=True, slots=True)
class FusedEdge:
    """A carry with an initial value, from a tensor [B, H]; `last`: the tensor that takes its value after the loop."""

    name: str
    link: str  # the value that it has at the next step
    place: Place
    last: Place | None


@dataclass(frozen=True, slots=True)
class FusedWrite:
    """A value that goes to a tensor [T, B, H], or, without a place, to the record that products after the loop read."""

    value: str
    place: Place | None
    at_start: bool


@dataclass(frozen=True, slots=True)
class FusedStatement:
    """`target = expr`; `line` of the `.rnn` text, or 0."""

    target: str
    expr: Expr
    line: int


@dataclass(frozen=True, slots=True)
class FusedLoop:
    """One direction of a loop. `matrices[sum][operand]` are names of the program's matrices; `joined`: these follow
    each other in one weight and so are one matrix: those of one operand in the order of the sums, or transposed those
    of one sum against the order of the operands; `kept` are values that
    `start` leaves for `finish` and for the next step. `masked`: with the mask streams, of which
    the second is no row: kernels know whether a step is a column's."""

    sums: tuple[str, ...]
    operands: tuple[str, ...]
    matrices: tuple[tuple[str, ...], ...]
    joined: bool
    transposed: bool
    reads: tuple[FusedRead, ...]
    rows: tuple[FusedRow, ...]
    vectors: tuple[FusedVector, ...]
    constants: tuple[str, ...]
    edges: tuple[FusedEdge, ...]
    kept: tuple[str, ...]
    start: tuple[FusedStatement, ...]
    finish: tuple[FusedStatement, ...]
    writes: tuple[FusedWrite, ...]
    masked: bool

    @property
    def inference_writes(self) -> tuple[FusedWrite, ...]:
        """Without what only a backward reads."""
        return tuple(write for write in self.writes if write.place is not None and not write.place.is_saved)
