"""What a kernel is before it is text: the loop of a segment as slots, products and stages.

A loop has two `Program`s, forward and backward (plan.py). A program is a list of stages, and every step runs all of
them. The driver (templates/include/rnncc/cpu/sequence.h) is the same for all programs: it goes through steps and batch,
and owns threads and memory. The program says

  slots      every value with an address: where it is read from, and where it goes
  stages     products with their elementwise statements (`TileStage`), or one operator along rows (`RowStage`)
  outers     products over all steps, which are the gradients of matrices
  sums       sums over all steps, which are the gradients of vectors

templates/include/rnncc/core/tables.h has these types, name by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rnncc.ir.cell import RowOperator
from rnncc.ir.dim import HEADS, ONE, Dim, split_multiple
from rnncc.ir.expr import Expr
from rnncc.ir.structure import Sparsity, Structure


def row_parts(width: Dim) -> int:
    """The k of the layout [k, heads, …] of a row of this width. A value of one number per head is [1, heads, 1]."""
    return 1 if width in (ONE, HEADS) else split_multiple(width)[0]


class Table(Enum):
    """A list of tensors of a call, by its name in tables.h."""

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
    """The units of tensor `index` of a table from `offset` on."""

    table: Table
    index: int
    offset: Dim

    @property
    def is_saved(self) -> bool:
        """Whether a training forward writes it and a backward reads it."""
        return self.table in (Table.SAVED, Table.ROUNDED)


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """A tensor [T, B, ...] that a step reads at its t. `kept`: it stays readable until the products over its block of
    steps are taken."""

    name: str
    width: Dim
    place: Place
    kept: bool = False


@dataclass(frozen=True, slots=True)
class EdgeSlot:
    """The value that another slot had one step earlier in the order of the loop (`ahead`: will have one step later).
    Where there is no such step, a tensor [B, width]."""

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
    """A value that a stage writes. It lies in the first destination that is wanted and has the compute type, or else in
    a workspace. `kept`: the same as for a ReadSlot."""

    name: str
    width: Dim
    destinations: tuple[Place, ...] = ()
    kept: bool = False


@dataclass(frozen=True, slots=True)
class ViewSlot:
    """The units [offset, offset + width) of another slot."""

    name: str
    width: Dim
    link: str
    offset: Dim


@dataclass(frozen=True, slots=True)
class TileSlot:
    """An accumulator of a stage's products, which has no address."""

    name: str
    width: Dim


Slot = ReadSlot | EdgeSlot | VectorSlot | StoredSlot | ViewSlot | TileSlot


@dataclass(frozen=True, slots=True)
class Matrix:
    """`rows` rows of weight `index`, from `offset` on: [rows, columns], or what its structure stores of them. `parts`
    is the k of the rows' layout."""

    name: str
    index: int
    offset: Dim
    rows: Dim
    columns: Dim
    structure: Structure
    parts: int


@dataclass(frozen=True, slots=True)
class Product:
    """Accumulators `first`, `first` + 1, … = matrix @ operand, one for each of `matrices`. `accumulate`: the products
    are added to what the accumulators hold. `parts` is the k of the operand's layout."""

    operand: str
    matrices: tuple[str, ...]
    first: int
    parts: int
    transposed: bool
    accumulate: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """`target = expr` for a vector of units. `stored`: the value is also written to the slot `target`. `line` is the
    line of the `.rnn` text, or 0 where none stands for the statement."""

    target: str
    expr: Expr
    stored: bool
    line: int


class Access(Enum):
    """The element of a slot that belongs to a unit."""

    UNIT = "unit"  # the unit's own
    HEAD = "head"  # its head's
    ONE = "one"  # the only one


@dataclass(frozen=True, slots=True)
class Load:
    """A slot that statements read."""

    slot: str
    access: Access


@dataclass(frozen=True, slots=True)
class TileStage:
    """Products and the statements that need them. They run in tiles of the units, which are laid out as `width` =
    [parts, blocks, …]. `accumulators` are slots, in the order in which products make them. `barrier`: where threads
    share the units, the stage reads what other threads wrote."""

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
    """One operator along rows. `offset` counts elements."""

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
    """The value that an edge slot would have after the last step goes to a tensor [B, width]."""

    slot: str
    place: Place


@dataclass(frozen=True, slots=True)
class Outer:
    """d_matrix += cotangent ⊗ operand, for all steps. `parts` is the k of the operand's layout."""

    matrix: str
    cotangent: str
    operand: str
    parts: int


@dataclass(frozen=True, slots=True)
class Sum:
    """The gradient of `width` units of a weight: the sum of a slot over all steps and the batch, and over its units
    where it is wider."""

    place: Place
    width: Dim
    slot: str


@dataclass(frozen=True, slots=True)
class Zero:
    """`width` units whose gradient is zero."""

    place: Place
    width: Dim


@dataclass(frozen=True, slots=True)
class WeightShape:
    """The shape of a weight as it is stored. A vector has one column. `sparsity`: which elements are not zero."""

    name: str
    rows: Dim
    columns: Dim
    sparsity: Sparsity | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """One direction of a loop. `masked`: the loop has the mask streams."""

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
