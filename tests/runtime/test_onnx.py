"""ONNX: torch's exporter writes the loop out step by step, or as a Scan where the number of steps is dynamic, with any
backend. ONNX Runtime runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import rnncc

T, IN, H = 3, 8, 8


def assert_as(layer: nn.Module, x: Tensor, program: Any, path: Path) -> None:
    """The program, run by ONNX Runtime, gives what the layer does."""
    assert program is not None
    program.save(str(path))
    with torch.no_grad():
        output, states = layer(x)
    session = onnxruntime.InferenceSession(str(path))
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = [output, *(states if isinstance(states, tuple) else (states,))]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), atol=2e-6, rtol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize(("file", "name", "backend"), [("lstm", "LSTM", "cpu"), ("onlstm", "ONLSTM", None)])
def test_against_onnx_runtime(file: str, name: str, backend: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = getattr(rnncc.load(file), name)(IN, H, backend=backend, bidirectional=file == "lstm").eval()
    with torch.no_grad():
        program = torch.onnx.export(
            layer, (torch.randn(T, 3, IN),), dynamo=True, verbose=False,
            dynamic_shapes=({1: torch.export.Dim("batch")},),
        )  # fmt: skip
    assert_as(layer, torch.randn(T, 7, IN), program, tmp_path / "model.onnx")


@pytest.mark.long
def test_an_input_per_sequence(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = "cell Given\ninput c: 3 per sequence\nstate h\nweights V: matrix\nh[t] = sigmoid(V@c)*tanh(W@x + R@h[t-1])\n"
    layer = rnncc.compile(text, "given").Given(IN, H).eval()
    x, c = torch.randn(T, 2, IN), torch.randn(2, 3)
    with torch.no_grad():
        program = torch.onnx.export(layer, (x,), kwargs={"c": c}, dynamo=True, verbose=False)
        assert program is not None
        program.save(str(tmp_path / "model.onnx"))
        output, _ = layer(x, c=c)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    found = session.run(None, {"input": x.numpy(), "c": c.numpy()})
    np.testing.assert_allclose(found[0], output.numpy(), atol=2e-6, rtol=2e-6)


class Marked(nn.Module):
    """A layer with lengths and resets."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, c: Tensor, lengths: Tensor, reset: Tensor) -> Any:
        output, (h, m) = self.layer(x, lengths=lengths, reset=reset, c=c)
        return output, h, m


@pytest.mark.long
@pytest.mark.parametrize("backend", [None, "reference"])
def test_any_number_of_steps(tmp_path: Path, backend: str | None) -> None:
    """States that begin alike, one that is learned, an input of an earlier step, a matrix with heads."""
    torch.manual_seed(0)
    text = (
        "cell Given\ninput x, c: 3 per sequence\nstate h = learned, m = 1\nweights V: matrix, S: matrix\n"
        "m[t] = 0.5*m[t-1] + h[t-1]\nh[t] = sigmoid(V@c + S@x[t-1])*tanh(W@x + R@h[t-1] + m[t-1])\n"
    )
    layer = rnncc.compile(text, "given").Given(IN, H, bidirectional=True, num_heads=2, backend=backend)
    model = Marked(layer).eval()

    def arguments(steps: int, batch: int) -> tuple[Tensor, ...]:
        lengths = torch.randint(0, steps + 1, (batch,))
        return torch.randn(steps, batch, IN), torch.randn(batch, 3), lengths, torch.rand(steps, batch) < 0.3

    shapes = ({0: "t", 1: "b"}, {0: "b"}, {0: "b"}, {0: "t", 1: "b"})
    program = torch.onnx.export(model, arguments(T, 2), dynamo=True, verbose=False, dynamic_shapes=shapes)
    assert program is not None
    assert [node.op_type for node in program.model.graph].count("Scan") == 2
    program.save(str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    names = [given.name for given in session.get_inputs()]
    for steps, batch in ((T, 2), (9, 5), (1, 1)):
        given = arguments(steps, batch)
        found = session.run(None, {name: value.numpy() for name, value in zip(names, given, strict=True)})
        with torch.no_grad():
            expected = model(*given)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b.numpy(), atol=2e-6, rtol=2e-6)


@pytest.mark.filterwarnings("ignore")  # of torch: this exporter is the older one, and a trace looks at sizes
def test_the_older_exporter_takes_one_number_of_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(rnncc.load("lstm").LSTM(IN, H)).eval()
    file, axes = tmp_path / "model.onnx", {"x": {0: "t", 1: "b"}}
    torch.onnx.export(
        model, (torch.randn(T, 3, IN),), file, dynamo=False, input_names=["x"], dynamic_axes=axes, verbose=False
    )
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(str(file))
    x = torch.randn(T, 5, IN)
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], model(x)[0].detach().numpy(), atol=2e-6)
    for steps in (T - 1, T + 1, 4 * T):
        with pytest.raises(Exception, match="Split"):
            session.run(None, {"x": torch.randn(steps, 3, IN).numpy()})


def test_a_program_with_our_ops_is_one_clear_error() -> None:
    program = torch.export.export(rnncc.load("lstm").LSTM(IN, H), (torch.randn(T, 3, IN),))
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"give it the model.*\[RNN722\]"):
        torch.onnx.export(program, dynamo=True, verbose=False)


@pytest.mark.long
@pytest.mark.parametrize(("file", "name"), [("gateddeltanet", "GatedDeltaNet"), ("gla", "GLA"), ("mlstm", "mLSTM")])
def test_matrix_states_with_any_number_of_steps(file: str, name: str, tmp_path: Path) -> None:
    """Within a step they have numbers that are no parameters: the power 1/16 of GLA's gate, what norms add to a sum."""
    torch.manual_seed(0)
    layer = getattr(rnncc.load(file), name)(IN, 2 * H, num_heads=2).eval()
    shapes = ({0: torch.export.Dim("time"), 1: torch.export.Dim("batch")},)
    with torch.no_grad():
        program = torch.onnx.export(layer, (torch.randn(T, 3, IN),), dynamo=True, verbose=False, dynamic_shapes=shapes)
    assert_as(layer, torch.randn(5, 4, IN), program, tmp_path / "model.onnx")
