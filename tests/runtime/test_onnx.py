"""ONNX: torch's exporter writes the loop out step by step, with any backend, and ONNX Runtime runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import rnncc

T, IN, H = 3, 8, 8


@pytest.mark.parametrize(("file", "name", "backend"), [("lstm", "LSTM", "cpu"), ("onlstm", "ONLSTM", None)])
def test_against_onnx_runtime(file: str, name: str, backend: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = getattr(rnncc.load(file), name)(IN, H, backend=backend, bidirectional=file == "lstm").eval()
    with torch.no_grad():
        program = torch.onnx.export(
            layer, (torch.randn(T, 3, IN),), dynamo=True, verbose=False,
            dynamic_shapes=({1: torch.export.Dim("batch")},),
        )  # fmt: skip
        assert program is not None
        program.save(str(tmp_path / "model.onnx"))
        x = torch.randn(T, 7, IN)
        output, states = layer(x)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = [output, *(states if isinstance(states, tuple) else (states,))]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), atol=2e-6, rtol=2e-6)


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
