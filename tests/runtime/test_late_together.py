"""CPU kernels that a call has compiled, in several threads and processes at once."""

from __future__ import annotations

import multiprocessing
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from rnncc import on_demand
from tests.fresh import run_fresh, succeeds_in_a_fork
from tests.runtime.late import SECONDS, TEXT, compiled, linear, ones

ROOT = Path(__file__).resolve().parents[2]


def test_a_thread_of_autograds_is_the_first(late_module: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    """In a backward, on a thread that is not Python's main one."""

    def backward(gradient: Tensor) -> Tensor:
        assert threading.current_thread() is not threading.main_thread()
        made: Tensor = linear(late_module)[:, :3] * gradient
        return made

    def run() -> None:
        y: Any = x * 1
        y.register_hook(backward)
        torch.autograd.backward(y.sum())

    x = ones(2, 3).requires_grad_()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert x.grad is not None and torch.equal(x.grad, 3 * ones(2, 3))
    assert compiled(capfd.readouterr().err) == ["float64"]


def test_threads_have_it_compiled_once(late_module: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    began = threading.Barrier(4, timeout=SECONDS)
    layer, x = late_module.Late(3, 4).double(), ones(5, 2, 3)

    def run(_: int) -> Tensor:
        began.wait()
        output: Tensor = layer(x)[0]
        return output

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(run, range(4))
    assert all(torch.equal(first, other) for other in others)
    assert compiled(capfd.readouterr().err) == ["float64"]


def test_a_child_that_is_forked_meanwhile_is_not_kept_waiting(
    late_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, release = threading.Event(), threading.Event()
    compile_for_cpu = on_demand.compile_for_cpu

    def wait(*given: Any) -> Path:
        began.set()
        assert release.wait(SECONDS)
        return compile_for_cpu(*given)

    monkeypatch.setattr(on_demand, "compile_for_cpu", wait)
    layer, x = late_module.Late(3, 4).double(), ones(5, 2, 3)

    def compiled_at_once() -> Tensor:
        on_demand.compile_for_cpu = compile_for_cpu
        finite: Tensor = layer(x)[0].isfinite().all()
        return finite

    with ThreadPoolExecutor(1) as pool:
        parent = pool.submit(layer, x)
        assert began.wait(SECONDS)
        try:
            assert succeeds_in_a_fork(compiled_at_once, SECONDS)
        finally:
            release.set()
        assert parent.result()[0].isfinite().all()


def run_layer(layer: Any, x: Tensor, results: Any) -> None:
    results.put(layer(x)[0].detach().tolist())


def test_a_layer_in_another_process(late_module: ModuleType) -> None:
    """It comes pickled; that process has called nothing."""
    layer, x = late_module.Late(3, 4).double(), ones(5, 2, 3)
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()
    process = context.Process(target=run_layer, args=(layer, x, results))
    process.start()
    found = results.get(timeout=SECONDS)
    process.join()
    assert found == layer(x)[0].tolist()


PROGRAM = """
import sys, time, torch
from pathlib import Path
from rnncc.driver import load_module
from tests.runtime.late import request_of
layer = load_module(request_of({text!r}, "late_processes"), ()).Late(3, 4).double()
folder, own, other = map(Path, sys.argv[1:])
(folder / own).touch()
while not (folder / other).exists():
    time.sleep(0.01)
layer(torch.ones(5, 2, 3, dtype=torch.float64))[0].sum().backward()
"""


def test_processes_have_it_compiled_once(late_cache: Path, tmp_path: Path) -> None:
    def run(own: str, other: str) -> subprocess.CompletedProcess[str]:
        return run_fresh(PROGRAM.format(text=TEXT), [str(tmp_path), own, other], folder=ROOT)

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(run, ("one", "two"), ("two", "one")))
    said = "\n".join(done.stderr for done in both)
    assert [done.returncode for done in both] == [0, 0], said
    assert compiled(said) == ["float64"]
