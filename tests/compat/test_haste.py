"""Haste's layers: the oracle is its documented formulas as a loop in float64, in its own layout of the parameters,
with masks of the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm

from rnncc.compat import haste

pytestmark = pytest.mark.usefixtures("float64_first")
T, B, IN, H = 6, 3, 4, 5
Step = Callable[[Any, Tensor, Tensor, list[Tensor]], list[Tensor]]


def lstm_gates(v: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, g, f, o = v.chunk(4, -1)
    return f.sigmoid() * c + i.sigmoid() * g.tanh(), o.sigmoid()


def lstm(m: Any, x: Tensor, recurrent: Tensor, states: list[Tensor]) -> list[Tensor]:
    c, o = lstm_gates(x @ m.kernel + states[0] @ recurrent + m.bias, states[1])
    return [o * c.tanh(), c]


def layer_norm_lstm(m: Any, x: Tensor, recurrent: Tensor, states: list[Tensor]) -> list[Tensor]:
    wide = (4 * H,)
    v = layer_norm(x @ m.kernel, wide, m.gamma[0]) + layer_norm(states[0] @ recurrent, wide, m.gamma[1]) + m.bias
    c, o = lstm_gates(v, states[1])
    return [o * layer_norm(c, (H,), m.gamma_h, m.beta_h).tanh(), c]


def gru_update(vx: Tensor, vh: Tensor, h: Tensor) -> list[Tensor]:
    (zx, rx, gx), (zh, rh, gh) = vx.chunk(3, -1), vh.chunk(3, -1)
    z, r = (zx + zh).sigmoid(), (rx + rh).sigmoid()
    return [z * h + (1 - z) * (gx + r * gh).tanh()]


def gru(m: Any, x: Tensor, recurrent: Tensor, states: list[Tensor]) -> list[Tensor]:
    return gru_update(x @ m.kernel + m.bias, states[0] @ recurrent + m.recurrent_bias, states[0])


def layer_norm_gru(m: Any, x: Tensor, recurrent: Tensor, states: list[Tensor]) -> list[Tensor]:
    vx = layer_norm(x @ m.kernel, (3 * H,), m.gamma[0]) + m.bias
    vh = layer_norm(states[0] @ recurrent, (3 * H,), m.gamma[1]) + m.recurrent_bias
    return gru_update(vx, vh, states[0])


def indrnn(m: Any, x: Tensor, recurrent: Tensor, states: list[Tensor]) -> list[Tensor]:
    return [(x @ m.kernel + states[0] * recurrent + m.bias).tanh()]


def layer_norm_indrnn(m: Any, x: Tensor, recurrent: Tensor, states: list[Tensor]) -> list[Tensor]:
    return [(layer_norm(x @ m.kernel, (H,), m.gamma[0]) + m.bias + states[0] * recurrent).tanh()]


LAYERS: dict[str, tuple[type[nn.Module], Step, int]] = {
    "LSTM": (haste.LSTM, lstm, 2),
    "GRU": (haste.GRU, gru, 1),
    "LayerNormLSTM": (haste.LayerNormLSTM, layer_norm_lstm, 2),
    "LayerNormGRU": (haste.LayerNormGRU, layer_norm_gru, 1),
    "IndRNN": (haste.IndRNN, indrnn, 1),
    "LayerNormIndRNN": (haste.LayerNormIndRNN, layer_norm_indrnn, 1),
}


def loop(name: str, layer: Any, x: Tensor, states: list[Tensor]) -> list[Tensor]:
    """All states, [T, B, H] each. Draws as Haste does: the zoneout mask, then DropConnect's."""
    mask = torch.empty(T, B, H, dtype=x.dtype)
    if layer.zoneout:
        mask = mask.bernoulli_(1 - layer.zoneout) if layer.training else mask.fill_(1 - layer.zoneout)
    if isinstance(layer, haste.IndRNN):
        recurrent: Tensor = layer.recurrent_scale
    else:
        recurrent = dropout(layer.recurrent_kernel, layer.dropout, layer.training)
    found = []
    for t in range(T):
        before = states[0]
        states = LAYERS[name][1](layer, x[t], recurrent, states)
        if layer.zoneout:
            states[0] = before + (states[0] - before) * mask[t]
        found.append(states)
    return [torch.stack(values) for values in zip(*found, strict=True)]


