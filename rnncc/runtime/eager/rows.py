"""What the generated torch code does across the units of a row, and with block-diagonal matrices.

A value of width k*base under N heads is laid out [k, N, base/N], flattened in the last dimension (rnncc.ir.cell).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments.tensors import under_autocast
from .elementwise import epsilon as machine_epsilon


def number(value: Tensor | float) -> Tensor:
    """A number as a tensor without dimensions: exact, and of no weight where dtypes meet."""
    if isinstance(value, Tensor):
        return value
    # Not torch.tensor: where a loop is exported as a Scan, its body cannot hold a constant tensor.
    return torch.full((), value, dtype=torch.float64, device="cpu")


def widen(value: Tensor | float, width: int, like: Tensor) -> Tensor:
    """[..., 1], or a number (which gets the dtype and device of `like`), as [..., width]."""
    tensor = number(value)
    if tensor.dim() == 0:
        tensor = tensor.to(like).reshape(1)
    return tensor.expand(*tensor.shape[:-1], width)


def per_head(value: Tensor, heads: int, k: int, width: int) -> Tensor:
    """One number per head, [..., heads], as [..., width]."""
    if heads == 1:
        return value  # [..., 1] broadcasts by itself
    spread = value[..., None, :, None].expand(*value.shape[:-1], k, heads, width // (k * heads))
    return spread.reshape(*value.shape[:-1], width)


def split_heads(value: Tensor, heads: int, k: int) -> Tensor:
    """[..., k*N*D] as [..., N, k*D]."""
    if heads == 1:
        return value.unsqueeze(-2)
    return value.reshape(*value.shape[:-1], k, heads, value.shape[-1] // (k * heads)).movedim(-3, -2).flatten(-2)


def join_heads(value: Tensor, heads: int, k: int) -> Tensor:
    """The reverse of `split_heads`."""
    if heads == 1:
        return value.squeeze(-2)
    return value.reshape(*value.shape[:-1], k, value.shape[-1] // k).movedim(-2, -3).flatten(-3)


def row_sum(value: Tensor, heads: int, k: int) -> Tensor:
    """The sum over each head's units: [..., k*N*D] to [..., N]."""
    return split_heads(value, heads, k).sum(-1)


def row_mean(value: Tensor, heads: int, k: int) -> Tensor:
    """The mean over each head's units."""
    return split_heads(value, heads, k).mean(-1)


def row_max(value: Tensor, heads: int, k: int) -> Tensor:
    """The maximum over each head's units. The largest share its gradient."""
    return split_heads(value, heads, k).amax(-1)


def row_variance(value: Tensor, heads: int, k: int) -> Tensor:
    """The mean of the squared deviations of each head's units from their mean."""
    return split_heads(value, heads, k).var(-1, correction=0)


