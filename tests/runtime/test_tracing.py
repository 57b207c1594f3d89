"""What writes a model down while it runs: torch.jit.trace."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc

T, B, IN, H = 5, 3, 4, 6


def layer_of(file: str, name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load(file), name)(IN, H, **options)


def traced(module: nn.Module, *example: Any) -> Any:
    """Its trace, saved and loaded. torch compares a second trace, taken without gradients, with the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that are checked
        trace = torch.jit.trace(module, example)  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    torch.jit.save(trace, buffer)  # type: ignore[no-untyped-call]
    buffer.seek(0)
    return torch.jit.load(buffer)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize(("file", "name"), [("lstm", "LSTM"), ("mingru", "minGRU")])
def test_a_trace_takes_other_sizes_and_is_trained(file: str, name: str, mode: Any) -> None:
    layer = layer_of(file, name, num_layers=2, bidirectional=True)
    with mode():
        trace = traced(layer, torch.randn(T, B, IN))
    assert f"{layer.spec.segments[0].name}_forward" in str(trace.graph)
    x = torch.randn(T + 4, B - 1, IN)
    (found, finals), (expected, wanted) = trace(x), layer(x)
    assert torch.equal(found, expected)
    for final, other in zip(finals, wanted, strict=True):
        assert torch.equal(final, other)
    found.square().sum().backward()
    expected.square().sum().backward()
    theirs = dict(trace.named_parameters())
    for parameter, ours in layer.named_parameters():
        assert torch.equal(theirs[parameter].grad, ours.grad)


def test_a_trace_takes_states_lengths_and_resets() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer_of("lstm", "LSTM", bidirectional=True)

        def forward(self, x: Tensor, h: Tensor, c: Tensor, lengths: Tensor, reset: Tensor) -> Tensor:
            output: Tensor = self.layer(x, (h, c), lengths=lengths, reset=reset)[0]
            return output

    def arguments(steps: int, columns: int) -> list[Tensor]:
        states = torch.randn(2, 2, columns, H)
        return [torch.randn(steps, columns, IN), *states, torch.arange(columns) + 1, torch.rand(steps, columns) < 0.3]

    model = Model()
    trace, given = traced(model, *arguments(T, B)), arguments(T + 2, B + 1)
    assert torch.equal(trace(*given), model(*given))


def test_a_trace_of_a_single_step() -> None:
    torch.manual_seed(0)
    cell = rnncc.load("lstm").LSTMCell(IN, H)
    trace, x = traced(cell, torch.randn(B, IN)), torch.randn(B + 2, IN)
    assert all(map(torch.equal, trace(x), cell(x)))
