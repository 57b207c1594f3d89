"""Kernels that give each head of a batch entry to a CTA (templates/include/rnncc/cuda/by_head/loop.cuh): which steps
they take, and how a CTA's threads divide a head's matrix."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.kernel import Program, StoredSlot
from rnncc.ir.row_operator import RowOperator
from rnncc.ir.step import Access, Edge, MatrixStage, Read, RowStage, TileStage


@dataclass(frozen=True, slots=True)
class HeadTile:
    """How the threads of a CTA divide a head's matrix: `lanes` share a row and have `columns` elements of it each, and
    a thread has elements of so many `rows`."""

    lanes: int
    columns: int
    rows: int

    @property
    def at_once(self) -> int:
        """How many CTAs an SM runs at once: threads with few elements take few registers."""
        return 2 if self.rows * self.columns <= 16 else 1

    @property
    def name(self) -> str:
        """How the names of its kernels end."""
        return f"_by_head_{self.lanes}_{self.columns}_{self.rows}"


# For heads of 64 x 16, 64 x 64 and 128 x 128, with 256 threads.
HEAD_TILES = (HeadTile(4, 4, 1), HeadTile(8, 8, 2), HeadTile(16, 8, 8))


@dataclass(frozen=True, slots=True)
class HeadForm:
    """`matrices`: for each slot, whether it is a matrix."""

    matrices: tuple[bool, ...]
    tiles: tuple[HeadTile, ...] = HEAD_TILES


_OF_ALL_ELEMENTS = (RowOperator.SUM, RowOperator.MEAN, RowOperator.MAX)
_MOVES = (RowOperator.ROLL, RowOperator.SHIFT)


def head_form(program: Program) -> HeadForm | None:
    """The kernels that give each head to a CTA (templates/include/rnncc/cuda/by_head/loop.cuh). They take steps without
    products by parameters, whose matrices all have one shape and are changed element by element; vectors may be sums
    along their rows or columns."""
    stages = program.stages
    grids = {stage.grid for stage in stages if isinstance(stage, MatrixStage)}
    if len(grids) != 1 or any(isinstance(stage, TileStage) and stage.products for stage in stages):
        return None
    table = {slot.name: slot for slot in program.slots}
    edges = [slot for slot in program.slots if isinstance(slot, Edge)]
    # Threads keep what is read of the step after the present one, and what is made of the one before.
    if any(not isinstance(table[edge.link], Read if edge.ahead else StoredSlot) for edge in edges):
        return None
    matrices: set[str] = set()
    for stage in stages:
        if isinstance(stage, MatrixStage):
            matrices |= {load.name for load in stage.loads if load.access is Access.UNIT} | {*stage.stored}
    for edge in edges:
        if {edge.name, edge.link} & matrices:
            matrices |= {edge.name, edge.link}
    for stage in stages:
        if isinstance(stage, RowStage) and (
            stage.grid is not None
            or stage.operator in _MOVES
            or stage.target in matrices
            or (stage.operator not in _OF_ALL_ELEMENTS and not matrices.isdisjoint(stage.operands))
        ):
            return None
        if isinstance(stage, TileStage) and any(load.name in matrices for load in stage.loads):
            return None
    return HeadForm(tuple(slot.name in matrices for slot in program.slots))
