"""What writes a model down: torch.jit.trace, torch.fx; and torch.jit.script, which cannot."""

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
    torch.jit.save(trace, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)  # type: ignore[no-untyped-call]


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

    def arguments(steps: int, batch: int) -> list[Tensor]:
        states = torch.randn(2, 2, batch, H)
        return [torch.randn(steps, batch, IN), *states, torch.arange(batch) + 1, torch.rand(steps, batch) < 0.3]

    model = Model()
    trace, given = traced(model, *arguments(T, B)), arguments(T + 2, B + 1)
    assert torch.equal(trace(*given), model(*given))


def test_a_trace_of_a_single_step() -> None:
    torch.manual_seed(0)
    cell = rnncc.load("lstm").LSTMCell(IN, H)
    trace, x = traced(cell, torch.randn(B, IN)), torch.randn(B + 2, IN)
    assert all(map(torch.equal, trace(x), cell(x)))


def test_fx_takes_a_layer_as_one_node() -> None:
    """As it takes torch.nn's own layers, without a Tracer of the user's."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cell = layer_of("lstm", "LSTM"), rnncc.load("lstm").LSTMCell(H, H)

        def forward(self, x: Tensor, h: Tensor, c: Tensor, lengths: Tensor) -> Tensor:
            output, states = self.layer(x.relu(), (h, c), lengths=lengths)
            result: Tensor = self.cell(output[0], (states[0][0], states[1][0]))[0]
            return result

    model = Model()
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer", "cell"]
    x, states = torch.randn(T, B, IN), torch.randn(2, 1, B, H)
    lengths = torch.tensor([5, 2, 3])
    assert torch.equal(traced(x, *states, lengths), model(x, *states, lengths))
    assert [name for name, _ in traced.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_fx_and_script_say_what_they_cannot_take() -> None:
    layer, cells = layer_of("lstm", "LSTM"), rnncc.load("lstm")
    for module in (layer, cells.LSTMCell(IN, H)):
        with pytest.raises(TypeError, match="trace a module that holds it"):
            torch.fx.symbolic_trace(module)
        for scripted in (module, nn.Sequential(module)):
            with pytest.raises(TypeError, match=r"torch.jit.script cannot read LSTM.*torch.export"):
                torch.jit.script(scripted)
    with pytest.raises(TypeError, match=r"torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda streams: cells.lstm(streams, layer.weight_hh_l0, hidden_size=H))
