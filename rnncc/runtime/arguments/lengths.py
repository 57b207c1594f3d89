"""Sequences of a padded batch that end early (`lengths` [B]) or start anew (`reset` [T, B])."""

from __future__ import annotations

import torch
from torch import Tensor


def active_steps(steps: int, lengths: Tensor) -> Tensor:
    """[T, B]: True where the step lies within the entry's length."""
    return torch.arange(steps, device=lengths.device).unsqueeze(1) < lengths


def cut_backwards(reset: Tensor, lengths: Tensor | None) -> Tensor:
    """`reset` [T, B] for a loop that runs backwards: the result says before which steps, in that loop's order, a batch
    entry starts anew. A reset at step t cuts between t - 1 and t in either direction, so here it starts step t - 1
    anew."""
    cut = torch.cat((reset[1:], torch.zeros_like(reset[:1])))
    return cut if lengths is None else cut & active_steps(reset.shape[0], lengths - 1)


def padded(value: Tensor, lengths: Tensor) -> Tensor:
    """`value` [T, B, width] with each batch entry's last value past its length; ones where the length is 0.

    The caller's padding may be any value, and a function of it may be infinite or NaN (log(0)). Its gradient would then
    be NaN even where the cotangent is 0."""
    if not value.shape[0]:
        return value
    last = (lengths - 1).clamp(min=0).reshape(1, -1, 1).expand(1, *value.shape[1:])
    repeated = torch.where((lengths > 0).unsqueeze(-1), value.detach().gather(0, last), 1)
    return torch.where(active_steps(value.shape[0], lengths).unsqueeze(-1), value, repeated)
