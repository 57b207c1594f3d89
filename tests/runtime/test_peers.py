"""Mistakes that fast recurrent kernels have been seen to make: one test for each that no other test would find.

retain_graph, second derivatives, forward mode and torch.compile are in test_ops.py; lengths, resets and streaming in
test_layers.py; gradients of initial states in every comparison of numeric/ and language/.
"""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import rnncc

HALVES = (torch.bfloat16, torch.float16)


def elman(size: int, dtype: torch.dtype) -> Any:
    """A layer whose parameters are all zero."""
    layer = rnncc.load("elman").Elman(size, size, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer


@pytest.mark.parametrize("dtype", HALVES)
def test_small_values_are_not_lost_in_16_bit_arithmetic(dtype: torch.dtype) -> None:
    """tanh as a quotient of exponentials, taken in bfloat16, gives 0 near 0 and is wrong by a third at 0.003."""
    layer = elman(8, dtype)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(8))
    x = torch.logspace(-4, 1, 4096 * 8, dtype=torch.float64).reshape(4096, 1, 8).to(dtype)
    exact = torch.tanh(x.double())
    error = (layer(x)[0].double() - exact).abs() / exact
    # The output's own rounding, and that of a pre-activation.
    assert error.max() <= 1.1 * torch.finfo(dtype).eps


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_products_are_not_summed_in_16_bits(backend: str) -> None:
    """Partial sums of ±1.3 million, in backward ±640,000, pass float16's largest number; the whole is 0."""
    layer = elman(64, torch.float16)
    layer.backend = backend
    with torch.no_grad():
        for weight in (layer.weight_hh_l0, layer.weight_ih_l0):
            weight[:, :32], weight[:, 32:] = 2000, -2000
    value = torch.full((3, 2, 64), 20.0, dtype=torch.float16, requires_grad=True)
    hx = torch.full((1, 2, 64), 20.0, dtype=torch.float16, requires_grad=True)
    output, _ = layer(value, hx)
    assert torch.equal(output, torch.zeros_like(output))
    sign = torch.tensor([10.0] * 32 + [-10.0] * 32, dtype=torch.float16)
    output.backward(sign.expand_as(output))
    for gradient in (value.grad, hx.grad):
        assert gradient is not None and torch.equal(gradient, torch.zeros_like(gradient))
    # Six rows of 20, times the sign; h is 20 at the first step alone.
    assert torch.equal(layer.weight_ih_l0.grad, (6 * 20 * sign).unsqueeze(1).expand(64, 64))
    assert torch.equal(layer.weight_hh_l0.grad, (2 * 20 * sign).unsqueeze(1).expand(64, 64))


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_are_not_summed_in_16_bits(dtype: torch.dtype) -> None:
    """16,384 ones: bfloat16 stops counting at 256, float16 at 2,048."""
    layer = elman(4, dtype)
    output, _ = layer(torch.zeros(1024, 16, 4, dtype=dtype))
    output.sum().backward()
    assert layer.bias_ih_l0.grad.tolist() == [16384.0] * 4


def test_inference_keeps_nothing_and_training_only_what_is_named() -> None:
    layer = rnncc.load("lstm").LSTM(3, 4)
    segment = layer.spec.segments[0]
    kernels, _ = layer._choose(torch.zeros(1))
    forward = kernels.ops[segment.name]
    given: Any = ([torch.zeros(5, 2, 16)], [layer.weight_hh_l0.detach()], [torch.zeros(2, 4), torch.zeros(2, 4)],
             None, 0, None, None, [], layer.spec.sizes_in_order(layer._sizes[0]), 1, [False], [0])  # fmt: skip
    assert forward(*given, False, False)[2] == []
    kept = forward(*given, True, False)[2]
    # h is returned, and is not stored a second time.
    assert [tuple(tensor.shape) for tensor in kept] == [
        (5, 2, saved.width(layer._sizes[0]))
        for saved, same in zip(segment.plain.saved, segment.plain.saved_sequence, strict=True)
        if same != 0
    ]
    assert 0 in segment.plain.saved_sequence


