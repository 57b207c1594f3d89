"""Which dtype a layer works in."""

from __future__ import annotations

import torch

import rnncc


def test_a_cell_without_parameters_takes_its_inputs_dtype() -> None:
    layer = rnncc.compile("cell Decay\nstate h\nh[t] = 0.5*h[t-1] + x\n").Decay(2, 2)
    x = torch.ones(3, 1, 2, dtype=torch.float64)
    output, _ = layer(x)
    assert output.dtype == torch.float64
    assert output[:, 0, 0].tolist() == [1.0, 1.5, 1.75]
