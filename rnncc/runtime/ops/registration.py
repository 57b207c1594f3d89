"""What the ops of a package share when torch gets to know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def check_fake_call(first: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """What a fake kernel asks of a call. One tensor on the meta device sends a call to the fake kernel, whose result on
    the CPU would hold anything: raises RuntimeError as torch.nn.LSTM does. torch.onnx.export calls it where it got a
    program that contains the op: raises NotImplementedError."""
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            "torch.onnx.export got a program that contains an op of rnncc's, which ONNX does not know: give it the "
            "model, not what torch.export made of it, and with dynamo=True [RNN722]"
        )
    for tensor in tensors:
        if tensor is not None and tensor.device != first.device:
            raise RuntimeError(
                "Input, hidden and parameter tensors are not at the same device, found tensors at "
                f"{first.device} and {tensor.device}"
            )


def implement(library: torch.library.Library, name: str, kernel: Any, *keys: str) -> None:
    """Give an op a kernel for each dispatch key."""
    for key in keys:
        library.impl(name, kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]


def mark_compliant(*ops: Any) -> None:
    """Tell torch that compilers may take these ops, which pass `opcheck`. A library that registers ops from C++ cannot
    say so: torch's stable interface has no tags."""
    for op in ops:
        op.tags.append(torch.Tag.pt2_compliant_tag)


def spread(made: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    """The tensors that were made at the places that need one, and None at the others."""
    fresh = iter(made)
    return [next(fresh) if need else None for need in needs]