def make(name: str, **options: Any) -> Any:
    """A layer with values everywhere, in float64."""
    torch.manual_seed(2)
    layer = LAYERS[name][0](IN, H, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def sample(name: str) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((T, B, IN), generator=generator, dtype=torch.float64, requires_grad=True)
    count = LAYERS[name][2]
    states = [
        torch.randn((1, B, H), generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(count)
    ]
    return x, states


def state_of(states: list[Tensor]) -> Any:
    return states[0] if len(states) == 1 else tuple(states)


def same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def compare(name: str, layer: Any) -> None:
    """Outputs, final states and all gradients, with the same seed for both."""
    x, states = sample(name)
    torch.manual_seed(7)
    expected = loop(name, layer, x, [state[0] for state in states])
    torch.manual_seed(7)
    output, last = layer(x, state_of(states))
    finals = [last] if isinstance(last, Tensor) else list(last)
    same(output, expected[0])
    for final, sequence in zip(finals, expected, strict=True):
        same(final, sequence[-1:])
    wanted = [x, *states, *layer.parameters()]
    weight = torch.randn(T, B, H, dtype=x.dtype)
    ours = (weight * output).sum() + sum(final.square().sum() for final in finals)
    theirs = (weight * expected[0]).sum() + sum(sequence[-1].square().sum() for sequence in expected)
    pairs = zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted), strict=True)
    for own, other in pairs:
        same(own, other)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_states_and_gradients_are_those_of_the_formulas(name: str) -> None:
    compare(name, make(name))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "LayerNormLSTM", "LayerNormGRU"])
def test_drop_connect(name: str, training: bool) -> None:
    compare(name, make(name, dropout=0.4).train(training))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LAYERS)
def test_batch_first_lengths_and_state_sequences(name: str) -> None:
    plain, swapped = make(name), make(name, batch_first=True, return_state_sequence=True)
    x, _ = sample(name)
    zeros = [torch.zeros(B, H, dtype=x.dtype)] * LAYERS[name][2]
    expected = loop(name, plain, x, zeros)
    output, sequences = swapped(x.transpose(0, 1))
    same(output, expected[0].transpose(0, 1))
    for got, sequence in zip([sequences] if isinstance(sequences, Tensor) else sequences, expected, strict=True):
        same(got, sequence.transpose(0, 1)[None])
    lengths = torch.tensor([2, T, 4])
    _, last = plain(x, lengths=lengths)
    for final, sequence in zip([last] if isinstance(last, Tensor) else last, expected, strict=True):
        same(final, sequence[lengths - 1, torch.arange(B)][None])


def test_parameters_are_haste_s() -> None:
    torch.manual_seed(0)
    layer: Any = haste.LayerNormLSTM(IN, H, forget_bias=2.0)
    shapes = {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}
    assert shapes == {
        "kernel": (IN, 4 * H), "recurrent_kernel": (H, 4 * H), "bias": (4 * H,), "gamma": (2, 4 * H),
        "gamma_h": (H,), "beta_h": (H,),
    }  # fmt: skip
    assert layer.bias.tolist() == [0.0] * 2 * H + [2.0] * H + [0.0] * H
    block = layer.recurrent_kernel[:, H : 2 * H]
    torch.testing.assert_close(block @ block.T, torch.eye(H))
    assert layer.gamma.eq(1).all() and layer.gamma_h.eq(1).all() and layer.beta_h.eq(0).all()
    assert list(dict(haste.GRU(IN, H).named_parameters())) == ["kernel", "recurrent_kernel", "bias", "recurrent_bias"]
    own: Any = haste.IndRNN(IN, H)
    assert tuple(own.recurrent_scale.shape) == (H,) and own.recurrent_scale.abs().max() <= 0.5
    assert LAYERS["GRU"][0](IN, H).load_state_dict(haste.GRU(IN, H).state_dict()).missing_keys == []


@pytest.mark.parametrize(("name", "native"), [("LSTM", nn.LSTM), ("GRU", nn.GRU)])
def test_native_weights_go_both_ways(name: str, native: Callable[..., nn.RNNBase]) -> None:
    theirs = native(IN, H, dtype=torch.float64)
    layer = make(name)
    layer.from_native_weights(*theirs.parameters())
    x, states = sample(name)
    same(layer(x, state_of(states))[0], theirs(x, state_of(states))[0])
    again = native(IN, H, dtype=torch.float64)
    again.load_state_dict(dict(zip(again.state_dict(), make(name).to_native_weights(), strict=True)))
    same(make(name)(x)[0], again(x)[0])


def test_mistakes() -> None:
    for option in ("zoneout", "dropout"):
        with pytest.raises(ValueError, match=rf"GRU: {option} must be in \[0\.0, 1\.0\], got 1\.5"):
            make("GRU", **{option: 1.5})
    layer = make("LSTM")
    x, states = sample("LSTM")
    with pytest.raises(ValueError, match=r"LSTM: input must be \[\.\., \.\., 4\], got \[6, 3, 3\]"):
        layer(x[..., :3])
    with pytest.raises(ValueError, match=r"LSTM: state must be 2 tensor\(s\) \[1, 3, 5\], got \[1, 3, 5\]$"):
        layer(x, states[0])
    with pytest.raises(ValueError, match=r"got \[1, 3, 5\], \[1, 2, 5\]"):
        layer(x, (states[0], states[1][:, :2]))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", LAYERS)
def test_zoneout(name: str, training: bool) -> None:
    options = {"zoneout": 0.3} if "IndRNN" in name else {"zoneout": 0.3, "dropout": 0.4}
    compare(name, make(name, **options).train(training))


def test_masks_come_from_torch_s_generator() -> None:
    layer = make("LSTM", zoneout=0.3, dropout=0.4)
    x, _ = sample("LSTM")
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(layer(x)[0])
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
