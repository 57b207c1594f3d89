"""Functions across the units of each head, for the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rnncc.ir.cell import RowOp, State
from rnncc.ir.dim import evaluate
from rnncc.ir.row_operator import WITHIN_ROWS, RowOperator
from rnncc.language.diagnostics import InternalError


def row_of_heads(node: RowOp, row: Tensor, units: int, places: int) -> Tensor:
    """What an operator makes of the units of each head, [..., N, units of the operand]; `units`: those of the
    result; `places`: by how many it moves them."""
    match node.operator:
        case RowOperator.SUM:
            return row.sum(-1, keepdim=True)
        case RowOperator.MEAN:
            return row.mean(-1, keepdim=True)
        case RowOperator.SPREAD:
            return (row / units).expand(*row.shape[:-1], units)
        case RowOperator.MAX:
            return row.amax(-1, keepdim=True)
        case RowOperator.SQUARES:
            return row.var(-1, correction=0, keepdim=True) * row.shape[-1]
        case RowOperator.VARIANCE:
            return row.var(-1, correction=0, keepdim=True)
        case RowOperator.LAYERNORM:
            scale = torch.rsqrt(row.var(-1, correction=0, keepdim=True) + node.epsilon)
            return (row - row.mean(-1, keepdim=True)) * scale
        case RowOperator.RMSNORM:
            return row * torch.rsqrt(row.square().mean(-1, keepdim=True) + torch.finfo(row.dtype).eps)
        case RowOperator.SOFTMAX:
            powers = torch.exp(row - row.amax(-1, keepdim=True).detach())
            return powers / powers.sum(-1, keepdim=True)
        case RowOperator.CUMSUM:
            return row.cumsum(-1)
        case RowOperator.CUMSUM_REVERSED:
            return row.flip(-1).cumsum(-1).flip(-1)
        case RowOperator.REPEAT:
            return row.repeat_interleave(node.times, -1)
        case RowOperator.SEGMENT_SUM:
            return row.reshape(*row.shape[:-1], -1, node.times).sum(-1)
        case RowOperator.ROLL:
            return row.roll(places, -1)
        case RowOperator.SHIFT:
            # What left cannot come in again from a row that is twice as long.
            places = max(-units, min(places, units))
            return torch.cat((row, torch.zeros_like(row)), -1).roll(places, -1)[..., :units]
        case RowOperator.ARANGE:
            return torch.arange(units).to(row).expand(row.shape)
        case _:
            raise InternalError(f"{node.operator.value} by heads")


def of_matrices(node: RowOp, operands: Sequence[Tensor], rows: int, columns: int, places: int) -> Tensor:
    """What an operator makes of matrices [..., N, rows, columns] and vectors [..., N, units]. `rows` and `columns` are
    those of the matrix that it takes or makes."""
    first = operands[0]
    match node.operator:
        case RowOperator.BY_ROW:
            return first[..., :, None].expand(*first.shape, columns)
        case RowOperator.BY_COLUMN:
            return first[..., None, :].expand(*first.shape[:-1], rows, first.shape[-1])
        case RowOperator.ON_DIAGONAL:
            return torch.diag_embed(first)
        case RowOperator.DIAGONAL:
            return first.diagonal(0, -2, -1)
        case RowOperator.TRANSPOSE:
            return first.mT
        case RowOperator.MATMUL:
            return first @ operands[1]
        case operator if operator in WITHIN_ROWS:
            return row_of_heads(node, first, columns, places)
        case RowOperator.ROW_SUMS:
            return first.sum(-1)
        case RowOperator.COLUMN_SUMS:
            return first.sum(-2)
        case RowOperator.ROW_MAXIMA:
            return first.amax(-1)
        case RowOperator.COLUMN_MAXIMA:
            return first.amax(-2)
        case _:
            raise InternalError(f"{node.operator.value} of a matrix")


def start(state: State, number: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """What a state starts at: the number, or one that stands on the diagonal of each block alone, [width]."""
    if not state.diagonal or state.grid is None:
        return number
    heads = sizes["num_heads"]
    return torch.diag_embed(number.expand(heads, evaluate(state.grid.rows, sizes) // heads)).flatten()
