"""Fused kernels are right (needs a GPU)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from rnncc.compiler import build_package
from rnncc.ir.problem import Problem
from rnncc.paths import locate


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fused")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def package(folder: Path, cell: str, units: int, dtype: str) -> ModuleType:
    name = f"{cell}_{units}_{dtype}"
    if not (folder / name).exists():
        of_problem = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}[dtype]
        build_package(locate(cell), folder, name=name, problems=(Problem(units, 1, of_problem),))
    return importlib.import_module(name)


def kernels_of(run: Any) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return {event.name for event in profile.events()}


BOUNDS = {"f32": 1e-5, "bf16": 2e-2, "f16": 2.5e-3}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cell", "name", "hidden", "heads", "dtype"),
    [
        ("lstm", "LSTM", 192, 3, "bf16"),
        ("lstm", "LSTM", 256, 1, "f16"),
        ("lstm", "LSTM", 1000, 1, "bf16"),
        ("gru", "GRU", 128, 2, "f16"),
        ("gru", "GRU", 768, 1, "bf16"),
        ("elman", "Elman", 96, 1, "bf16"),
        ("slstm", "sLSTM", 128, 2, "f16"),
        ("peepholelstm", "PeepholeLSTM", 64, 1, "f16"),
        ("lstm", "LSTM", 192, 3, "f32"),
        ("lstm", "LSTM", 256, 1, "f32"),
        ("gru", "GRU", 512, 1, "f32"),
        ("slstm", "sLSTM", 768, 1, "f32"),
    ],
)
def test_truth(cell: str, name: str, hidden: int, heads: int, dtype: str, packages: Path) -> None:
    layer_class = getattr(package(packages, cell, hidden // heads, dtype), name)
    torch.manual_seed(0)
    layer = layer_class(24, hidden, num_heads=heads, device="cuda", dtype=DTYPES[dtype])
    reference = layer_class(24, hidden, num_heads=heads, dtype=torch.float64)
    reference.load_state_dict({key: value.double().cpu() for key, value in layer.state_dict().items()})
    for steps, columns, masked in ((1, 1, False), (7, 3, False), (33, 16, False), (9, 5, True), (20, 70, False)):
        x = torch.randn(steps, columns, 24, dtype=DTYPES[dtype])
        given: dict[str, Any] = {}
        if masked:
            given = {"lengths": [9, 1, 4, 2, 7], "reset": torch.rand(steps, columns) < 0.2}
        ours, expected = results(layer, x, **given), results(reference, x.double(), **given)
        errors = {key: verify.relative_error(ours[key], value) for key, value in expected.items()}
        assert {key: error for key, error in errors.items() if not error <= BOUNDS[dtype]} == {}, (steps, columns)
    used = kernels_of(lambda: results(layer, torch.randn(5, 4, 24, dtype=DTYPES[dtype])))
    assert any(f"_backward_{dtype}_{hidden // heads}_" in kernel for kernel in used)


def results(layer: Any, x: Tensor, **given: Any) -> dict[str, Tensor]:
    """Outputs, final states and every gradient, on the CPU in float64."""
    layer.zero_grad()
    device = next(layer.parameters()).device
    x = x.to(device).requires_grad_()
    on_device = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in given.items()}
    y, last = layer(x, **on_device)
    values = [y, *(last if isinstance(last, tuple) else (last,))]
    generator = torch.Generator().manual_seed(1)
    torch.autograd.backward(values, [torch.randn(v.shape, generator=generator).to(v) for v in values])
    found = {f"value {i}": v for i, v in enumerate(values)} | {"d_x": x.grad}
    found |= {key: parameter.grad for key, parameter in layer.named_parameters()}
    return {key: value.detach().cpu().double() for key, value in found.items() if value is not None}


@pytest.mark.gpu
def test_a_call_is_the_same_twice_and_in_a_graph(packages: Path) -> None:
    layer = package(packages, "lstm", 768, "bf16").LSTM(32, 768, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(50, 16, 32, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        once, again = layer(x)[0], layer(x)[0]
        assert torch.equal(once, again)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            layer(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = layer(x)[0]
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(once, captured)


@pytest.mark.gpu
def test_what_is_not_finite_stays_in_its_column(packages: Path) -> None:
    for units in (64, 768):
        layer = package(packages, "lstm", units, "bf16").LSTM(8, units, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(20, 6, 8, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            fine = layer(x)[0]
            x[3, 2], x[5, 4, 0] = float("nan"), float("inf")
            beside = layer(x)[0]
        assert beside[3:, 2].isnan().all()
        kept = [0, 1, 3, 5]
        assert torch.equal(fine[:, kept], beside[:, kept])


@pytest.mark.gpu
def test_a_missing_kernel_is_compiled_at_first_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    layer = rnncc.load("lstm").LSTM(16, 96, num_heads=2, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(6, 3, 16, device="cuda", dtype=torch.bfloat16)
    reference = layer(x)[0]
    assert "alternating" in layer.explain() and "RNNCC_COMPILE=0" in layer.explain()
    monkeypatch.setenv("RNNCC_COMPILE", "1")
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(tmp_path))
    sys.modules[f"{type(layer).__module__.rpartition('.')[0]}._runtime.fused"]._STATE.settled.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = layer(x)[0]
    graph.replay()
    assert "compiling" not in capfd.readouterr().err, "a graph is captured with the kernels that there are"
    used = kernels_of(lambda: results(layer, x.cpu()))
    assert "compiled LSTM for 2 heads of 48 units, bf16" in capfd.readouterr().err
    assert {kernel.split("_")[2] for kernel in used if "_bf16_48_" in kernel} == {"forward", "backward"}
    assert "fused (" in layer.explain()
    ours = layer(x)[0]
    for other in (reference, captured):
        assert verify.relative_error(ours.double(), other.double()) <= BOUNDS["bf16"]
