"""Batches that are padded on the left, or anywhere, as docs/python.md gives them to a layer: by their mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc

T, B, IN, H = 7, 4, 4, 6
EXACT: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}


def run(layer: Any, x: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
    """The output [B, T, width] of x [B, T, IN], and the final states."""
    offsets = nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    rows, last = layer(x[mask], offsets=offsets, max_length=T)
    output = rows.new_zeros(B, T, rows.shape[-1])
    output[mask] = rows
    return output, last


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_mask_says_which_steps_there_are(bidirectional: bool, holes: bool) -> None:
    """Beside torch's layer, which runs each sequence alone, without its padding."""
    torch.manual_seed(0)
    theirs = nn.LSTM(IN, H, 2, bidirectional=bidirectional, dtype=torch.float64)
    ours = rnncc.load("nn_lstm").nn_LSTM(IN, H, 2, bidirectional=bidirectional, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    mask = torch.arange(T) >= T - torch.tensor([7, 2, 5, 1])[:, None]
    if holes:
        mask[0, 3] = mask[2, 4] = False
    x, other = (torch.randn(B, T, IN, generator=torch.Generator().manual_seed(1)).double() for _ in range(2))
    output, (h, c) = run(ours, x.requires_grad_(), mask)
    other.requires_grad_()
    expected, finals = torch.zeros_like(output), []
    for b in range(B):
        alone, last = theirs(other[b][mask[b]])
        expected[b, mask[b]] = alone
        finals.append(last)
    found, wanted = [output, h, c], [expected, *(torch.stack(each, 1) for each in zip(*finals, strict=True))]
    cotangents = [torch.randn_like(value) for value in found]
    for value, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(value, exact, **EXACT)
    torch.autograd.backward(found, cotangents)
    torch.autograd.backward(wanted, cotangents)
    torch.testing.assert_close(x.grad, other.grad, **EXACT)
