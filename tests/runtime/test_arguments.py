"""What a layer or functional op takes: dtypes, shapes, names of constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    weight = torch.zeros(8, 2)
    with pytest.raises(ValueError, match=r"LSTM: the weight R must be \[8, 2\], got \[2, 8\]"):
        function(streams, weight.t(), states)
    with pytest.raises(ValueError, match=r"the stream i must be \[2, 1, 8\], got \[2, 1, 7\]|the stream W must be"):
        function(streams[..., :7], weight, states)
    with pytest.raises(ValueError, match=r"streams must be \[T, B, width\], got \[2, 8\]"):
        function(streams[:, 0], weight, states)
    with pytest.raises(ValueError, match=r"the state c must be \[1, 2\], got \[2, 2\]"):
        function(streams, weight, (states[0], torch.zeros(2, 2)))
    with pytest.raises(TypeError, match=r"a weight is torch.float64, but the first stream is torch.float32"):
        function(streams, weight.double(), states)
    with pytest.raises(ValueError, match=r"LSTM takes 2 states \(h, c\), got 1"):
        function(streams, weight, states[0])
    with pytest.raises(ValueError, match=r"lengths must lie between 0 and the number of steps, 2"):
        function(streams, weight, states, lengths=[3])
    with pytest.raises(RuntimeError, match=r"reset must have the input's steps and batch \(2, 1\), got \(1, 2\)"):
        function(streams, weight, states, reset=torch.zeros(1, 2))


def test_the_functional_op_says_what_it_cannot_be_given() -> None:
    module = rnncc.load("scrn")
    with pytest.raises(
        NotImplementedError, match=r"SCRN computes the stream .* of its loop 1 \(h\) from s of an earlier loop"
    ):
        module.scrn(torch.zeros(2, 1, 4), [], hidden_size=2)


def test_explain_names_what_the_functional_op_takes() -> None:
    text = rnncc.load("lstm").LSTM(3, 4).explain()
    assert "lstm_0: streams " in text and "weights R (weight_hh)" in text


def test_constants_may_bear_any_name() -> None:
    text = "cell Named\nconst name = 1\nstate h\nfor k in 1..name:\n    n[k] = tanh(W@x + R@h[t-1])\nh[t] = n[name]\n"
    layer = rnncc.compile(text, "named", name=2).Named(3, 4)
    assert [name for name in layer.gate_parameters() if name.startswith("W")] == ["W_n_2"]


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_a_layer_from_one_of_torch_has_its_shape_and_values(name: str) -> None:
    theirs = getattr(torch.nn, name)(3, 4, 2, batch_first=True, bidirectional=True, dtype=torch.float64)
    ours = getattr(rnncc.load(f"nn_{name.lower()}"), f"nn_{name}").from_torch(theirs)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0], rtol=1e-10, atol=1e-10)
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_tensors_of_several_devices_are_refused_and_meta_tensors_give_shapes() -> None:
    module = rnncc.load("lstm")
    x, layer = torch.zeros(3, 2, 4), module.LSTM(4, 5)
    elsewhere: dict[str, Callable[[], Any]] = {
        "states": lambda: layer(x, [torch.zeros(1, 2, 5, device="meta")] * 2),
        "reset": lambda: layer(x, reset=torch.zeros(3, 2, device="meta")),
        "parameters": lambda: module.LSTM(4, 5, device="meta")(x),
        "input": lambda: layer(x.to("meta")),
    }
    for call in elsewhere.values():
        with pytest.raises(RuntimeError, match="not at the same device"):
            call()
    layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.to("meta"))
    with pytest.raises(RuntimeError, match="not at the same device"):
        layer(x)
    output, (h, _) = module.LSTM(4, 5, 2, bidirectional=True, device="meta")(x.to("meta"))
    assert output.shape == (3, 2, 10) and h.shape == (4, 2, 5) and output.is_meta
