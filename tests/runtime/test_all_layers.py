"""`return_all_layers`: the sequences of every layer of a stack, beside torch.nn's layers one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnncc
from rnncc.compat.two_states import TwoStates

pytestmark = pytest.mark.usefixtures("float64_first")
T, B, IN, H, LAYERS = 7, 3, 4, 6, 3
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
BACKENDS = ("cpu", "reference")
EXACT: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}


def make(backend: str = "cpu", **options: Any) -> Any:
    torch.manual_seed(0)
    options = {"return_sequences_of": ("h", "c"), "return_all_layers": True, **options}
    return rnncc.load("nn_lstm").nn_LSTM(IN, H, LAYERS, backend=backend, **options, **DOUBLE)


def alone(layer: Any, number: int) -> nn.LSTM:
    """torch's layer that is one of the stack."""
    own = nn.LSTM(IN if number == 0 else H * (1 + layer.bidirectional), H, bidirectional=layer.bidirectional, **DOUBLE)
    names = {name: name.replace("_l0", f"_l{number}") for name, _ in own.named_parameters()}
    own.load_state_dict({name: getattr(layer, theirs).detach() for name, theirs in names.items()})
    return own


def stack(layer: Any) -> list[nn.LSTM]:
    return [alone(layer, number) for number in range(layer.num_layers)]


@pytest.mark.parametrize("lengths", [None, [7, 2, 5]])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_layer_is_torch_s(backend: str, bidirectional: bool, lengths: list[int] | None) -> None:
    """Values, and gradients of a loss on all of them."""
    layer = make(backend, bidirectional=bidirectional)
    theirs = stack(layer)
    x, other = (torch.randn(T, B, IN, generator=torch.Generator().manual_seed(1), **DOUBLE) for _ in range(2))
    x.requires_grad_()
    other.requires_grad_()
    output, _, sequences = layer(x, lengths=lengths)
    expected, value = [], other
    for one in theirs:
        if lengths is None:
            value, _ = one(value)
        else:
            packed, _ = one(pack_padded_sequence(value, torch.tensor(lengths), enforce_sorted=False))
            value, _ = pad_packed_sequence(packed, total_length=T)
        expected.append(value)
    assert isinstance(sequences["h"], tuple) and len(sequences["h"]) == LAYERS
    for found, wanted in zip(sequences["h"], expected, strict=True):
        torch.testing.assert_close(found, wanted, **EXACT)
    assert torch.equal(output, sequences["h"][-1])
    cotangents = [torch.randn_like(value) for value in expected]
    torch.autograd.backward(sequences["h"], cotangents)
    torch.autograd.backward(expected, cotangents)
    torch.testing.assert_close(x.grad, other.grad, **EXACT)
    for number, one in enumerate(theirs):
        for name, parameter in one.named_parameters():
            gradient = getattr(layer, name.replace("_l0", f"_l{number}")).grad
            torch.testing.assert_close(gradient, parameter.grad, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_that_are_no_output(backend: str) -> None:
    """c of every layer and step: the final state of torch's layer at each length."""
    layer, x = make(backend), torch.randn(T, B, IN, **DOUBLE)
    _, (_, c_n), sequences = layer(x)
    value = x
    for number, one in enumerate(stack(layer)):
        for t in range(T):
            _, (_, c) = one(value[: t + 1])
            torch.testing.assert_close(sequences["c"][number][t], c[0], **EXACT)
        value, _ = one(value)
        torch.testing.assert_close(sequences["c"][number][-1], c_n[number], **EXACT)


def same(found: dict[str, Any], expected: dict[str, Any], change: Any = lambda value: value) -> None:
    for name, layers in expected.items():
        for one, other in zip(found[name], layers, strict=True):
            torch.testing.assert_close(one, change(other), **EXACT)


def test_every_form_of_a_call() -> None:
    layer, x, lengths = make(bidirectional=True), torch.randn(T, B, IN, **DOUBLE), torch.tensor([7, 2, 5])
    _, _, expected = layer(x, lengths=lengths)
    _, _, packed = layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
    same(
        {name: [pad_packed_sequence(each, total_length=T)[0] for each in own] for name, own in packed.items()}, expected
    )
    rows, offsets = torch.cat([x[:n, b] for b, n in enumerate(lengths)]), torch.tensor([0, 7, 9, 14])
    _, _, found = layer(rows, offsets=offsets)
    same(found, expected, lambda value: torch.cat([value[:n, b] for b, n in enumerate(lengths)]))
    layer.batch_first = True
    same(layer(x.transpose(0, 1), lengths=lengths)[2], expected, lambda value: value.transpose(0, 1))
    layer.batch_first = False
    same(layer(x[:, 0])[2], expected, lambda value: value[:, 0])
    layer.recompute = True
    same(layer(x, lengths=lengths)[2], expected)


def test_a_sequence_is_that_before_dropout() -> None:
    """As torch's layers one after the other would give it."""
    layer, x = make(dropout=0.5), torch.randn(T, B, IN, **DOUBLE)
    _, _, sequences = layer(x)
    torch.testing.assert_close(sequences["h"][0], alone(layer, 0)(x)[0], **EXACT)


def test_projections_and_outputs_that_are_no_states() -> None:
    layer = rnncc.load("nn_lstmp").nn_LSTMP(IN, H, 2, proj_size=3, return_sequences_of=("h",), return_all_layers=True)
    theirs = nn.LSTM(IN, H, 2, proj_size=3)
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(T, B, IN)
    output, _, sequences = layer(x)
    torch.testing.assert_close(output, theirs(x)[0], rtol=1e-5, atol=1e-6)
    assert [tuple(each.shape) for each in sequences["h"]] == [(T, B, 3)] * 2
    text = "cell Out\nstate h\noutput y\nlocal y: 2\nh[t] = tanh(W@x + R@h[t-1] + b)\ny = V@h[t]\nweights V: matrix"
    made = rnncc.compile(text, "out").Out(IN, H, 2, return_sequences_of=("y", "h"), return_all_layers=True)
    output, _, sequences = made(x)
    assert torch.equal(sequences["y"][1], output) and sequences["y"][0].shape == (T, B, 2)
    view = made.gate_parameters()["V_y"]
    torch.testing.assert_close(sequences["y"][0], sequences["h"][0] @ view.reshape(2, H).T)


@pytest.mark.long
def test_compiled_and_exported() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = make(bidirectional=True)

        def forward(self, x: Tensor) -> Tensor:
            _, _, sequences = self.layer(x)
            total: Tensor = torch.stack(sequences["h"]).sum(0) + sequences["c"][0]
            return total

    model, x = Sum(), torch.randn(T, B, IN, **DOUBLE)
    expected = model(x)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected, **EXACT)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), expected, **EXACT)


def test_what_it_goes_with() -> None:
    with pytest.raises(ValueError, match="return_all_layers=True goes with return_sequences_of="):
        make(return_sequences_of=())
    one = rnncc.load("gru").GRU(IN, H, 2, return_sequences_of=("h",), return_all_layers=True)
    with pytest.raises(ValueError, match="returns sequences of states"):
        TwoStates(one)
    assert "return_all_layers=True" in repr(one)
