"""One direction of a loop in values: what a step reads, computes and leaves.

`lower` makes two of them from a segment, forward and backward. All kernels are made from them: the table-driven ones by
way of a `Program`, which gives every value an address (kernel.py), those made for one loop by way of a `FusedLoop` or a
`ScanLoop`. A value is known by its name. The only addresses here are those of the call's tensors.

Every step runs all stages in order. A stage is elementwise statements of one width, with the products that feed them
(`TileStage`), statements of a matrix's elements (`MatrixStage`), or one operator along rows (`RowStage`).
templates/include/rnncc/core/tables.h has these types, name by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from rnncc.ir.cell import RowOp
from rnncc.ir.dim import HEADS, ONE, Dim, Grid, split_multiple
from rnncc.ir.expr import Expr
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.structure import Sparsity, Structure


def row_parts(width: Dim) -> int:
    """The k of the layout [k, heads, …] of a row of this width. A value of one number per head is [1, heads, 1]."""
    return 1 if width in (ONE, HEADS) else split_multiple(width)[0]


def is_narrow(width: Dim) -> bool:
    """Whether a value has less than one number per unit."""
    return width in (ONE, HEADS)


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
class Read:
    """A tensor [T, B, ...] that a step reads at its t."""

    name: str
    width: Dim
    place: Place


@dataclass(frozen=True, slots=True)
class Edge:
    """The value that another one, `link`, had one step earlier in the order of the loop (`ahead`: will have one step
    later). Where there is no such step, a tensor [B, width]."""

    name: str
    width: Dim
    link: str
    place: Place
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector or scalar weight."""

    name: str
    width: Dim
    place: Place


Input = Read | Edge | Vector


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
    """`target = expr`. `line` is the line of the `.rnn` text, or 0 where none stands for the statement."""

    target: str
    expr: Expr
    line: int


class Access(Enum):
    """The element of a value that belongs to a unit."""

    UNIT = "unit"  # the unit's own
    ROW = "row"  # its row's, where units are elements of a matrix
    COLUMN = "column"  # its column's
    HEAD = "head"  # its head's
    ONE = "one"  # the only one


@dataclass(frozen=True, slots=True)
class Load:
    """A value that statements read, and that their stage does not make by them. They may call it otherwise: a vector
    may be read by rows and by columns."""

    name: str
    access: Access
    called: str = ""

    @property
    def local(self) -> str:
        """What statements call it."""
        return self.called or self.name


@dataclass(frozen=True, slots=True)
class TileStage:
    """Products and the statements that need them, element by element. The units are laid out as `width` = [parts,
    blocks, …]. `accumulators` are what products make, in their order. `constants`: those that statements read.
    `stored`: what statements make that lies in memory."""

    width: Dim
    parts: int
    blocks: Dim
    products: tuple[Product, ...]
    accumulators: tuple[str, ...]
    loads: tuple[Load, ...]
    constants: tuple[str, ...]
    statements: tuple[Statement, ...]
    stored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reduction:
    """One number for each row of a matrix, or for each column (`axis`): the sum of `source`, or the largest element."""

    target: str
    source: str
    axis: Access
    largest: bool


@dataclass(frozen=True, slots=True)
class MatrixStage:
    """Statements for each element of a matrix, and what its rows and columns add up to: one pass, row by row. `stored`:
    matrices that statements make and that lie in memory. `reductions`: those of rows, then the sums of columns, then
    the largest elements of columns."""

    grid: Grid
    loads: tuple[Load, ...]
    constants: tuple[str, ...]
    statements: tuple[Statement, ...]
    reductions: tuple[Reduction, ...]
    stored: tuple[str, ...]

    @property
    def written(self) -> tuple[str, ...]:
        """All that it writes to memory."""
        return (*self.stored, *(reduction.target for reduction in self.reductions))

    def of_columns(self, largest: bool) -> int:
        """How many reductions of columns there are: sums, or largest elements."""
        return sum(each.axis is Access.COLUMN and each.largest is largest for each in self.reductions)


