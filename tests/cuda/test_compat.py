"""rnncc.compat on a GPU, against float64 on the CPU: torch.nn, and the formulas of FlashRNN and Haste."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc
from rnncc.compat import FlashRNNConfig, flashrnn, haste
from rnncc.compat.nn import replace
from tests.compat import test_flashrnn, test_haste, test_nn
from tests.cuda.harness import DEVICE

pytestmark = pytest.mark.gpu


def close(got: Tensor, expected: Tensor) -> None:
    """Equal to 1e-5 of the largest element: float32."""
    assert got.is_cuda
    assert (got.cpu().double() - expected).abs().max() <= 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize(("cell", "make"), test_nn.KINDS, ids=[cell for cell, _ in test_nn.KINDS])
def test_modules_of_torch(cell: str, make: Any) -> None:
    torch.manual_seed(0)
    module: nn.RNNBase = make().eval()
    theirs = copy.deepcopy(module).double()
    ours = replace(module.to(DEVICE))
    assert type(ours).__name__ == cell
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    expected, got = theirs(x)[0], ours(x.float().to(DEVICE))[0]
    close(got, expected)
    expected.square().sum().backward()
    got.square().sum().backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        gradient = theirs.get_parameter(name).grad
        assert gradient is not None
        close(parameter.grad, gradient)


@pytest.mark.parametrize("bound", [None, 0.02])
@pytest.mark.parametrize("function", test_flashrnn.COUNTS)
def test_functions_of_flashrnn(function: str, bound: float | None) -> None:
    arguments = test_flashrnn.tensors(function, scale=0.5)
    own = [tensor.detach().float().to(DEVICE).requires_grad_() for tensor in arguments]
    config = FlashRNNConfig(function=function, gradient_recurrent_clipval=bound)
    expected = test_flashrnn.loop(function, *arguments, bound)
    got = flashrnn(own[0], own[1], own[2], own[3], config=config)
    for ours, theirs in zip(got, expected, strict=True):
        close(ours, theirs)
    # All states have gradients.
    pairs = zip(
        torch.autograd.grad(got[0].square().sum(), own),
        torch.autograd.grad(expected[0].square().sum(), arguments),
        strict=True,
    )
    for ours, theirs in pairs:
        close(ours, theirs)


@pytest.mark.parametrize("initial", [0.0, (0.5, -1.0)])
def test_flashrnn_without_states_does_not_wait(initial: float | tuple[float, ...]) -> None:
    wx, recurrent, bias, _ = (tensor.detach().float().to(DEVICE) for tensor in test_flashrnn.tensors("lstm"))
    config = FlashRNNConfig(initial_val=initial)
    expected = flashrnn(wx, recurrent, bias, config=config)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = flashrnn(wx, recurrent, bias, config=config)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_reset_given_as_lists_does_not_wait() -> None:
    layer = rnncc.load("lstm").LSTM(5, 16).to(DEVICE)
    x, reset = torch.randn(6, 2, 5, device=DEVICE), [[False, True]] * 6
    expected, _ = layer(x, reset=torch.tensor(reset, device=DEVICE))
    torch.cuda.set_sync_debug_mode("error")
    try:
        got, _ = layer(x, reset=reset)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(got, expected)


@pytest.mark.parametrize("zoneout", [0.0, 0.3])
@pytest.mark.parametrize("name", test_haste.LAYERS)
def test_layers_of_haste(name: str, zoneout: float) -> None:
    theirs = test_haste.make(name, zoneout=zoneout).eval()
    ours = copy.deepcopy(theirs).float().to(DEVICE)
    x, states = test_haste.sample(name)
    given = [state.detach().float().to(DEVICE) for state in states]
    output, _ = ours(x.detach().float().to(DEVICE), test_haste.state_of(given))
    expected = test_haste.loop(name, theirs, x, [state[0] for state in states])[0]
    close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()  # type: ignore[no-untyped-call]
    for key, parameter in ours.named_parameters():
        close(parameter.grad, theirs.get_parameter(key).grad)


def test_zoneout_in_training_holds_units() -> None:
    torch.manual_seed(0)
    layer = haste.GRU(8, 64, zoneout=0.25).to(DEVICE)
    output, _ = layer(torch.randn(50, 4, 8, device=DEVICE))
    held = (output[1:] == output[:-1]).float().mean().item()
    assert abs(held - 0.25) < 0.02
