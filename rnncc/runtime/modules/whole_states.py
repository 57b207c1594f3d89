"""The states of a call that one op makes (whole.py): as its caller gives them, and as the op takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SEVERAL = (tuple, list)
# The shape of one entry's value of a state that is a matrix, None for others.
MatrixShape = tuple[int, ...] | None


def may_change(state: Tensor) -> bool:
    """Whether an op that tells torch nothing of it may write into a state, here and in all of its views."""
    return state.is_contiguous() and not state.is_inference() and not state.is_neg()


def state_dtypes(x: Tensor, wanted: torch.dtype | None, shapes: Sequence[MatrixShape]) -> list[torch.dtype] | None:
    """The dtypes that states have beside an x of bfloat16, where `wanted` is the layer's `state_dtype`. None beside any
    other x: the op then looks itself."""
    if x.dtype != torch.bfloat16:
        return None
    return [wanted or (x.dtype if shape is None else torch.float32) for shape in shapes]


def flat_states(
    hx: Any, shapes: Sequence[MatrixShape], dtypes: Sequence[torch.dtype] | None, in_place: bool
) -> list[Tensor] | None:
    """The states as the op takes them: each entry's value in a row. None where hx is something else than so many
    tensors of these shapes and dtypes, or where the op may not write into one that it must."""
    states = (hx,) if type(hx) is Tensor else hx
    if type(states) not in _SEVERAL or len(states) != len(shapes):
        return None
    found = []
    for index, (state, shape) in enumerate(zip(states, shapes, strict=True)):
        if type(state) is not Tensor or (in_place and not may_change(state)):
            return None
        if dtypes is not None and state.dtype != dtypes[index]:
            return None
        if shape is not None and state.shape[1:] != shape:
            return None
        found.append(state if shape is None else state.flatten(1))
    return found
