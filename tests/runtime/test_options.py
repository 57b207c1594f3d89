"""Options that are set after a layer was made: they are checked as the constructor checks them, and take effect."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import rnncc
import rnncc.compat.nn

T, B, IN, H = 5, 3, 4, 6
OPTIONS: dict[str, Any] = {
    "recompute": "yes", "state_dtype": torch.int32, "backend": "gpu", "dropout": 2, "batch_first": 1,
    "return_delays": None, "recurrent_gradient_clip": -1, "weight_dropout": "0.1", "return_sequences_of": ("q",),
    "return_all_layers": "all", "zoneout": {"h": 0.1}, "recurrent_dropout": 0.5,
}  # fmt: skip


def make(**options: Any) -> Any:
    torch.manual_seed(0)
    return rnncc.load("lstm").LSTM(IN, H, 2, **options)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_checked_when_it_is_set(name: str) -> None:
    """As by the constructor: the error names the option, and the layer stays as it was."""
    layer = make()
    before = repr(layer)
    with pytest.raises((TypeError, ValueError), match=name.replace("recurrent_dropout", "recurrent.dropout")):
        setattr(layer, name, OPTIONS[name])
    assert repr(layer) == before


def test_a_single_steps_options_are_checked() -> None:
    step = rnncc.load("lstm").LSTMCell(IN, H)
    for name, value in (("state_dtype", torch.int32), ("backend", "gpu"), ("recurrent_gradient_clip", "1")):
        with pytest.raises((TypeError, ValueError), match=name):
            setattr(step, name, value)


def test_a_weight_dropout_without_matrices_is_an_error() -> None:
    layer = rnncc.load("mingru").minGRU(IN, H)
    with pytest.raises(ValueError, match="weight_dropout: the steps of minGRU multiply by no matrix"):
        rnncc.load("mingru").minGRU(IN, H, weight_dropout=0.1)
    with pytest.raises(ValueError, match="weight_dropout: the steps of minGRU multiply by no matrix"):
        layer.weight_dropout = 0.1


FIXED: dict[str, Any] = {
    "input_size": 5, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "bias": False, "bidirectional": True,
    "reverse": True, "proj_size": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_what_the_parameters_were_made_for_cannot_change(name: str) -> None:
    layer = make()
    with pytest.raises(AttributeError, match=f"{name} of LSTM is .* since it was made, and cannot be"):
        setattr(layer, name, FIXED[name])
    setattr(layer, name, getattr(layer, name))
    assert layer(torch.randn(T, B, IN))[0].shape == (T, B, H)


def test_a_copy_and_a_pickle_keep_it_so() -> None:
    file = io.BytesIO()
    torch.save(make(), file)
    file.seek(0)
    instance = rnncc.compat.nn.replace(nn.LSTM(IN, H), as_nn=True)
    for layer in (copy.deepcopy(make()), torch.load(file, weights_only=False), instance, copy.deepcopy(instance)):
        with pytest.raises(AttributeError, match="num_layers of"):
            layer.num_layers = 5
        with pytest.raises(TypeError, match="recompute should be of type bool"):
            layer.recompute = "yes"


def test_options_that_are_set_take_effect() -> None:
    x = torch.randn(T, B, IN)
    late = rnncc.compile("cell Late\nstate h\nh[t] = tanh(W@x + R@h[t-2] + b)").Late(IN, H)
    late.return_delays = True
    assert len(late(x)[1]) == 2
    layer = make()
    layer.batch_first = True
    layer.return_sequences_of = ["c"]
    layer.return_all_layers = True
    output, _, sequences = layer(x.transpose(0, 1))
    assert output.shape == (B, T, H) and [each.shape for each in sequences["c"]] == [(B, T, H)] * 2
    layer.backend = "reference"
    assert "backend='reference' was asked for" in layer.explain()
    half = make(dtype=torch.bfloat16)
    half.state_dtype = torch.float32
    assert half(x.bfloat16())[1][0].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nlayers": 2}, "LSTM got an unexpected keyword argument 'nlayers'; did you mean 'num_layers'?"),
        ({"hidden": 2}, "LSTM got an unexpected keyword argument 'hidden'; "),
        ({"qqq": 2}, "'qqq'; it takes input_size, hidden_size, num_layers, bias, .*recurrent_dropout, reverse$"),
    ],
)
def test_an_unknown_keyword_is_answered_by_the_known_ones(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message.replace("?", r"\?")):
        make(**options)


def test_an_unknown_keyword_of_a_cell_with_constants_and_of_its_op() -> None:
    cells = rnncc.load("lif")
    with pytest.raises(TypeError, match=r"LIF got an unexpected keyword argument 'betta'; did you mean 'beta'\?"):
        cells.LIF(IN, H, betta=0.5)
    with pytest.raises(TypeError, match=r"'q'; it takes input_size, .*zoneout, beta, theta"):
        cells.LIFCell(IN, H, q=0.5)

    class Own(cells.LIF):  # type: ignore[name-defined, misc]
        def __init__(self, **keywords: Any) -> None:
            super().__init__(IN, H, **keywords)

    with pytest.raises(TypeError, match="'q'; it takes input_size, hidden_size"):
        Own(q=1)
    with pytest.raises(
        TypeError, match=r"LIF's functional op got an unexpected keyword argument 'hiden_size'; did you mean"
    ):
        cells.lif(torch.zeros(2, 1, 2), torch.zeros(2, 2), hiden_size=2)


@pytest.mark.parametrize("sizes", [[8, 16], (8, 16), []])
def test_a_list_of_sizes_is_answered_by_how_to_stack_layers(sizes: Any) -> None:
    with pytest.raises(TypeError, match=r"hidden_size should be of type int, got: (list|tuple)\. All layers .* stack"):
        rnncc.load("lstm").LSTM(IN, sizes)
