"""Calls that may compile fused kernels: which of them do, also many at once, and what becomes of failures."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rnncc
from rnncc.diagnostics import InternalError
from rnncc.runtime import fused
from rnncc.runtime.run import run_segment
from tests.runtime.first_use import CELL, SEGMENT, SIZES, wanted


def failing_nvcc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = folder / "nvcc"
    nvcc.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "release 0" && exit 0\necho "error: no" >&2; exit 2\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_failing_nvcc_is_one_warning(
    on_gpu: Any, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_nvcc(tmp_path, monkeypatch)
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="the alternating kernel runs") as caught:
        on_gpu(x)
    assert len(caught) == 1
    log = re.search(r"everything it said is in (\S+log)", str(caught[0].message))
    assert log and "error: no" in Path(log[1]).read_text(encoding="utf-8")
    with warnings.catch_warnings(action="error"):
        on_gpu(x)
    assert next(iter(fused._STATE.settled.values())).startswith("the compiler failed on lstm: error: no")
    assert spied.added == 0


def test_no_nvcc_is_a_reason(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    with warnings.catch_warnings(action="error"):
        on_gpu(x)
        monkeypatch.setattr(fused, "settle", lambda wanted: pytest.fail("asked again"))
        on_gpu(x)
    (said,) = fused._STATE.settled.values()
    assert "nvcc, which is neither on PATH" in said and said in fused.explain(wanted(), said)


@pytest.mark.parametrize(
    "error", [ImportError("no lark"), InternalError("a step"), OSError(37, "No locks available"), ValueError("size")]
)
def test_whatever_goes_wrong_is_one_warning(error: Exception, on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def compile_fused(*given: Any) -> Any:
        calls.append(given)
        raise error

    monkeypatch.setattr("rnncc.compiler.compile_fused", compile_fused)
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    # Where warnings are errors, there is one of them.
    with warnings.catch_warnings(action="error"):
        with pytest.raises(UserWarning, match=re.escape(f"{error}; the alternating kernel runs")):
            on_gpu(x)
        on_gpu(x)
    assert len(calls) == 1
    assert list(fused._STATE.settled.values()) == [f"{type(error).__name__}: {error}"]


@pytest.mark.parametrize("text", ["", "lstm_0_forward bf16 64\n"])
def test_kernels_that_cannot_be_read_are_one_warning(
    text: str, on_gpu: Any, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fused.txt").write_text(text)
    monkeypatch.setattr("rnncc.compiler.compile_fused", lambda *given: (tmp_path, ""))
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="fused kernel for .*; the alternating kernel runs"):
        on_gpu(x)
    with warnings.catch_warnings(action="error"):
        on_gpu(x)
    assert fused._STATE.lines == [] and spied.added == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[fused.Wanted]:
    """What was to be compiled."""
    found: list[fused.Wanted] = []
    compiled = threading.Event()

    def settle(wanted: fused.Wanted) -> tuple[str, bool]:
        found.append(wanted)
        compiled.wait(0.05)
        return "", False

    monkeypatch.setattr(fused, "settle", settle)
    return found


def test_nothing_is_compiled_where_nothing_may(
    on_gpu: Any, asked: list[fused.Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    on_gpu(x[:1])
    with FakeTensorMode():
        on_gpu(torch.zeros(2, 1, 256))
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        on_gpu(x)
    assert asked == []
    on_gpu(x)  # none of these counts as having asked
    on_gpu(torch.zeros(9, 5, 256, dtype=torch.bfloat16))
    assert [(w.segment, w.units, w.heads, w.dtype) for w in asked] == [("lstm_0", 64, 1, torch.bfloat16)]


def test_both_directions_ask_for_kernels_of_their_own(on_gpu: Any, asked: list[fused.Wanted]) -> None:
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    for directions in (1, 2, 2, 1):
        on_gpu(x, directions)
    assert [(w.heads, w.directions, w.made_for) for w in asked] == [(1, 1, (1,)), (1, 2, (1, 2))]


@pytest.fixture
def autocast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Autocast to float16 on GPUs; the context manager does nothing without one."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_autocast_decides_the_dtype(dtype: torch.dtype, on_gpu: Any, asked: list[fused.Wanted], autocast: None) -> None:
    on_gpu(torch.zeros(2, 1, 256, dtype=dtype))
    assert [w.dtype for w in asked] == [dtype if dtype == torch.float64 else torch.float16]


def test_a_layer_explains_what_autocast_runs(autocast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = rnncc.load("lstm").LSTM(8, 64)
    with FakeTensorMode():
        weight = torch.empty(256, 8, device="cuda")
    monkeypatch.setattr(layer, "parameters", lambda: iter([weight]))
    monkeypatch.setattr(layer, "_choose", lambda x: (object(), "one launch a loop"))
    described = SimpleNamespace(describe=lambda *given: [f"runs {given[4]} on {given[5]}", f"batch {given[6]}"])
    monkeypatch.setitem(type(layer).explain.__globals__, "fused", described)  # the package has a runtime of its own
    text = layer.explain(32)
    assert "lstm_0: runs torch.float16 on 0\n    batch 32\n" in text
    with pytest.raises(ValueError, match="batch_size must be greater than zero"):
        layer.explain(batch_size=0)
    kept = re.compile(r"keeps (\d+) bytes")
    torch.set_autocast_enabled("cuda", False)
    without = layer.explain()
    assert "lstm_0: runs torch.float32 on 0" in without
    assert int(kept.findall(text)[0]) < int(kept.findall(without)[0])


def test_threads_compile_once(on_gpu: Any, asked: list[fused.Wanted]) -> None:
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    threads = [threading.Thread(target=on_gpu, args=(x,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


def test_sizes_are_compiled_side_by_side(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=10)

    def settle(wanted: fused.Wanted) -> tuple[str, bool]:
        both.wait()
        return "", False

    monkeypatch.setattr(fused, "settle", settle)
    inputs = [torch.zeros(2, 1, 256, dtype=dtype) for dtype in (torch.bfloat16, torch.float16)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(on_gpu, inputs))
    assert len(fused._STATE.settled) == 2


def test_a_child_that_is_forked_meanwhile_is_not_kept_waiting(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    began, release = threading.Event(), threading.Event()

    def settle(wanted: fused.Wanted) -> tuple[str, bool]:
        began.set()
        assert release.wait(30)
        return "", False

    monkeypatch.setattr(fused, "settle", settle)
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    with ThreadPoolExecutor(1) as pool:
        parent = pool.submit(on_gpu, x)
        assert began.wait(10)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            fused.settle = lambda wanted: ("", False)
            on_gpu(x)
            os._exit(len(fused._STATE.settled))
        try:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        finally:
            release.set()
        parent.result()


def test_a_loop_on_a_gpu_is_prepared_but_not_while_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    monkeypatch.setattr(fused, "prepare", lambda *given: prepared.append(given))
    kernels: Any = SimpleNamespace(run=lambda name, x, *given: ([], [], []))
    stream: Any = SimpleNamespace(is_cuda=True, requires_grad=False)

    def call() -> None:
        rest: Any = ([], [], None, None, [], SIZES, [True, False], [], False)
        run_segment(CELL, CELL.segments[0], kernels, [stream], *rest)

    call()
    assert prepared == [(CELL, SEGMENT, stream, SIZES, 2)]
    stream.is_cuda = False
    call()
    stream.is_cuda = True
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    call()
    assert len(prepared) == 1
