"""One launch per step, after cuBLAS's product, for loops of one head of any size."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import rnncc
from rnncc import verify
from rnncc.ir.lowered import fused_programs
from rnncc.language.source import Source
from rnncc.machine.paths import locate
from tests.compiling import lowered
from tests.cuda.harness import DEVICE, DTYPES, add_kernels, assert_true, draw, launches_of
from tests.cuda.kernels import plan
from tests.cuda.shapes import compiled, stepwise_kernels
from tests.cuda.test_calls import assert_same, in_a_graph
from tests.cuda.test_directions import output_and_gradients

STEPS = 9
# Two operands to one sum by one matrix, backward two sums of one operand.
SHARED = """cell Shared
state h, z
q = R@z[t-1]
p = R@h[t-1]
z[t] = z[t-1] + 0.1*(tanh(p + q + W@x + b) - h[t-1])
h[t] = h[t-1] + 0.1*z[t]
"""


@pytest.fixture
def by_steps(tmp_path: Path) -> Callable[[str, int, str], ModuleType]:
    """A package that runs loops of such a head_dim in a dtype so."""

    def made(cell: str, head_dim: int, dtype: str, fewest: int = 1) -> ModuleType:
        wanted = stepwise_kernels(plan(cell), head_dim, dtype, fewest)
        folder = compiled(plan(cell), wanted, tmp_path)
        module = rnncc.compile(locate(cell).read_text(encoding="utf-8"), f"{cell}_steps_{head_dim}_{dtype}_{fewest}")
        assert add_kernels(module, folder) == len(wanted.kernels)
        return module

    return made


def counted(names: list[str], program: str) -> int:
    return sum("_stepwise" in name and f"_0_{program}_" in name for name in names)


def test_which_loops_are_run_so() -> None:
    every = {"forward", "inference", "backward", "masked_forward", "masked_inference", "masked_backward"}
    for cell in ("lstm", "gru", "slstm", "elman", "peepholelstm"):
        found = stepwise_kernels(plan(cell), 64, "bf16").kernels
        assert {program.removeprefix(f"{cell}_0_") for program, _ in found} == every
    # Two operands of one sum, two sums of one operand, the other way round; matrices with others between them.
    for cell in ("cornn", "intersectionrnn"):
        assert not stepwise_kernels(plan(cell), 64, "bf16").kernels
    shared = lowered(Source("shared.rnn", SHARED))
    assert list(fused_programs(shared)) and not stepwise_kernels(shared, 64, "bf16").kernels


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("cell", "head_dim", "batch"), [("lstm", 64, 5), ("gru", 40, 33), ("slstm", 72, 1), ("elman", 256, 200)]
)
def test_against_the_reference(
    cell: str, head_dim: int, batch: int, dtype: str, by_steps: Callable[..., ModuleType]
) -> None:
    call = draw(by_steps(cell, head_dim, dtype), cell, head_dim, 1, batch, STEPS, DTYPES[dtype])
    names = launches_of(call.run)
    assert [counted(names, program) for program in ("forward", "backward", "inference")] == [STEPS + 1] * 3
    assert_true(call, DTYPES[dtype])
    assert_same(in_a_graph(call.run), call.run())


@pytest.mark.gpu
def test_few_steps(by_steps: Callable[..., ModuleType]) -> None:
    """A single step has kernels of its own (test_single.py)."""
    call = draw(by_steps("lstm", 64, "fp16"), "lstm", 64, 1, 3, 2, torch.float16)
    assert counted(launches_of(call.run), "forward") == 3
    assert_true(call, torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cell", "dtype", "steps", "graphs"), [("lstm", "bf16", 31, 0), ("gru", "fp16", 32, 6), ("slstm", "fp32", 123, 11)]
)
def test_most_steps_come_from_a_graph(
    cell: str, dtype: str, steps: int, graphs: int, by_steps: Callable[..., ModuleType]
) -> None:
    """From 32 steps on; what does not fill one, and all of a call that is captured, come by themselves: with the same
    bits."""
    module = by_steps(cell, 64, dtype)
    call, short = (draw(module, cell, 64, 1, 5, count, DTYPES[dtype]) for count in (steps, STEPS))
    names = launches_of(call.run)
    assert [counted(names, program) for program in ("forward", "backward", "inference")] == [steps + 1] * 3
    # The count of steps before a graph is set each time.
    settings = [sum("Memset" in name for name in found) for found in (names, launches_of(short.run))]
    assert settings[0] - settings[1] == 3 * graphs
    assert_true(call, DTYPES[dtype])
    assert_same(in_a_graph(call.run), call.run())


@pytest.mark.gpu
def test_calls_do_not_wait_for_each_other(by_steps: Callable[..., ModuleType]) -> None:
    """A call's graph and workspace are given back while it still runs."""
    layer = by_steps("lstm", 256, "bf16").LSTM(8, 256, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(400, 64, 8, device=DEVICE, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = layer(x)[0]
        torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
        outputs = [layer(x)[0] for _ in range(10)]
        assert not torch.cuda.current_stream().query()
    assert all(torch.equal(output, expected) for output in outputs)


@pytest.mark.gpu
def test_threads_with_streams_of_their_own(by_steps: Callable[..., ModuleType]) -> None:
    layer = by_steps("lstm", 64, "bf16").LSTM(8, 64, device=DEVICE, dtype=torch.bfloat16)
    inputs = [torch.randn(100, 16, 8, device=DEVICE, dtype=torch.bfloat16) for _ in range(4)]
    expected = [output_and_gradients(layer, x) for x in inputs]

    def run(x: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            return [layer(x) for _ in range(10)]

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, inputs))
    torch.cuda.synchronize()
    for (output, *_), found in zip(expected, results, strict=True):
        assert all(torch.equal(y, output) for y, _ in found)


@pytest.mark.gpu
def test_while_another_stream_is_captured(by_steps: Callable[..., ModuleType]) -> None:
    layer = by_steps("lstm", 64, "bf16").LSTM(8, 64, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(100, 16, 8, device=DEVICE, dtype=torch.bfloat16)
    captured, other = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    total = torch.zeros(3, device=DEVICE)
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.stream(other):
        expected = layer(x)[0].clone()
        torch.cuda.synchronize()
        with torch.cuda.stream(captured):
            graph.capture_begin()
            total += 1
        output = layer(x)[0]
        with torch.cuda.stream(captured):
            graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, expected) and total.tolist() == [1, 1, 1]


@pytest.mark.gpu
def test_tf32_where_torch_allows_it(by_steps: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    call = draw(by_steps("lstm", 256, "fp32"), "lstm", 256, 1, 64, 40, torch.float32)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    assert_true(call, torch.float32)
    exact = call.run()["y"]
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    assert 1e-5 < verify.relative_error(call.run()["y"], exact.double()) < 1e-2


@pytest.mark.gpu
def test_fewer_columns_are_run_otherwise(by_steps: Callable[..., ModuleType]) -> None:
    module = by_steps("lstm", 64, "bf16", 8)
    for batch, counts in ((7, 0), (8, STEPS + 1)):
        call = draw(module, "lstm", 64, 1, batch, STEPS, torch.bfloat16)
        assert counted(launches_of(call.run), "backward") == counts
        assert_true(call, torch.bfloat16)


@pytest.mark.gpu
def test_float16_sums_in_float32(by_steps: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torch adds up in float16."""
    call = draw(by_steps("lstm", 40, "fp16"), "lstm", 40, 1, 5, STEPS, torch.float16)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True)
    assert counted(launches_of(call.run), "forward") == STEPS + 1
    assert_true(call, torch.float16)


@pytest.mark.gpu
def test_several_heads_are_run_otherwise(by_steps: Callable[..., ModuleType]) -> None:
    call = draw(by_steps("lstm", 64, "bf16"), "lstm", 64, 3, 5, STEPS, torch.bfloat16)
    assert not any("_stepwise" in name for name in launches_of(call.run))
    assert_true(call, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("given", [("lengths", "reset"), ("lengths",), ("reset",)])
def test_lengths_and_resets(given: tuple[str, ...], reverse: bool, by_steps: Callable[..., ModuleType]) -> None:
    masks = {
        "lengths": torch.tensor([9, 1, 4, 3, 7], device=DEVICE),
        "reset": torch.rand(STEPS, 5, generator=torch.Generator().manual_seed(0)).to(DEVICE) < 0.3,
    }
    chosen: dict[str, Any] = {name: masks[name] for name in given}
    call = draw(by_steps("lstm", 64, "bf16"), "lstm", 64, 1, 5, STEPS, torch.bfloat16, reverse=reverse, **chosen)
    assert counted(launches_of(call.run), "masked_backward") == STEPS + 1
    assert_true(call, torch.bfloat16)


@pytest.mark.gpu
def test_both_directions(by_steps: Callable[..., ModuleType]) -> None:
    """Both take one launch per step."""
    torch.manual_seed(2)
    layer = by_steps("gru", 64, "fp16").GRU(16, 64, bidirectional=True, device=DEVICE, dtype=torch.float16)
    other = rnncc.load("gru").GRU(16, 64, bidirectional=True, device=DEVICE, dtype=torch.float16)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(STEPS, 7, 16, device=DEVICE, dtype=torch.float16)
    assert counted(launches_of(lambda: layer(x)[0].sum().backward()), "forward") == STEPS + 1
    pairs = zip(output_and_gradients(layer, x), output_and_gradients(other, x), strict=True)
    errors = [verify.relative_error(a.double(), b.double()) for a, b in pairs]
    assert all(error <= verify.BOUNDS[torch.float16] for error in errors), errors


@pytest.mark.gpu
def test_packed_rows_are_run_otherwise(by_steps: Callable[..., ModuleType]) -> None:
    """The host does not know how many steps they have."""
    layer = by_steps("gru", 64, "bf16").GRU(16, 64, device=DEVICE, dtype=torch.bfloat16)
    rows = torch.randn(12, 16, device=DEVICE, dtype=torch.bfloat16)
    offsets = torch.tensor([0, 9, 12], device=DEVICE)
    names = launches_of(lambda: layer(rows, offsets=offsets, max_length=1000)[0].sum().backward())
    assert names and not any("_stepwise" in name for name in names)
