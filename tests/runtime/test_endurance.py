"""Many calls and long sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rnncc


def resident_bytes() -> int:
    """The process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cell", ["LSTM", "RHN"])
def test_no_growth_over_a_thousand_calls(cell: str) -> None:
    layer = getattr(rnncc.load(cell.lower()), cell)(24, 24)
    x = torch.randn(20, 8, 24, requires_grad=True)

    def call() -> None:
        output, _ = layer(x, lengths=torch.tensor([20, 3, 5, 1, 20, 20, 20, 7]))
        output.sum().backward()

    for _ in range(100):
        call()
    before = resident_bytes()
    for _ in range(1000):
        call()
    # What a call holds at a time is some 0.5 MB: one lost tensor of a step a call would be 4 MB or more in all.
    assert resident_bytes() - before < 2_000_000


def test_sixty_five_thousand_steps() -> None:
    torch.manual_seed(0)
    ours, theirs = rnncc.load("nn_lstm").nn_LSTM(3, 8), nn.LSTM(3, 8)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(65_536, 1, 3)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    outputs = [layer(value)[0] for layer, value in zip((ours, theirs), inputs, strict=True)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    for output in outputs:
        output.sum().backward()
    gradients = [value.grad for value in inputs]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
