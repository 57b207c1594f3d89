"""What the generated torch code does with matrices that change with the step.

Such a matrix has a block [rows, columns] for each of N heads, and is [..., N*rows*columns]: the blocks one after the
other, each row by row. `rows` and `columns` are those of a block. A vector is laid out as rows.py says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import join_heads, split_heads


def blocks(value: Tensor, heads: int, rows: int) -> Tensor:
    """[..., N*rows*columns] as [..., N, rows, columns]."""
    return value.reshape(*value.shape[:-1], heads, rows, value.shape[-1] // (heads * rows))


def by_row(vector: Tensor, heads: int, k: int, columns: int) -> Tensor:
    """Each element of a vector fills its row."""
    return split_heads(vector, heads, k).unsqueeze(-1).expand(*vector.shape[:-1], heads, -1, columns).flatten(-3)


def by_column(vector: Tensor, heads: int, k: int, rows: int) -> Tensor:
    """Each element of a vector fills its column."""
    return split_heads(vector, heads, k).unsqueeze(-2).expand(*vector.shape[:-1], heads, rows, -1).flatten(-3)


def row_sums(value: Tensor, heads: int, rows: int, k: int) -> Tensor:
    """The sum of each row, as a vector of k parts."""
    return join_heads(blocks(value, heads, rows).sum(-1), heads, k)


def column_sums(value: Tensor, heads: int, rows: int, k: int) -> Tensor:
    """The sum of each column."""
    return join_heads(blocks(value, heads, rows).sum(-2), heads, k)


def row_maxima(value: Tensor, heads: int, rows: int, k: int) -> Tensor:
    """The largest element of each row. The largest share its gradient."""
    return join_heads(blocks(value, heads, rows).amax(-1), heads, k)


def column_maxima(value: Tensor, heads: int, rows: int, k: int) -> Tensor:
    """The largest element of each column."""
    return join_heads(blocks(value, heads, rows).amax(-2), heads, k)


def transpose(value: Tensor, heads: int, rows: int) -> Tensor:
    """Each block transposed."""
    return blocks(value, heads, rows).mT.flatten(-3)


def matmul(left: Tensor, right: Tensor, heads: int, rows: int, inner: int) -> Tensor:
    """The products of blocks [rows, inner] and [inner, columns]."""
    return (blocks(left, heads, rows) @ blocks(right, heads, inner)).flatten(-3)


def on_diagonal(vector: Tensor, heads: int, k: int) -> Tensor:
    """A vector on the diagonals of square blocks."""
    return torch.diag_embed(split_heads(vector, heads, k)).flatten(-3)


def diagonal(value: Tensor, heads: int, rows: int, k: int) -> Tensor:
    """The diagonals of square blocks."""
    return join_heads(blocks(value, heads, rows).diagonal(0, -2, -1), heads, k)
