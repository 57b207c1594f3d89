"""Older values of what inputs make, against torch's own convolution: the causal convolution of Griffin and of Mamba."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from tests.packages import float64_package

H, HEADS, TAPS = 12, 2, 4
# De et al., "Griffin", 2024, arXiv:2402.19427: the recurrent block's convolution and its gated linear recurrence.
HAWK = """
cell Hawk
state h
weights k0: vector, k1: vector, k2: vector, k3: vector, A: matrix
param lam: vector = uniform(0.5, 2)
u = W@x
c = k0*u + k1*u[t-1] + k2*u[t-2] + k3*u[t-3] + b
r, i = sigmoid(A@c + b)
a = exp(-8*softplus(lam)*r)
h[t] = a*h[t-1] + sqrt(1 - a*a)*(i*c)
"""
# The convolution is read by a loop with a recurrent product. What it takes has a bias, which is none of the zeros.
DENSE = """
cell Dense
state h
weights k0: vector, k1: vector, k2: vector, k3: vector
u = W@x + b
h[t] = tanh(k0*u + k1*u[t-1] + k2*u[t-2] + k3*u[t-3] + R@h[t-1] + b)
"""


@cache
def module() -> Any:
    return float64_package(HAWK + DENSE, "shifts")


def layer_of(name: str, **options: Any) -> Any:
    torch.manual_seed(1)
    return getattr(module(), name)(5, H, **{"dtype": torch.float64, **options})


def convolved(u: Tensor, p: dict[str, Tensor], target: str) -> Tensor:
    """torch's convolution of u [T, B, H] with a filter for each unit, which reads nothing later."""
    kernel = torch.stack([p[f"k{k}_{target}"] for k in reversed(range(TAPS))], -1).unsqueeze(1)
    padded = F.pad(u.permute(1, 2, 0), (TAPS - 1, 0))
    return F.conv1d(padded, kernel, groups=u.shape[-1]).permute(2, 0, 1)


def hawk(p: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    c = convolved(x @ p["W_u"].T, p, "c") + p["b_c"]
    r, i = (torch.sigmoid(c @ p[f"A_{gate}"].T + p[f"b_{gate}"]) for gate in "ri")
    a = torch.exp(-8 * F.softplus(p["lam"]) * r)
    outputs = []
    for t in range(x.shape[0]):
        h = a[t] * h + (1 - a[t] ** 2).sqrt() * i[t] * c[t]
        outputs.append(h)
    return torch.stack(outputs), h


def dense(p: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    c = convolved(x @ p["W_u"].T + p["b_u"], p, "h") + p["b_h"]
    blocks = p["R_h"].reshape(-1, *p["R_h"].shape[-2:])
    outputs = []
    for t in range(x.shape[0]):
        heads = h.reshape(h.shape[0], blocks.shape[0], -1)
        h = torch.tanh(c[t] + torch.einsum("noi,bni->bno", blocks, heads).flatten(1))
        outputs.append(h)
    return torch.stack(outputs), h


ORACLES = {"Hawk": hawk, "Dense": dense}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("name", ORACLES)
def test_a_causal_convolution_is_torchs(name: str, steps: int, backend: str) -> None:
    """Both directions, heads, initial states, and the gradient of every parameter."""
    layer = layer_of(name, num_heads=HEADS, bidirectional=True, backend=backend)
    x = torch.randn(steps, 3, 5, dtype=torch.float64, requires_grad=True)
    h = torch.randn(2, 3, H, dtype=torch.float64, requires_grad=True)
    output, last = layer(x, h)
    wanted, ends = [], []
    for reverse in (False, True):
        own = layer.gate_parameters(0, reverse=reverse)
        made, end = ORACLES[name](own, x.flip(0) if reverse else x, h[int(reverse)])
        wanted.append(made.flip(0) if reverse else made)
        ends.append(end)
    expected, expected_last = torch.cat(wanted, -1), torch.stack(ends)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(last, expected_last)
    weight, leaves = torch.randn_like(output), [x, h, *layer.parameters()]
    ours, theirs = (torch.autograd.grad((made * weight).sum(), leaves) for made in (output, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ORACLES)
def test_sequences_of_different_lengths_begin_with_zeros(name: str) -> None:
    """Packed, and padded with numbers that mean nothing: each is what it is alone, in both directions."""
    layer = layer_of(name, bidirectional=True, return_delays=True)
    x = [torch.randn(length, 5, dtype=torch.float64) for length in (4, 9, 1)]
    packed, packed_last = layer(pack_sequence(x, enforce_sorted=False))
    padded = torch.full((9, 3, 5), 1e3, dtype=torch.float64)
    for entry, own in enumerate(x):
        padded[: len(own), entry] = own
    given, given_last = layer(padded, lengths=[4, 9, 1])
    rows, _ = pad_packed_sequence(packed)
    for entry, own in enumerate(x):
        alone, alone_last = layer(own.unsqueeze(1))
        for made, last in ((rows, packed_last), (given, given_last)):
            torch.testing.assert_close(made[: len(own), entry], alone[:, 0])
            for one, other in zip(last, alone_last, strict=True):
                torch.testing.assert_close(one[:, entry], other[:, 0])


@pytest.mark.parametrize("name", ORACLES)
def test_nothing_passes_a_reset(name: str) -> None:
    """Not the bias of u either: older values before a reset are zero, whatever u is."""
    layer = layer_of(name, return_delays=True)
    x = torch.randn(8, 2, 5, dtype=torch.float64)
    reset = torch.zeros(8, 2)
    reset[5] = 1
    hx = tuple(torch.randn_like(state) for state in layer(x)[1])
    output, last = layer(x, hx, reset=reset)
    first, _ = layer(x[:5], hx)
    second, second_last = layer(x[5:])
    torch.testing.assert_close(output, torch.cat((first, second)))
    for one, other in zip(last, second_last, strict=True):
        torch.testing.assert_close(one, other)


def test_delay_states_are_named_and_hold_the_projection() -> None:
    layer = layer_of("Dense", return_delays=True)
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    _, (_, *older) = layer(x)
    own = layer.gate_parameters()
    u = x @ own["W_u"].T + own["b_u"]
    for back, value in enumerate(older):
        torch.testing.assert_close(value[0], u[5 - back])
    assert "u[t], u[t-1], u[t-2]" in layer.__doc__
    wanted = "hx must be a tuple of 4 tensors, for h, u[t], u[t-1], u[t-2]; got a tuple of 2 tensors"
    with pytest.raises(TypeError, match=re.escape(wanted)):
        layer(x, (older[0], older[1]))
    # Without them, older values are zero before the start of a call.
    start = torch.randn(1, 3, H, dtype=torch.float64)
    zeros = [torch.zeros_like(value) for value in older]
    torch.testing.assert_close(layer(x, (start, *zeros))[0], layer_of("Dense")(x, start)[0])


def test_a_layer_under_autocast_and_in_16_bits() -> None:
    layer = layer_of("Dense", dtype=torch.float32, num_heads=HEADS)
    x = torch.randn(9, 3, 5)
    exact, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x)[0].float(), exact, atol=0.05, rtol=0)
    half, last = layer.bfloat16()(x.bfloat16())
    assert half.dtype == last.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.05, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("name", ORACLES)
def test_torch_compile_takes_it_whole(name: str) -> None:
    layer = layer_of(name, return_delays=True)
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    output, last = compiled(x)
    expected, expected_last = layer(x)
    for one, other in zip((output, *last), (expected, *expected_last), strict=True):
        torch.testing.assert_close(one, other)
