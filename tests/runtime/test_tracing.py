"""What writes a model down: torch.jit.trace, torch.fx; and torch.jit.script, which cannot."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

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


# An output that is the same at all steps, and a loop that reads nothing of its input.
STILL = """
cell Still
input x, c: 3 per sequence
state h
output y
weights V: matrix, Q: matrix
h[t] = tanh(V@c + R@h[t-1])
y = Q@c
"""


class Still(nn.Module):
    """Calls the cell with one value per sequence."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = rnncc.compile(STILL, "still").Still(IN, H, **options)

    def forward(self, x: Tensor, c: Tensor) -> Any:
        return self.layer(x, c=c)


class Packs(nn.Module):
    """Packs a padded batch, and pads what comes out."""

    def __init__(self, layer: nn.Module, enforce_sorted: bool) -> None:
        super().__init__()
        self.layer, self.enforce_sorted = layer, enforce_sorted

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        output, states = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=self.enforce_sorted))
        return pad_packed_sequence(output, total_length=x.shape[0])[0], states


class Rows(nn.Module):
    """Calls the layer with rows, sequence after sequence."""

    def __init__(self, layer: nn.Module, max_length: int | None) -> None:
        super().__init__()
        self.layer, self.max_length = layer, max_length

    def forward(self, rows: Tensor, offsets: Tensor) -> Any:
        return self.layer(rows, offsets=offsets, max_length=self.max_length)


def leaves(results: Any) -> list[Tensor]:
    return pytree.tree_leaves(results)


def test_a_trace_of_one_step_of_one_sequence_takes_other_sizes() -> None:
    """Sizes of 1 broadcast: the example's must not look like values that are the same at all steps."""
    model = Still()
    trace = traced(model, torch.randn(1, 1, IN), torch.randn(1, 3))
    x, c = torch.randn(T, B, IN), torch.randn(B, 3)
    assert all(map(torch.equal, leaves(trace(x, c)), leaves(model(x, c))))


@pytest.mark.parametrize("steps", [0, 1, T])
def test_a_trace_of_the_eager_loop_takes_no_other_number_of_steps(steps: int) -> None:
    lstm, still = layer_of("lstm", "LSTM", backend="reference", bidirectional=True), Still(backend="reference")
    for model, extra in ((lstm, lambda batch: ()), (still, lambda batch: (torch.randn(batch, 3),))):
        trace = traced(model, torch.randn(steps, B, IN), *extra(B))
        given = torch.randn(steps, B + 1, IN), *extra(B + 1)
        assert all(map(torch.equal, leaves(trace(*given)), leaves(model(*given))))
        for other in {1, steps - 1, steps + 1, 2 * steps} - {steps, -1}:
            with pytest.raises(RuntimeError, match=r"elements in a list but found|invalid for input of size"):
                trace(torch.randn(other, B, IN), *extra(B))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("steps", "lengths"), [(5, [5, 2, 4]), (5, [3, 2, 1]), (9, [9, 3]), (5, [5, 3, 1, 1]), (1, [1]), (2, [2, 2, 1])]
)
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_a_trace_of_a_model_that_packs(enforce_sorted: bool, steps: int, lengths: list[int]) -> None:
    model = Packs(layer_of("lstm", "LSTM", bidirectional=True, num_layers=2), enforce_sorted)
    trace = traced(model, torch.randn(T, B, IN), torch.tensor([5, 4, 2]))
    x, given = torch.randn(steps, len(lengths), IN), torch.tensor(sorted(lengths, reverse=True))
    (found, finals), (expected, wanted) = trace(x, given), model(x, given)
    assert all(map(torch.equal, (found, *finals), (expected, *wanted)))
    found.square().sum().backward()
    expected.square().sum().backward()
    theirs = dict(trace.named_parameters())
    assert all(torch.equal(theirs[name].grad, ours.grad) for name, ours in model.named_parameters())  # type: ignore[arg-type]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("offsets", [[0, 5, 12], [0, 3, 12], [0, 15, 30], [0, 4, 8, 12], [0, 0, 2]])
@pytest.mark.parametrize("max_length", [None, 15])
def test_a_trace_of_rows_with_offsets(max_length: int | None, offsets: list[int]) -> None:
    model = Rows(layer_of("lstm", "LSTM", bidirectional=True), max_length)
    trace, given = traced(model, torch.randn(12, IN), torch.tensor([0, 5, 12])), torch.tensor(offsets)
    rows = torch.randn(offsets[-1], IN)
    assert all(map(torch.equal, leaves(trace(rows, given)), leaves(model(rows, given))))


def test_a_trace_of_packed_sequences_that_would_hold_on_to_steps_is_refused() -> None:
    eager = Packs(layer_of("lstm", "LSTM", backend="reference"), False)
    trace = traced(eager, torch.randn(T, B, IN), torch.tensor([5, 4, 2]))
    with pytest.raises(RuntimeError, match="Expected 5 elements in a list but found 6"):
        trace(torch.randn(6, B, IN), torch.tensor([6, 4, 2]))
    with pytest.raises(NotImplementedError, match="RNN721"):
        elsewhere = Packs(layer_of("lstm", "LSTM", device="meta"), False)
        torch.jit.trace(elsewhere, (torch.randn(T, B, IN, device="meta"), torch.tensor([5, 4, 2])))  # type: ignore[no-untyped-call]
    with pytest.raises(NotImplementedError, match="RNN721"):
        rows = Rows(layer_of("lstm", "LSTM", device="meta"), 9)
        offsets = torch.tensor([0, 5, 12], device="meta")
        torch.jit.trace(rows, (torch.randn(12, IN, device="meta"), offsets))  # type: ignore[no-untyped-call]


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


def test_fx_takes_proxies_as_states_of_an_input_that_is_none() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cell = layer_of("lstm", "LSTM"), rnncc.load("lstm").LSTMCell(IN, H)
            self.register_buffer("x", torch.randn(T, B, IN))

        def forward(self, h: Tensor, c: Tensor, lengths: Tensor) -> Any:
            x = self.get_buffer("x")
            return self.layer(x, (h, c))[0], self.layer(x, lengths=lengths)[0], self.cell(x[0], (h[0], c[0]))

    model = Model()
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer", "layer", "cell"]
    given = *torch.randn(2, 1, B, H), torch.tensor([5, 2, 3])
    assert all(map(torch.equal, leaves(traced(*given)), leaves(model(*given))))


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
