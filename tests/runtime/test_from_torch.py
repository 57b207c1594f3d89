"""What comes from torch.nn is taken by the cells that compute the same, and by no others; torch.nn is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import rnncc
from tests.runtime.test_layers import DOUBLE, IN, H, close, layer_class, sample, tuple_of

FROM_TORCH: list[tuple[str, Any, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ("tanh", nn.RNN, {}, ("nn_RNN", "Elman"), ("nn_RNN_relu", "IRNN", "ATR", "LIF", "MiRU2", "SGRN")),
    ("relu", nn.RNN, {"nonlinearity": "relu"}, ("nn_RNN_relu", "IRNN"), ("nn_RNN", "Elman", "ATR", "MiRU2")),
    ("gru", nn.GRU, {}, ("nn_GRU", "GRU"), ("GRUv3", "CIFG", "LSTM")),
    ("lstm", nn.LSTM, {}, ("nn_LSTM", "LSTM"), ("GRU", "PeepholeLSTM")),
    ("projected", nn.LSTM, {"proj_size": 3}, ("nn_LSTMP", "LSTMP"), ()),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("twin", "options", "equal", "others"), [row[1:] for row in FROM_TORCH], ids=[row[0] for row in FROM_TORCH]
)
def test_from_torch_takes_the_cell_that_the_module_is(
    twin: Any, options: dict[str, Any], equal: tuple[str, ...], others: tuple[str, ...], bias: bool
) -> None:
    theirs = twin(IN, H, 2, bias=bias, bidirectional=True, **options, **DOUBLE)
    x, states = sample(theirs)
    expected, expected_last = theirs(x, states[0] if len(states) == 1 else tuple(states))
    for name in equal:
        ours = layer_class(name.lower(), name).from_torch(theirs, backend="reference")
        got, last = ours(x, states[0] if len(states) == 1 else tuple(states))
        close(got, expected)
        for a, b in zip(tuple_of(last), tuple_of(expected_last), strict=True):
            close(a, b)
    for name in others:
        with pytest.raises(ValueError, match=f"^{name} computes something else than nn.{twin.__name__}.*{equal[0]}"):
            layer_class(name.lower(), name).from_torch(theirs)


def test_from_torch_with_options_of_the_layer() -> None:
    theirs = nn.LSTM(IN, H, **DOUBLE)
    x, states = sample(theirs)
    ours = layer_class("lstm", "LSTM").from_torch(theirs, zoneout={"h": 0.5}, recurrent_dropout=0.5).eval()
    close(ours(x[:1], tuple(states))[0], (states[0] + theirs(x[:1], tuple(states))[0]) / 2)

    class Derived(layer_class("lstm", "LSTM")):  # type: ignore[misc]
        def forward(self, *given: Any, **options: Any) -> Any:
            return super().forward(*given, **options)[0]

    close(Derived.from_torch(theirs)(x, tuple(states)), theirs(x, tuple(states))[0])


def test_a_state_dict_that_is_surely_nn_s_goes_to_nn_s_cells() -> None:
    # Two biases a gate, for a cell that has one: nn's, whose reset gate acts elsewhere than GRUv3's.
    for file, name, theirs in (
        ("gruv3", "GRUv3", nn.GRU(IN, H)),
        ("atr", "ATR", nn.RNN(IN, H)),
        ("sgrn", "SGRN", nn.RNN(IN, H, nonlinearity="relu")),
    ):
        with pytest.raises(RuntimeError, match=f"{name} computes something else than nn"):
            layer_class(file, name)(IN, H).load_state_dict(theirs.state_dict())
    # nn.RNN's dictionary does not tell its nonlinearity.
    layer_class("elman", "Elman")(IN, H).load_state_dict(nn.RNN(IN, H, nonlinearity="relu").state_dict())


def test_a_cell_of_more_inputs_is_refused_as_others_are() -> None:
    """It has nn.LSTM's parameters, and could be loaded."""
    text = (
        "cell Timed\ninput x, dt: 1\nstate h, c\ni, f, g, o = W@x + R@h[t-1] + b\n"
        "c[t] = exp(-dt)*sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)\nh[t] = sigmoid(o)*tanh(c[t])"
    )
    timed, theirs = rnncc.compile(text).Timed, nn.LSTM(IN, H)
    with pytest.raises(ValueError, match="Timed computes something else"):
        timed.from_torch(theirs)
    with pytest.raises(RuntimeError, match="Timed computes something else"):
        timed(IN, H).load_state_dict(theirs.state_dict())
