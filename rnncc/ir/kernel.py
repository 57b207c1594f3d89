"""What a kernel is before it is text: the loop of a segment as slots, products and stages.

A loop has two `Program`s, forward and backward (plan.py). A program is a list of stages that run once a step; the fixed
driver (templates/include/rnncc/cpu/sequence.h) owns time, rows, threads and memory, and the plan says

  slots      every value with an address: where it is read from, where it goes
  stages     products with their elementwise statements (`TileStage`), or one operator along rows (`RowStage`)
  outers     products over all steps: gradients of matrices
  sums       sums over all steps: gradients of vectors

The tables of program.h are these types, name by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rnncc.ir.cell import RowOperator
from rnncc.ir.dim import HEADS, ONE, Dim, split_multiple
from rnncc.ir.expr import Expr
from rnncc.ir.structure import Structure


def row_parts(width: Dim) -> int:
    """k of the layout [k, heads, …] of a row of this width; a value of one number a head is [1, heads, 1]."""
    return 1 if width in (ONE, HEADS) else split_multiple(width)[0]


class Table(Enum):
    """A list of tensors of a call, by its name in program.h."""

    STREAMS = "STREAMS"
    WEIGHTS = "WEIGHTS"
    STATES = "STATES"
    SEQUENCES = "SEQUENCES"
    FINAL = "FINAL"
    SAVED = "SAVED"
    ROUNDED = "ROUNDED"  # entries of the same list, in the streams' dtype where the backend keeps them so
    D_SEQUENCES = "D_SEQUENCES"
    D_FINAL = "D_FINAL"
    D_STREAMS = "D_STREAMS"
    D_WEIGHTS = "D_WEIGHTS"
    D_STATES = "D_STATES"


@dataclass(frozen=True, slots=True)
class Place:
    """Units of tensor `index` of a table, from `offset` on."""

    table: Table
    index: int
    offset: Dim

    @property
    def is_saved(self) -> bool:
        """Whether a training forward writes it and a backward reads it."""
        return self.table in (Table.SAVED, Table.ROUNDED)


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """A tensor [T, B, ...] at t. `kept`: readable until the products over its block of steps are taken."""

    name: str
    width: Dim
    place: Place
    kept: bool = False


@dataclass(frozen=True, slots=True)
class EdgeSlot:
    """Another slot's value one step earlier (`ahead`: later) in the loop's order; beyond the loop a tensor [B,
    width]."""

    name: str
    width: Dim
    link: str
    place: Place
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class VectorSlot:
    """A vector or scalar weight."""

    name: str
    width: Dim
    place: Place


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """What a stage writes; it lies in the first destination that is wanted and has the compute type, else in a
    workspace."""

    name: str
    width: Dim
    destinations: tuple[Place, ...] = ()
    kept: bool = False


@dataclass(frozen=True, slots=True)
class ViewSlot:
    """Units [offset, offset + width) of another slot."""

    name: str
    width: Dim
    link: str
    offset: Dim


@dataclass(frozen=True, slots=True)
class TileSlot:
    """An accumulator of a stage's products."""

    name: str
    width: Dim


Slot = ReadSlot | EdgeSlot | VectorSlot | StoredSlot | ViewSlot | TileSlot


@dataclass(frozen=True, slots=True)
class Matrix:
    """`rows` rows of weight `index`, from `offset` on: [rows, columns], or what its structure stores of them. `parts`
    is k of the rows' layout."""

    name: str
    index: int
    offset: Dim
    rows: Dim
    columns: Dim
    structure: Structure
    parts: int


@dataclass(frozen=True, slots=True)
class Product:
    """Accumulators `first`, `first` + 1, … (+)= matrix @ operand, one for each of `matrices`. `parts` is k of the
    operand."""

    operand: str
    matrices: tuple[str, ...]
    first: int
    parts: int
    transposed: bool
    accumulate: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """`target = expr` for a vector of units. `stored`: also written to the slot `target`. `line`: of the `.rnn` text,
    or 0."""

    target: str
    expr: Expr
    stored: bool
    line: int


class Access(Enum):
    """Which element of a slot belongs to a unit."""

    UNIT = "unit"  # the unit's own
    HEAD = "head"  # its head's
    ONE = "one"  # the only one


@dataclass(frozen=True, slots=True)
class Load:
    """A slot that statements read under the name `name`."""

    slot: str
    access: Access


@dataclass(frozen=True, slots=True)
class TileStage:
    """Products and the statements that need them, tile by tile of the units of `width` = [parts, blocks, …].
    `accumulators` are slots, in the order of columns. `barrier`: reads what other threads wrote, if units are
    divided."""

    width: Dim
    parts: int
    blocks: Dim
    products: tuple[Product, ...]
    accumulators: tuple[str, ...]
    loads: tuple[Load, ...]
    constants: tuple[str, ...]
    statements: tuple[Statement, ...]
    barrier: bool


@dataclass(frozen=True, slots=True)
class RowStage:
    """One operator along rows; `offset` in elements."""

    target: str
    operator: RowOperator
    operands: tuple[str, ...]
    width: Dim
    offset: Dim
    times: int
    barrier: bool


Stage = TileStage | RowStage


@dataclass(frozen=True, slots=True)
class Final:
    """What the edge slot would read after the last step, to a tensor [B, width]."""

    slot: str
    place: Place


@dataclass(frozen=True, slots=True)
class Outer:
    """d_matrix += cotangent ⊗ operand; `parts` is k of the operand's layout."""

    matrix: str
    cotangent: str
    operand: str
    parts: int


@dataclass(frozen=True, slots=True)
class Sum:
    """The gradient of `width` units of a weight: a slot summed over steps, rows, and units where it is wider."""

    place: Place
    width: Dim
    slot: str


@dataclass(frozen=True, slots=True)
class Zero:
    """`width` units that have no gradient."""

    place: Place
    width: Dim


@dataclass(frozen=True, slots=True)
class WeightShape:
    """Of a weight as it is stored: a vector has one column."""

    name: str
    rows: Dim
    columns: Dim


@dataclass(frozen=True, slots=True)
class Program:
    """One direction of a loop; `masked`: with the mask streams."""

    slots: tuple[Slot, ...]
    matrices: tuple[Matrix, ...]
    stages: tuple[Stage, ...]
    finals: tuple[Final, ...]
    outers: tuple[Outer, ...]
    sums: tuple[Sum, ...]
    zeros: tuple[Zero, ...]
    weights: tuple[WeightShape, ...]
    constants: tuple[str, ...]
    masked: bool
