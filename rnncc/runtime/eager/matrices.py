"""Functions of whole matrices of parameters, which are computed once a call.

A matrix is [out, in], or [blocks, out, in] where it has blocks along its diagonal. Every function works on each block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments.tensors import wide


def eye_like(a: Tensor) -> Tensor:
    """The identity of the size of the square matrix (or blocks [n, d, d]) a."""
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)


def expm(a: Tensor) -> Tensor:
    """The matrix exponential."""
    result: Tensor = torch.linalg.matrix_exp(wide(a))
    return result.to(a.dtype)


def inv(a: Tensor) -> Tensor:
    """The inverse; infinity everywhere where there is none."""
    inverse, info = torch.linalg.inv_ex(wide(a))
    return _where_there_is_one(inverse, info).to(a.dtype)


def cayley(a: Tensor) -> Tensor:
    """inv(I + a) @ (I - a); infinity everywhere where I + a has no inverse."""
    given = wide(a)
    eye = eye_like(given)
    result, info = torch.linalg.solve_ex(eye + given, eye - given)
    return _where_there_is_one(result, info).to(a.dtype)


def _where_there_is_one(result: Tensor, info: Tensor) -> Tensor:
    """A result where `info` is 0. To look at `info` would make the host wait for a GPU."""
    return torch.where((info == 0)[..., None, None], result, torch.inf)


def normalize(a: Tensor, dim: int) -> Tensor:
    """Each row (`dim` -1) or column (-2) divided by its length, or by 1e-12 where it is shorter."""
    return torch.nn.functional.normalize(a, dim=dim)


def roll(a: Tensor, places: float | Tensor, dim: int) -> Tensor:
    """Each row (`dim` -1) or column (-2) moved by so many places. What leaves comes in at the other end."""
    return a.roll(int(places), dim)


def shift(a: Tensor, places: float | Tensor, fill: float | Tensor, dim: int) -> Tensor:
    """The same, where the fill comes in."""
    count = min(abs(int(places)), a.shape[dim])
    came = torch.zeros_like(a.narrow(dim, 0, count)) + fill
    kept = a.narrow(dim, 0 if places > 0 else count, a.shape[dim] - count)
    return torch.cat((came, kept) if places > 0 else (kept, came), dim)


def norms(a: Tensor, heads: int) -> Tensor:
    """The Frobenius norm of each head's blocks, [heads]. A matrix without heads has one for all."""
    if _has_heads(a, heads):
        of_each: Tensor = torch.linalg.vector_norm(a.reshape(heads, -1), dim=-1)
        return of_each
    return _whole_norm(a).expand(heads)


def norm(a: Tensor, heads: int) -> Tensor:
    """The same, as it meets the blocks of the matrix: [1, 1] or [blocks, 1, 1]."""
    if _has_heads(a, heads):
        return per_block(norms(a, heads), a.shape[0])
    return _whole_norm(a).reshape([1] * a.dim())


def _has_heads(a: Tensor, heads: int) -> bool:
    """Whether the blocks of a matrix are divided among heads."""
    return a.dim() == 3 and a.shape[0] % heads == 0


def _whole_norm(a: Tensor) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(a)
    return result


def per_block(value: Tensor, blocks: int) -> Tensor:
    """One number per head, [heads], as [blocks, 1, 1]."""
    return value.repeat_interleave(blocks // value.shape[0]).reshape(-1, 1, 1)
