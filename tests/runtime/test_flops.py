"""FlopCounterMode counts the ops as it counts the products of torch's own layers and of the eager loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import rnncc

T, B, IN, H = 32, 16, 64, 64


def count(layer: Any, x: Tensor, **given: Any) -> tuple[int, int]:
    """Of the forward and of the backward."""
    found = []
    with FlopCounterMode(display=False) as mode:
        output = layer(x, **given)[0]
    found.append(mode.get_total_flops())
    with FlopCounterMode(display=False) as mode:
        output.sum().backward()
    return found[0], mode.get_total_flops()


@pytest.mark.parametrize("given", ["nothing", "gradients of x and hx"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
def test_as_nn_lstm(options: dict[str, Any], given: str) -> None:
    """In float64, in which torch's LSTM on the CPU is a loop of products."""
    layers = [rnncc.load("lstm").LSTM(IN, H, **options).double(), nn.LSTM(IN, H, **options).double()]
    x = torch.randn(T, B, IN, dtype=torch.float64, requires_grad=given != "nothing")
    hx = {}
    if given != "nothing":
        count_of_states = 4 if options else 1
        hx = {"hx": torch.randn(2, count_of_states, B, H, dtype=torch.float64, requires_grad=True).unbind()}
    ours, theirs = (count(layer, x, **hx) for layer in layers)
    assert ours == theirs
    if not options:
        assert ours[0] == 33554432


@pytest.mark.parametrize(
    ("file", "name", "options", "masked"),
    [("slstm", "sLSTM", {"num_heads": 2}, True), ("mingru", "minGRU", {}, False), ("rhn", "RHN", {}, False)],
)
def test_as_the_eager_loop(file: str, name: str, options: dict[str, Any], masked: bool) -> None:
    """Heads, loops without products, several products in a row; torch counts what the eager loop calls."""
    layer = getattr(rnncc.load(file), name)(8, 8, bidirectional=True, **options)
    x, given = torch.randn(5, 3, 8), {"lengths": torch.tensor([5, 1, 3])} if masked else {}
    ours = count(layer, x, **given)
    layer.backend = "reference"
    assert ours == count(layer, x, **given)


def test_recomputing_counts() -> None:
    layer, x = rnncc.load("lstm").LSTM(8, 8), torch.randn(5, 3, 8)
    (forward, backward), rows = count(layer, x), 5 * 3
    layer.recompute = True
    assert count(layer, x) == (forward, backward + 2 * rows * layer.weight_hh_l0.numel())


def test_what_is_frozen_is_not_counted() -> None:
    layer, x = rnncc.load("lstm").LSTM(8, 8), torch.randn(5, 3, 8)
    layer.weight_ih_l0.requires_grad_(False)
    layer.weight_hh_l0.requires_grad_(False)
    # Of the bias alone: what flows back through the loop, but not out of it.
    assert count(layer, x)[1] == 2 * 4 * 3 * layer.weight_hh_l0.numel()
