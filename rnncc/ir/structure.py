"""The structure of a matrix: which of its elements exist.

It is one object on the way from a declaration to a kernel: `ParameterType` (typed.py) has it, then `Parameter` and
`Value` (cell.py), then `Matrix` (kernel.py). Code that works with the elements matches the kind of structure and ends
in `assert_never`, so a stage that does not know a kind fails. Two places know blocks alone, and no checker finds them:
`ParameterSpec.blocks` in the runtime, and `MatrixInfo` in C++.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.dim import ONE, Dim, floor_divide


@dataclass(frozen=True, slots=True)
class Dense:
    """Every element exists."""


@dataclass(frozen=True, slots=True)
class BlockDiagonal:
    """`blocks` equal blocks along the diagonal, more than one. Rows are in the layout [k, blocks, base/blocks]; a row
    is stored without the zeros beside its block."""

    blocks: Dim


# The compiler's own size of a cell with masks: 1 where a layer's masks are denser than the cell says, else 0.
DENSER = "masks__denser"


@dataclass(frozen=True, slots=True)
class Sparsity:
    """A mask beside a matrix: the elements that it leaves out are zero and have no gradient.

    density   the share of the elements that kernels are planned for, of each row
    block     blocks of block x block elements are there or not as a whole
    drawn     the mask is drawn when parameters are initialised; else it begins with every element
    """

    density: float
    block: int = 1
    drawn: bool = False


Structure = Dense | BlockDiagonal
DENSE = Dense()


def block_diagonal(blocks: Dim) -> Structure:
    """The structure of a matrix of so many blocks along the diagonal; one block is a dense matrix."""
    return DENSE if blocks == ONE else BlockDiagonal(blocks)


def diagonal_blocks(structure: Structure) -> Dim:
    """The number of blocks along the diagonal, for code that works block by block: ONE for a dense matrix. A kind that
    is stored in any other way must fail here, or kernels read past its end."""
    match structure:
        case Dense():
            return ONE
        case BlockDiagonal(blocks):
            return blocks
        case _:
            assert_never(structure)


def stored_columns(columns: Dim, structure: Structure) -> Dim:
    """How many elements are stored of a row. Blocks divide the columns exactly."""
    match structure:
        case Dense():
            return columns
        case BlockDiagonal(blocks):
            return floor_divide(columns, blocks)
        case _:
            assert_never(structure)
