"""What a layer or functional op takes: dtypes, shapes, names of constants."""

from __future__ import annotations

import pytest
import torch

import rnncc


def test_a_cell_without_parameters_takes_its_inputs_dtype() -> None:
    layer = rnncc.compile("cell Decay\nstate h\nh[t] = 0.5*h[t-1] + x\n").Decay(2, 2)
    x = torch.ones(3, 1, 2, dtype=torch.float64)
    output, _ = layer(x)
    assert output.dtype == torch.float64
    assert output[:, 0, 0].tolist() == [1.0, 1.5, 1.75]


def test_the_functional_op_refuses_weights_of_another_shape() -> None:
    function = rnncc.load("lstm").lstm
    streams, states = torch.zeros(2, 1, 8), (torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"weight R must be \(8, 2\), got \(2, 8\)"):
        function(streams, torch.zeros(8, 2).t(), states)


def test_constants_may_bear_any_name() -> None:
    text = "cell Named\nconst name = 1\nstate h\nfor k in 1..name:\n    n[k] = tanh(W@x + R@h[t-1])\nh[t] = n[name]\n"
    layer = rnncc.compile(text, "named", name=2).Named(3, 4)
    assert [name for name in layer.gate_parameters() if name.startswith("W")] == ["W_n_2"]
