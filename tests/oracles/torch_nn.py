"""torch.nn.LSTM, GRU and RNN as oracles, called with our parameters in the place of theirs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .base import Forward, Oracle, Sequences, Tensors


def _layer(
    make: Callable[..., nn.RNNBase],
    gates: tuple[str, ...],
    *,
    two_biases: bool = False,
    recurrent_bias: tuple[str, ...] = (),
    projection: bool = False,
    states: tuple[str, ...] = ("h",),
) -> Forward:
    """`gates` in nn's order. Where the cell has one bias, nn's second one is zero but for the gates in
    `recurrent_bias`."""

    def forward(parameters: Tensors, inputs: Tensors, initial: Tensors) -> Sequences:
        x = inputs["x"]

        def packed(group: str, only: tuple[str, ...] = gates) -> Tensor:
            zero = torch.zeros_like(parameters[f"b_{gates[0]}"])
            return torch.cat([parameters[f"{group}_{gate}"] if gate in only else zero for gate in gates])

        weights = {
            "weight_ih_l0": packed("W"),
            "weight_hh_l0": packed("R"),
            "bias_ih_l0": packed("b"),
            "bias_hh_l0": packed("bR", gates if two_biases else recurrent_bias),
        }
        if projection:
            weights["weight_hr_l0"] = parameters["weight_hr"]
        hidden = parameters[f"W_{gates[0]}"].shape[0]
        sizes = {"proj_size": weights["weight_hr_l0"].shape[0]} if projection else {}
        layer = make(x.shape[-1], hidden, dtype=x.dtype, **sizes)
        hx = tuple(initial[name][None] for name in states)
        output, last = functional_call(layer, weights, (x, hx if len(hx) > 1 else hx[0]))
        finals = (last,) if isinstance(last, Tensor) else last
        return Sequences(output, {name: value[0] for name, value in zip(states, finals, strict=True)})

    return forward


_LSTM = ("i", "f", "g", "o")
_GRU = ("r", "z", "n")
_HC = {"h": "H", "c": "H"}


def _rnn(nonlinearity: str) -> Callable[..., nn.RNNBase]:
    return lambda *sizes, **options: nn.RNN(*sizes, nonlinearity=nonlinearity, **options)


ORACLES = (
    Oracle("elman", "torch.nn.RNN", _layer(_rnn("tanh"), ("h",)), "W:h R:h b:h", {"h": "H"}),
    Oracle("irnn", "torch.nn.RNN(relu)", _layer(_rnn("relu"), ("h",)), "W:h R:h b:h", {"h": "H"}),
    Oracle(
        "nn_rnn",
        "torch.nn.RNN",
        _layer(_rnn("tanh"), ("h",), two_biases=True),
        "W:h R:h b:h bR:h",
        {"h": "H"},
    ),
    Oracle(
        "nn_rnn_relu",
        "torch.nn.RNN(relu)",
        _layer(_rnn("relu"), ("h",), two_biases=True),
        "W:h R:h b:h bR:h",
        {"h": "H"},
    ),
    Oracle(
        "lstm",
        "torch.nn.LSTM",
        _layer(nn.LSTM, _LSTM, states=("h", "c")),
        "W:i,f,g,o R:i,f,g,o b:i,f,g,o",
        _HC,
    ),
    Oracle(
        "nn_lstm",
        "torch.nn.LSTM",
        _layer(nn.LSTM, _LSTM, two_biases=True, states=("h", "c")),
        "W:i,f,g,o R:i,f,g,o b:i,f,g,o bR:i,f,g,o",
        _HC,
    ),
    Oracle(
        "lstmp",
        "torch.nn.LSTM(proj_size)",
        _layer(nn.LSTM, _LSTM, projection=True, states=("h", "c")),
        "W:i,f,g,o R[H,P]:i,f,g,o b:i,f,g,o weight_hr[P,H]",
        {"h": "P", "c": "H"},
        sizes={"I": 4, "H": 6, "P": 3},
        dims=("P",),
    ),
    Oracle(
        "nn_lstmp",
        "torch.nn.LSTM(proj_size)",
        _layer(nn.LSTM, _LSTM, two_biases=True, projection=True, states=("h", "c")),
        "W:i,f,g,o R[H,P]:i,f,g,o b:i,f,g,o bR:i,f,g,o weight_hr[P,H]",
        {"h": "P", "c": "H"},
        sizes={"I": 4, "H": 6, "P": 3},
        dims=("P",),
    ),
    Oracle(
        "gru",
        "torch.nn.GRU",
        _layer(nn.GRU, _GRU, recurrent_bias=("n",)),
        "W:r,z,n R:r,z,n b:r,z,n bR:n",
        {"h": "H"},
    ),
    Oracle(
        "nn_gru",
        "torch.nn.GRU",
        _layer(nn.GRU, _GRU, two_biases=True),
        "W:r,z,n R:r,z,n b:r,z,n bR:r,z,n",
        {"h": "H"},
    ),
)