@dataclass(frozen=True, slots=True)
class RowStage:
    """One operator along rows. `offset` counts elements. `grid`: the shape of a matrix, as RowOp has it."""

    target: str
    operator: RowOperator
    operands: tuple[str, ...]
    width: Dim
    offset: Dim
    times: int
    grid: Grid | None = None


Stage = TileStage | MatrixStage | RowStage


@dataclass(frozen=True, slots=True)
class Final:
    """The value that an edge would have after the last step goes to a tensor [B, width]."""

    edge: str
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
    """The gradient of `width` units of a weight: the sum of a value over all steps and the batch, and over its units
    where it is wider."""

    place: Place
    width: Dim
    value: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One direction of a loop.

    inputs    what a step reads of the call's tensors, by name
    widths    the width of each value
    stages    what it computes, in order
    views     values that are units of another one, side by side: no stage makes them
    outputs   the tensors that take a value at every step, by its name
    kept      values that stay readable until the products over a block of steps are taken
    finals    the tensors that take what edges have after the last step
    outers    products over all steps, which are the gradients of matrices
    sums      sums over all steps, which are the gradients of vectors
    zeros     the gradients of streams that nothing depends on
    masked    whether the loop has the mask streams
    """

    inputs: Mapping[str, Input]
    widths: Mapping[str, Dim]
    matrices: tuple[Matrix, ...]
    stages: tuple[Stage, ...]
    views: Mapping[str, RowOp]
    outputs: Mapping[str, tuple[Place, ...]]
    kept: tuple[str, ...]
    finals: tuple[Final, ...]
    outers: tuple[Outer, ...]
    sums: tuple[Sum, ...]
    zeros: tuple[Zero, ...]
    weights: tuple[WeightShape, ...]
    constants: tuple[str, ...]
    masked: bool

    @property
    def tiles(self) -> tuple[TileStage, ...]:
        """The stages that work unit by unit."""
        return tuple(stage for stage in self.stages if isinstance(stage, TileStage))

    @property
    def elementwise(self) -> tuple[TileStage | MatrixStage, ...]:
        """The stages that have statements."""
        return tuple(stage for stage in self.stages if not isinstance(stage, RowStage))

    @property
    def carried(self) -> tuple[tuple[Edge, Place | None], ...]:
        """The edges whose value a stage makes, each with the tensor that takes what it has after the last step."""
        finals = {final.edge: final.place for final in self.finals}
        edges = (each for each in self.inputs.values() if isinstance(each, Edge) and each.link not in self.inputs)
        return tuple((edge, finals.get(edge.name)) for edge in edges)

    @property
    def stored(self) -> tuple[str, ...]:
        """The values that stages write to memory."""
        return tuple(name for name in self.in_memory() if name not in self.inputs and name not in self.views)

    def places(self, name: str) -> tuple[Place | None, ...]:
        """Where a stored value goes beside its own memory. None: to a record, which is read after the loop."""
        return self.outputs.get(name) or ((None,) if name in self.kept else ())

    def in_memory(self) -> tuple[str, ...]:
        """The values that lie in memory, inputs among them, without accumulators: in the order of the tables and of
        kernels' parameters. A value follows those that it is made of: an edge its link's, a view the whole."""
        found: dict[str, None] = {}

        def add(name: str) -> None:
            match self.inputs.get(name):
                case Edge(link=link) if name not in found:
                    found[name] = None
                    add(link)
                case None if name in self.views and name not in found:
                    add(self.views[name].operands[0])
            found.setdefault(name, None)

        for name in self._named():
            add(name)
        return tuple(found)

    def _named(self) -> Iterator[str]:
        """What lies in memory, by those that name it: edges, stages, and what is done after the loop."""
        for name, each in self.inputs.items():
            if isinstance(each, Edge) or name in self.kept:
                yield name
        for stage in self.stages:
            match stage:
                case RowStage():
                    yield from (*stage.operands, stage.target)
                case MatrixStage():
                    yield from (load.name for load in stage.loads)
                    yield from stage.written
                case TileStage():
                    yield from (product.operand for product in stage.products)
                    yield from (load.name for load in stage.loads if load.name not in stage.accumulators)
                    yield from stage.stored
                case _:
                    assert_never(stage)
        yield from self.kept