def row_squares(value: Tensor, heads: int, k: int) -> Tensor:
    """The sum of these squares."""
    return row_variance(value, heads, k) * (value.shape[-1] // heads)


def row_cumsum(value: Tensor, heads: int, k: int) -> Tensor:
    """The running sum over each head's units."""
    return join_heads(split_heads(value, heads, k).cumsum(-1), heads, k)


def row_repeat(value: Tensor, times: int, heads: int, k: int, result_k: int) -> Tensor:
    """Each unit `times` times in a row, head by head: [..., k*N*D] to [..., result_k*N*E], result_k*E = times*k*D."""
    return join_heads(split_heads(value, heads, k).repeat_interleave(times, -1), heads, result_k)


def row_roll(value: Tensor, places: int, heads: int, k: int) -> Tensor:
    """Each head's units moved by so many places. What leaves comes in at the other end."""
    return join_heads(split_heads(value, heads, k).roll(places, -1), heads, k)


def row_shift(value: Tensor, places: int, heads: int, k: int) -> Tensor:
    """The same, but zeros come in."""
    rows = split_heads(value, heads, k)
    right, left = min(max(places, 0), rows.shape[-1]), min(max(-places, 0), rows.shape[-1])
    kept = rows[..., left : rows.shape[-1] - right]
    return join_heads(torch.nn.functional.pad(kept, (right, left)), heads, k)


def row_arange(like: Tensor, heads: int, k: int) -> Tensor:
    """0, 1, … in each head of a value as wide as `like`, [width]."""
    units = like.shape[-1] // heads
    return join_heads(torch.arange(units, device=like.device).to(like.dtype).expand(heads, units), heads, k)


def head_numbers(like: Tensor) -> Tensor:
    """The number of each head, for a value `like` it, [N]."""
    return torch.arange(like.shape[-1], device=like.device).to(like.dtype)


def per_heads(value: Tensor, heads: int, width: int, k: int) -> Tensor:
    """[..., groups*D] as [..., k*N*(D/k)] of this width: each head is a copy of a group, neighbours of the same one."""
    units = width // heads
    groups = value.reshape(*value.shape[:-1], value.shape[-1] // units, units)
    copies = groups.repeat_interleave(heads // groups.shape[-2], -2) if groups.shape[-2] > 1 else groups
    return join_heads(copies.expand(*copies.shape[:-2], heads, units), heads, k)


def layer_norm(value: Tensor, heads: int, k: int, epsilon: float, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """weight * (value - mean) / sqrt(variance + epsilon) + bias, mean and biased variance over each head's units."""
    if value.is_cpu and value.itemsize == 2:
        # torch's GPU sums the gradients of weight and bias in float32, its CPU in the dtype that they have.
        scale, shift = (None if vector is None else vector.float() for vector in (weight, bias))
        return layer_norm(value.float(), heads, k, epsilon, scale, shift).to(value.dtype)
    if heads == 1:
        return torch.nn.functional.layer_norm(value, value.shape[-1:], weight, bias, epsilon)
    split = split_heads(value, heads, k)
    result = join_heads(torch.nn.functional.layer_norm(split, split.shape[-1:], eps=epsilon), heads, k)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


def rms_norm(value: Tensor, heads: int, k: int) -> Tensor:
    """value / sqrt(mean of its squares over each head's units + the dtype's epsilon)."""
    split = split_heads(value, heads, k)
    return join_heads(split * torch.rsqrt((split * split).mean(-1, keepdim=True) + machine_epsilon(value)), heads, k)


def softmax(value: Tensor, heads: int, k: int) -> Tensor:
    """softmax over each head's units."""
    return join_heads(split_heads(value, heads, k).softmax(-1), heads, k)


def concat(values: Sequence[Tensor]) -> Tensor:
    """Along the last dimension; the others broadcast."""
    batch = torch.broadcast_shapes(*(value.shape[:-1] for value in values))  # type: ignore[no-untyped-call]
    return torch.cat([value.expand(*batch, value.shape[-1]) for value in values], -1)


def beside(values: Sequence[Tensor]) -> Tensor:
    """Values of the same leading dimensions side by side; one alone as it is."""
    return values[0] if len(values) == 1 else torch.cat(list(values), -1)


def linear_onto(onto: Tensor, operand: Tensor, matrix: Tensor, sign: int = 1) -> Tensor:
    """Adds operand matrixᵀ over the last dimension to `onto`, or subtracts it. That is done in the pass that writes the
    product, where all have one dtype and `onto` has the product's shape. Autocast would round `onto`."""
    alike = onto.dtype == operand.dtype == matrix.dtype and onto.shape == (*operand.shape[:-1], matrix.shape[0])
    if not alike or under_autocast(operand):
        product = torch.nn.functional.linear(operand, matrix)
        return onto + product if sign > 0 else onto - product
    rows = torch.addmm(onto.flatten(0, -2), operand.flatten(0, -2), matrix.t(), alpha=sign)
    return rows.reshape(onto.shape)


def contract(
    matrix: Tensor, operand: Tensor, blocks: int, row_k: int, column_k: int, transposed: bool = False
) -> Tensor:
    """Block-diagonal `matrix @ operand` (or its transpose): matrix [row_k*N*D, columns/N], operand [..., columns]."""
    if blocks == 1:
        return operand @ matrix if transposed else torch.nn.functional.linear(operand, matrix)
    blocked = to_blocks(matrix, blocks, row_k)
    if transposed:
        product = torch.einsum("...no,noi->...ni", split_heads(operand, blocks, row_k), blocked)
        return join_heads(product, blocks, column_k)
    product = torch.einsum("...ni,noi->...no", split_heads(operand, blocks, column_k), blocked)
    return join_heads(product, blocks, row_k)


def contract_onto(onto: Tensor, matrix: Tensor, operand: Tensor, blocks: int, row_k: int, column_k: int) -> Tensor:
    """Adds block-diagonal `matrix @ operand` to `onto`, as `contract` takes them. With several blocks that is a pass of
    its own."""
    if blocks == 1:
        return linear_onto(onto, operand, matrix)
    return onto + contract(matrix, operand, blocks, row_k, column_k)


def contract_off(onto: Tensor, matrix: Tensor, operand: Tensor, blocks: int, row_k: int, column_k: int) -> Tensor:
    """The same with the product subtracted."""
    if blocks == 1:
        return linear_onto(onto, operand, matrix, -1)
    return onto - contract(matrix, operand, blocks, row_k, column_k)


def to_blocks(matrix: Tensor, blocks: int, k: int) -> Tensor:
    """A stored matrix [k*N*D, columns] as [N, k*D, columns]."""
    return matrix.reshape(k, blocks, -1, matrix.shape[-1]).transpose(0, 1).flatten(1, 2)


def from_blocks(matrix: Tensor, blocks: int, k: int) -> Tensor:
    """The reverse of `to_blocks`."""
    return matrix.reshape(blocks, k, -1, matrix.shape[-1]).transpose(0, 1).flatten(0, 2)