def test_sizes_change_between_calls_and_batch_entries_do_not_know_of_each_other() -> None:
    """No build for a batch size, no padding of the batch that is seen: a batch entry is the same in every company."""
    layer = rnncc.load("gru").GRU(5, 7)
    x = torch.randn(9, 33, 5)
    whole, last = layer(x)
    for batch in (1, 2, 3, 8, 17):
        output, end = layer(x[:, :batch])
        torch.testing.assert_close(output, whole[:, :batch], rtol=0, atol=1e-6)
        torch.testing.assert_close(end, last[:, :batch], rtol=0, atol=1e-6)
    output, _ = layer(x[:4])
    torch.testing.assert_close(output, whole[:4], rtol=0, atol=1e-6)


def test_the_backward_pass_works_in_evaluation_mode() -> None:
    layer = rnncc.load("lstm").LSTM(3, 4, 2, dropout=0.5).eval()
    x = torch.randn(5, 2, 3, requires_grad=True)
    layer(x)[0].sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


def test_values_stay_as_they_are_where_gradients_are_clipped() -> None:
    """Nothing is clipped that nobody asked to clip: h and its gradient pass 1,000."""
    layer = rnncc.compile("cell Sum\nstate h\nh[t] = h[t-1] + x\n", "sum_up").Sum(1, 1)
    x = torch.full((2000, 1, 1), 1.0, requires_grad=True)
    output, _ = layer(x)
    assert output[-1].item() == 2000.0
    output.sum().backward()
    assert x.grad is not None and x.grad[0].item() == 2000.0


def lazy_zeros(*shape: int) -> Tensor:
    """Zeros of bfloat16 that take no memory until they are written."""
    return torch.from_numpy(numpy.zeros(shape, dtype=numpy.int16)).view(torch.bfloat16)


@pytest.mark.long
@pytest.mark.parametrize("reverse", [False, True])
def test_offsets_beyond_32_bits(reverse: bool) -> None:
    """A stream of 2³² elements and some: what stands at its ends is read there."""
    layer = rnncc.compile("cell Decay\nstate h\nh[t] = 0.5*h[t-1] + x\n", "decay").Decay(1 << 16, 1 << 16)
    kernels, _ = layer._choose(torch.zeros(1))
    steps, hidden = (1 << 16) + 2, 1 << 16
    stream = lazy_zeros(steps, 1, hidden)
    stream[-1, 0, 5], stream[0, 0, 7], stream[-2, 0, 9] = 1, 1, 1
    sequences, (final,), saved = kernels.ops["decay_0"](
        [stream], [], [torch.zeros(1, hidden)], None, 0, None, None, [],
        layer.spec.sizes_in_order(layer._sizes[0]), 1, [reverse], [], False, False,
    )  # fmt: skip
    assert sequences == [] and saved == []
    expected = torch.zeros(1, hidden)
    if reverse:
        expected[0, 7] = 1
    else:
        expected[0, 5], expected[0, 9] = 1, 0.5
    assert torch.equal(final, expected)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_reset_past_a_batch_entry_s_length_changes_nothing(backend: str) -> None:
    layer = rnncc.load("lstm").LSTM(5, 6, bidirectional=True, dtype=torch.float64, backend=backend)
    x, states = torch.randn(7, 3, 5).double(), tuple(torch.randn(2, 3, 6).double() for _ in range(2))
    lengths = torch.tensor([4, 0, 7])
    reset = torch.arange(7).unsqueeze(1) >= lengths
    assert reset.any()
    expected, kept = layer(x, states, lengths=lengths)
    output, last = layer(x, states, lengths=lengths, reset=reset)
    for a, b in zip((output, *last), (expected, *kept), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_state_that_becomes_a_number_keeps_its_width(backend: str, masked: bool) -> None:
    layer = rnncc.compile("cell One\nstate h\nh[t] = 1\n", "one").One(5, 6, 2, backend=backend)
    output, last = layer(torch.randn(7, 3, 5), lengths=[7] * 3 if masked else None)
    assert torch.equal(output, torch.ones(7, 3, 6)) and torch.equal(last, torch.ones(2, 3, 6))
