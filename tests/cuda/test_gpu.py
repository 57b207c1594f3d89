"""Truth on a GPU: the ops of shipped cells against the float64 reference and against the CPU's ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from rnncc.language.read import read_source
from rnncc.machine.paths import locate
from rnncc.runtime.ops.segment_ops import saved_bytes
from tests.compiling import front

pytestmark = pytest.mark.gpu

CELLS = (
    "lstm", "gru", "elman", "slstm", "layernormlstm", "onlstm", "lmu", "mogrifierlstm", "scrn", "rhn",
    "mingru", "minlstm_log", "lru", "sru", "rwkv4",
    "gla", "retnet", "gateddeltanet", "mlstm", "plasticity", "fastweights", "masslstm", "ttt_linear", "comba",
    "deltanet", "deltaproduct", "gsa", "hgrn2", "kda", "mamba2", "mamba3", "mesanet", "rwkv7", "titans",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("name", CELLS)
def test_against_the_reference(name: str) -> None:
    for cell, _ in front(read_source(locate(name))):
        report = verify.verify(getattr(rnncc.load(name), cell.name), cell, device="cuda")
        assert [row for row in report.rows if not row.passed] == []
        assert {name: runner.device for name, runner in report.runners.items()} == {
            str(dtype).removeprefix("torch."): "cuda" for dtype in DTYPES
        }


def test_what_has_no_kernels_on_a_gpu_is_not_judged() -> None:
    ((cell, _),) = front(read_source(locate("elman")))
    case = (verify.Case(3, 2),)
    report = verify.verify(rnncc.load("elman").Elman, cell, device="cuda", dtypes=(torch.float64,), cases=case)
    assert report.runners["float64"].is_fallback and "torch.float64 on cuda" in report.runners["float64"].why
    assert not report.passed and not any(row.judged for row in report.rows)


def pair(name: str, *sizes: int, **keywords: Any) -> tuple[Any, Any]:
    """The same layer on the CPU and on the GPU."""
    layer_class = getattr(rnncc.load(name.lower()), name)
    torch.manual_seed(0)
    cpu, gpu = layer_class(*sizes, **keywords), layer_class(*sizes, device="cuda", **keywords)
    gpu.load_state_dict(cpu.state_dict())
    assert "GPU kernels" in gpu.explain()
    return cpu, gpu


def results(layer: Any, x: Tensor, cotangents: float = 1.0, /, **keywords: Any) -> dict[str, Tensor]:
    """Outputs, final states and every gradient, on the CPU. `cotangents`: how large those of the values are."""
    layer.zero_grad()
    x = x.to(next(layer.parameters()).device).requires_grad_()
    on_device = {key: value.to(x.device) if isinstance(value, Tensor) else value for key, value in keywords.items()}
    y, last = layer(x, **on_device)
    values = [y, *(last if isinstance(last, tuple) else (last,))]
    generator = torch.Generator().manual_seed(1)
    torch.autograd.backward(values, [cotangents * torch.randn(v.shape, generator=generator).to(v) for v in values])
    found = {f"value {i}": v for i, v in enumerate(values)} | {"d_x": x.grad}
    found |= {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {name: value.detach().cpu() for name, value in found.items() if value is not None}


def assert_close(ours: dict[str, Tensor], expected: dict[str, Tensor], bound: float = 2e-5) -> None:
    assert ours.keys() == expected.keys()
    errors = {name: verify.relative_error(ours[name], value) for name, value in expected.items()}
    assert {name: error for name, error in errors.items() if not error <= bound} == {}


@pytest.mark.parametrize("steps", [1, 7, 64])
@pytest.mark.parametrize("batch", [1, 3, 16, 200])
@pytest.mark.parametrize(("hidden", "heads"), [(1, 1), (15, 3), (48, 12), (96, 1), (1000, 1), (1056, 1)])
def test_sizes(steps: int, batch: int, hidden: int, heads: int) -> None:
    cpu, gpu = pair("LSTM", 5, hidden, num_heads=heads)
    x = torch.randn(steps, batch, 5)
    assert_close(results(gpu, x), results(cpu, x), 1e-4)


@pytest.mark.parametrize("given", [("lengths", "reset"), ("lengths",), ("reset",)])
@pytest.mark.parametrize("name", ["GRU", "LayerNormLSTM"])
def test_masks_directions_layers(name: str, given: tuple[str, ...]) -> None:
    cpu, gpu = pair(name, 7, 12, num_layers=2, bidirectional=True, num_heads=3)
    x = torch.randn(9, 5, 7)
    masks = {"lengths": torch.tensor([9, 1, 4, 3, 7]), "reset": torch.rand(9, 5) < 0.2}
    chosen = {mask: masks[mask] for mask in given}
    assert_close(results(gpu, x, **chosen), results(cpu, x, **chosen), 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "sLSTM", "LayerNormLSTM"])
def test_recompute(name: str, dtype: torch.dtype) -> None:
    """Gradients to the rounding of sums that another kernel takes in another order; a batch of 21,000 is two
    blocks."""
    plain, again = (
        pair(name, 24, 64, bidirectional=True, recompute=recompute)[1].to(dtype) for recompute in (False, True)
    )
    x = torch.randn(60, 350, 24).to(dtype)
    masks = {"lengths": torch.randint(1, 61, (350,)), "reset": torch.rand(60, 350) < 0.05}
    options: tuple[dict[str, Any], ...] = ({}, masks)
    for given in options:
        # Small ones: summed over a batch of 21,000 and back through layer norms, larger ones leave float16's range.
        ours, expected = (results(layer, x, 1e-3, **given) for layer in (again, plain))
        assert_close(ours, expected, max(1e-4, torch.finfo(dtype).eps))
    held = []
    for layer in (plain, again):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        output, last = layer(x.cuda())
        held.append(torch.cuda.memory_allocated() - before)
        del output, last
    (segment,) = plain.spec.segments
    kept = [saved_bytes(segment, plain._sizes[0], x.cuda(), recompute=recompute) for recompute in (False, True)]
    # torch's allocator rounds each tensor up, to at most 2 MiB more.
    spared, tensors = 2 * 60 * 350 * (kept[0] - kept[1]), 2 * len(segment.plain.saved)
    assert kept[1] < kept[0] and abs(held[0] - held[1] - spared) <= tensors * 2**21


@pytest.mark.parametrize("directions", [1, 2])
def test_no_steps_and_no_columns(directions: int) -> None:
    _, gpu = pair("LSTM", 4, 8, bidirectional=directions == 2)
    h = torch.randn(directions, 3, 8, device="cuda")
    y, (h_n, c_n) = gpu(torch.zeros(0, 3, 4, device="cuda"), (h, h))
    assert y.shape == (0, 3, 8 * directions) and torch.equal(h_n, h) and torch.equal(c_n, h)
    assert gpu(torch.zeros(5, 0, 4, device="cuda"))[0].shape == (5, 0, 8 * directions)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_column_touches_no_other(dtype: torch.dtype, poison: float) -> None:
    _, gpu = pair("LSTM", 6, 40)
    gpu = gpu.to(dtype)
    x = torch.randn(12, 20, 6, device="cuda", dtype=dtype)
    clean = gpu(x)[0]
    x[3, 5] = poison
    poisoned = gpu(x)[0]
    others = [entry for entry in range(20) if entry != 5]
    assert torch.equal(poisoned[:, others], clean[:, others]) and not torch.equal(poisoned[:, 5], clean[:, 5])


def test_twice_the_same() -> None:
    _, gpu = pair("GRU", 6, 33)
    x = torch.randn(20, 17, 6, device="cuda", requires_grad=True)
    loss = gpu(x)[0].square().sum()
    wanted = [x, *gpu.parameters()]
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    second = torch.autograd.grad(loss, wanted)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def on_side_stream(run: Callable[[], Tensor]) -> Tensor:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = run()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def in_a_graph(run: Callable[[], Tensor]) -> Tensor:
    on_side_stream(run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    result.fill_(float("nan"))
    graph.replay()
    return result


@pytest.mark.parametrize("way", [on_side_stream, in_a_graph])
def test_streams_and_graphs(way: Callable[[Callable[[], Tensor]], Tensor]) -> None:
    _, gpu = pair("LSTM", 6, 40)
    x = torch.randn(30, 9, 6, device="cuda")

    def run() -> Tensor:
        with torch.no_grad():
            output: Tensor = gpu(x)[0]
            return output

    expected = run()
    assert torch.equal(way(run), expected)


def test_mixed_dtypes_of_states_and_autocast() -> None:
    module = rnncc.load("lstm")
    layer = module.LSTM(6, 24, device="cuda", dtype=torch.bfloat16, state_dtype=torch.float32)
    x = torch.randn(8, 4, 6, device="cuda", dtype=torch.bfloat16)
    whole, last = layer(x)
    half, middle = layer(x[:4])
    rest, end = layer(x[4:], middle)
    assert torch.equal(torch.cat((half, rest)), whole) and all(map(torch.equal, last, end))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y, _ = module.LSTM(6, 24, device="cuda")(x.float())
    assert y.dtype == torch.bfloat16
