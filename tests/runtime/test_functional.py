"""The functional op takes parameters and makes what its loops read of them; each stream goes in once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import rnncc
from tests.functional import op_of, streams_of, taken
from tests.packages import float64_package

pytestmark = pytest.mark.usefixtures("float64_first")
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
LEAK = "cell Leak\nstate h\nparam lam: vector\nh[t] = sigmoid(lam)*h[t-1] + W@x\n"
# Two loops whose packed streams have one name, a gate that both read, and a learned value before the second's weight.
PAIR = """
cell Pair
state h = learned, c
param w: vector, v: vector
weights V: matrix
a, i, d, e = W@x
f = sigmoid(V@x)
h[t] = f*h[t-1] + tanh(a)*i*exp(w)
c[t] = f*c[t-1]*sigmoid(w) + tanh(d)*e*v*h[t]
"""


def leak() -> tuple[Any, Tensor, Tensor, Tensor]:
    """The op, streams [T, B, H], the parameter, and what the op must give."""
    torch.manual_seed(0)
    streams, lam = torch.randn(6, 3, 4, **DOUBLE), torch.randn(4, **DOUBLE)
    h, expected = torch.zeros(3, 4, **DOUBLE), []
    for value in streams:
        h = lam.sigmoid() * h + value
        expected.append(h)
    return float64_package(LEAK).leak, streams, lam, torch.stack(expected)


@pytest.mark.parametrize("backend", [None, "reference"])
def test_a_weight_that_steps_read_a_function_of_is_the_parameter(backend: str | None) -> None:
    op, streams, lam, expected = leak()
    output, last = op(streams, lam, hidden_size=4, backend=backend)
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(last, output[-1])
    rows = streams.transpose(0, 1).flatten(0, 1)
    packed, _ = op(rows, lam, hidden_size=4, backend=backend, offsets=torch.tensor([0, 6, 12, 18]))
    torch.testing.assert_close(packed.view(3, 6, 4).transpose(0, 1), expected, atol=1e-12, rtol=1e-12)

    def call(streams: Tensor, lam: Tensor) -> Tensor:
        result: Tensor = op(streams, lam, hidden_size=4, backend=backend)[0]
        return result

    assert torch.autograd.gradcheck(call, (streams.requires_grad_(), lam.requires_grad_()))


def test_a_function_of_a_parameter_in_transforms_and_compiled() -> None:
    op, streams, lam, _ = leak()

    def loss(lam: Tensor, streams: Tensor) -> Tensor:
        result: Tensor = op(streams, lam, hidden_size=4)[0].square().sum()
        return result

    lams = torch.stack((lam, lam + 1))
    each = vmap(grad(loss), in_dims=(0, None))(lams, streams)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for own, found in zip(lams, each, strict=True):
        own = own.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(own, streams), own)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
        (found,) = torch.autograd.grad(compiled(own, streams), own)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_streams_and_parameters_of_several_loops_are_given_once(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    layer = float64_package(PAIR).Pair(3, 4, **DOUBLE)
    names = taken(layer)
    assert not isinstance(names, str)
    streams_taken, weights_taken = names
    assert streams_taken == ["f", "W (a, i)", "W (d, e)"] and weights_taken == ["w", "v"]
    x = torch.randn(5, 2, 3, **DOUBLE)
    mask: dict[str, Any] = {"reset": torch.rand(5, 2) < 0.4} if masked else {}
    streams, (output, last) = streams_of(layer, monkeypatch, lambda: layer(x, **mask))
    # A learned value, which masked loops read as well, goes last: the order of the others stays that of explain().
    weights = [layer.w_l0, layer.v_l0, *([layer.h0_l0] if masked else [])]
    states = [layer.h0_l0.expand(2, 4), torch.zeros(2, 4, **DOUBLE)]
    given = [streams[name] for name in streams_taken]
    found, finals = op_of(layer)(given, weights, states, **mask)
    torch.testing.assert_close(found, output, atol=1e-12, rtol=1e-12)
    for value, wanted in zip(finals, last, strict=True):
        torch.testing.assert_close(value, wanted[0], atol=1e-12, rtol=1e-12)
    with pytest.raises(ValueError, match=rf"Pair takes {len(given)} streams \(.*\), got {len(given) + 1}"):
        op_of(layer)([*given, given[0]], weights, states, **mask)


def test_the_names_of_gates_are_said() -> None:
    module = rnncc.load("lstm")
    for text in (module.LSTM(3, 4).explain(), module.LSTMCell(3, 4).explain(), module.lstm.__doc__):
        assert "streams W (i, f, g, o)" in text and "weights R (weight_hh)" in text
    assert "There is none: SCRN computes the stream" in rnncc.load("scrn").scrn.__doc__
