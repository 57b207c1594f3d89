"""The parameters and buffers of one layer and direction: shapes, initial values, and views of one gate's share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..arguments.tensors import distributed
from ..spec import CellSpec, MemberSpec, ParameterSpec, Sizes
from .formulas import evaluate

# torch.nn's order, so that the same seed gives the same values where a cell has the same parameters.
_FIRST = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def ordered(cell: CellSpec, *, bias: bool) -> list[ParameterSpec]:
    """The parameters and buffers that a module has, in the order of its attributes."""
    kept = [parameter for parameter in cell.parameters if bias or not parameter.is_bias]
    rank = {name: i for i, name in enumerate(_FIRST)}
    return sorted(kept, key=lambda parameter: rank.get(parameter.attribute, len(_FIRST)))


def shape_of(parameter: ParameterSpec, sizes: Sizes) -> tuple[int, ...]:
    """[Σwidth], [Σwidth, columns / blocks], or the blocks of where a matrix starts."""
    if parameter.matrix is not None:
        heads = sizes["num_heads"]
        return (heads, *(side(sizes) // heads for side in parameter.matrix))
    rows = sum(member.width(sizes) for member in parameter.members)
    if parameter.columns is None:
        return (rows,)
    return rows, parameter.columns(sizes) // blocks_of(parameter, sizes)


def blocks_of(parameter: ParameterSpec, sizes: Sizes) -> int:
    """How many blocks a matrix has."""
    return parameter.blocks(sizes) if parameter.blocks is not None else 1


def members_of(parameter: ParameterSpec, tensor: Tensor, sizes: Sizes) -> Iterator[tuple[MemberSpec, Tensor]]:
    """Each member with its rows of the packed tensor."""
    start = 0
    for member in parameter.members:
        width = member.width(sizes)
        yield member, tensor[start : start + width]
        start += width


def gate_view(parameter: ParameterSpec, member: MemberSpec, rows: Tensor, sizes: Sizes) -> Tensor:
    """A member's rows as the language sees them, always a view: [out, in], [N, out, in] or [width]. A gate that is k
    sections wide, each of N heads, is [k, N, out/(k*N), in]: in that order its rows lie, as those of any group do."""
    if parameter.blocks is None:
        return rows
    sections = rows.view(member.k, blocks_of(parameter, sizes), -1, rows.shape[1])
    return sections if member.k > 1 else sections[0]


def held_by(module: nn.Module, name: str) -> Tensor:
    """A parameter or buffer that the module holds as a whole, so that its rows are views. Raises RuntimeError where it
    holds none."""
    tensor: Any = module._parameters.get(name)
    tensor = module._buffers.get(name) if tensor is None else tensor
    if tensor is None:
        raise RuntimeError(
            f"{name} is computed from other tensors (torch.nn.utils.parametrize, prune), so there are no views of its "
            f"gates: read layer.{name}, and change what it is computed from"
        )
    tensors = distributed(tensor)
    if tensors is not None and not all(isinstance(each, tensors.Replicate) for each in tensor.placements):
        raise RuntimeError(
            f"{name} is divided among processes, so there are no views of its gates: call gate_parameters() before "
            f"fully_shard, or read layer.{name}.full_tensor()"
        )
    return tensor  # type: ignore[no-any-return]


@torch.no_grad()
def rewrite(module: nn.Module, name: str, tensor: Tensor, change: Callable[[Tensor], None]) -> None:
    """Let `change` write into a parameter or buffer of a module. One that is divided among processes gets its part of
    what the first process writes. One that torch.nn.utils.parametrize computes is assigned to."""
    tensors = distributed(tensor)
    if tensors is not None and not tensor.is_meta:
        placed: Any = tensor
        whole = placed.full_tensor()
        change(whole)
        everywhere = [tensors.Replicate()] * placed.device_mesh.ndim
        tensor.copy_(tensors.distribute_tensor(whole, placed.device_mesh, everywhere))
    elif parametrize.is_parametrized(module, name):
        fresh = tensor.detach().clone()
        change(fresh)
        setattr(module, name, fresh)
    else:
        change(tensor)


@torch.no_grad()
def initialise(parameter: ParameterSpec, sizes: Sizes, tensor: Tensor) -> None:
    """Give a parameter its initial values: U(±1/√H), or what `init` and `param` say, per gate and head."""
    bound = 1.0 / math.sqrt(sizes["H"])
    if all(member.initialiser == "default" for member in parameter.members):
        nn.init.uniform_(tensor, -bound, bound)
        return
    for member, rows in members_of(parameter, tensor, sizes):
        if member.formula:
            blocks = [rows] if parameter.columns is None else list(_blocks(parameter, member, rows, sizes))
            for number, block in enumerate(blocks):
                value = evaluate(member.formula, sizes, number, len(blocks))
                block.copy_(value.to(block).reshape(block.shape) if value.dim() else value)
            continue
        if parameter.columns is None:
            _fill(member, rows, bound)
            continue
        for block in _blocks(parameter, member, rows, sizes):
            fresh = torch.empty_like(block).flatten(0, 1)
            _fill(member, fresh, bound)
            block.copy_(fresh.view_as(block))


def _blocks(parameter: ParameterSpec, member: MemberSpec, rows: Tensor, sizes: Sizes) -> Iterator[Tensor]:
    """Each block of a member's rows, a view [k, rows/(k*blocks), columns]."""
    blocks = blocks_of(parameter, sizes)
    k = member.k if blocks > 1 else 1
    yield from rows.view(k, blocks, rows.shape[0] // (k * blocks), rows.shape[1]).unbind(1)


@torch.no_grad()
def rescale(parameter: ParameterSpec, sizes: Sizes, tensor: Tensor) -> None:
    """Give what starts with `spectral` its spectral radius, the largest modulus of an eigenvalue, of each gate and
    head. A matrix whose eigenvalues are all 0 stays as it is. Masks have been applied."""
    for member, rows in members_of(parameter, tensor, sizes):
        if member.initialiser != "spectral" or rows.is_meta:
            continue
        for block in _blocks(parameter, member, rows, sizes):
            # torch computes eigenvalues in float32 or wider; on a GPU, only in builds with another library.
            square = block.flatten(0, 1).cpu().double()
            radius = torch.linalg.eigvals(square).abs().max()
            factor = torch.where(radius > 0, member.values[0] / radius, 1)
            block.copy_((square * factor).view_as(block))


def _fill(member: MemberSpec, tensor: Tensor, bound: float) -> None:
    values = member.values
    match member.initialiser:
        case "default":
            nn.init.uniform_(tensor, -bound, bound)
        case "constant":
            nn.init.constant_(tensor, values[0])
        case "uniform":
            nn.init.uniform_(tensor, values[0], values[1])
        case "normal":
            nn.init.normal_(tensor, values[0], values[1])
        case "spectral":
            nn.init.normal_(tensor)  # `rescale` follows
        case "xavier":
            nn.init.xavier_uniform_(tensor)
        case "xavier_normal":
            nn.init.xavier_normal_(tensor)
        case "kaiming":
            nn.init.kaiming_uniform_(tensor)
        case "orthogonal":
            # torch computes it in float32 or wider only.
            wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
            tensor.copy_(nn.init.orthogonal_(wide))
        case "left_factor" | "right_factor":
            # Elements of a product of two such factors have the variance of U(-bound, bound).
            rank = tensor.shape[1 if member.initialiser == "left_factor" else 0]
            each = (3 / rank) ** 0.25 * math.sqrt(bound)
            nn.init.uniform_(tensor, -each, each)
        case "eye":
            nn.init.eye_(tensor)
        case other:
            raise RuntimeError(f"unknown initialiser {other!r} of {member.name}")
