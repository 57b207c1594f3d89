"""A layer of one state where an LSTM's (h, c) is expected."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import rnncc
from rnncc.compat.two_states import TwoStates


def test_h_is_the_layer_s_state_and_c_comes_back() -> None:
    layer = rnncc.load("mingru").minGRU(4, 5, num_layers=2)
    adapted: Any = TwoStates(layer)
    x = torch.randn(6, 3, 4)
    output, (h, c) = adapted(x)
    expected, last = layer(x)
    assert torch.equal(output, expected) and torch.equal(h, last) and c.shape == h.shape and not c.any()
    c = torch.randn_like(h).requires_grad_()
    output, (again, kept) = adapted(x, (h, c), reset=torch.zeros(6, 3))
    expected, last = layer(x, h)
    assert torch.equal(output, expected) and torch.equal(again, last) and kept is c
    assert (adapted.hidden_size, adapted.num_layers, adapted.input_size) == (5, 2, 4)
    other = copy.deepcopy(adapted)
    other.load_state_dict(adapted.state_dict())
    assert next(iter(adapted.state_dict())) == "layer.weight_ih_l0" and torch.equal(other(x)[0], adapted(x)[0])
    with pytest.raises(AttributeError, match="no_such"):
        _ = adapted.no_such


def test_it_is_for_layers_of_one_state() -> None:
    cells = rnncc.load("lstm")
    for layer, why in (
        (cells.LSTM(4, 5), "has the states h, c: TwoStates is for layers of one"),
        (rnncc.load("gru").GRU(4, 5, return_sequences_of=("h",)), "returns sequences of states"),
    ):
        with pytest.raises(ValueError, match=why):
            TwoStates(layer)
    for module in (nn.LSTM(4, 5), rnncc.load("mingru").minGRUCell(4, 5)):
        with pytest.raises(TypeError, match=r"not for (LSTM|minGRUCell)"):
            TwoStates(module)


@pytest.mark.parametrize("wrong", ["h", "h,", "hhh", "h-"])
def test_an_hx_of_another_structure_is_named(wrong: str) -> None:
    h = torch.zeros(1, 3, 5)
    hx = {"h": h, "h,": (h,), "hhh": [h, h, h], "h-": (h, None)}[wrong]
    layer = TwoStates(rnncc.load("mingru").minGRU(4, 5))
    with pytest.raises(TypeError, match=r"TwoStates: hx must be a tuple of 2 tensors, \(h, c\); got a "):
        layer(torch.randn(6, 3, 4), hx)


def test_one_allow_list_loads_it() -> None:
    layer, x, file = TwoStates(rnncc.load("mingru").minGRU(4, 5)), torch.randn(6, 3, 4), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    with torch.serialization.safe_globals(rnncc.safe_globals()):
        assert torch.equal(torch.load(file, weights_only=True)(x)[0], layer(x)[0])
