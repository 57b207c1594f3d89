"""Calls that may compile fused kernels: which of them do, also many at once, and what becomes of failures."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rnncc
from rnncc.language.diagnostics import InternalError
from rnncc.runtime.kernels import ahead, first_use, fused
from rnncc.runtime.kernels.fused import Answer, Outcome
from rnncc.stages.build import nvrtc
from tests.compilers import replace_nvrtc
from tests.fresh import succeeds_in_a_fork
from tests.runtime.first_use import wanted

RUNS = Answer(Outcome.RUNS)


SAID = "no fused kernel for 1 head with head_dim 64, bfloat16: {}; the alternating kernel runs, which is slower"


def test_a_failing_nvrtc_is_one_warning(
    on_gpu: Any, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_nvrtc(tmp_path, monkeypatch, 'echo "error: no" >&2; exit 2')
    with pytest.warns(UserWarning, match="the alternating kernel runs") as caught:
        on_gpu()
    assert len(caught) == 1
    log = re.search(r"everything it said is in (\S+log)", str(caught[0].message))
    assert log and "error: no" in Path(log[1]).read_text(encoding="utf-8")
    with warnings.catch_warnings(action="error"):
        on_gpu()
        on_gpu(100)  # also a long call has nothing to add
    ahead.finish()  # the backward's fail, too
    assert {key[1] for key in fused.STATE.answers} == {"forward", "backward"}
    for answer in fused.STATE.answers.values():
        assert answer.outcome is Outcome.FAILED
        assert answer.reason.startswith("the compiler failed on lstm: error: no")
    assert spied.added == 0


def test_no_nvrtc_is_one_warning_of_a_long_call(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    with warnings.catch_warnings(action="error"):
        on_gpu(31)
    monkeypatch.setattr(first_use, "settle", lambda *wanted: pytest.fail("asked again"))
    reason = "need NVRTC, NVIDIA's compiler library, which is not installed"
    with pytest.warns(UserWarning, match=reason) as caught:
        on_gpu(32)
    assert len(caught) == 1
    with warnings.catch_warnings(action="error"):
        on_gpu(33)
        on_gpu(5)
    (answer,) = fused.STATE.answers.values()
    assert reason in answer.reason and answer.reason in fused.explain(wanted(), answer.reason)


@pytest.mark.parametrize("level", ["error", "warning", "info"])
def test_a_setting_hides_what_is_slow(level: str, on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_COMPILE", "0")
    monkeypatch.setenv("RNNCC_LOG", level)
    with warnings.catch_warnings(record=True, action="always") as caught:
        on_gpu(32)
    said = SAID.format("RNNCC_COMPILE=0 keeps a fused one from being compiled; `rnncc build lstm")
    assert [str(warning.message)[: len(said.partition("; the")[0])] for warning in caught] == (
        [] if level == "error" else [said.partition("; the")[0]]
    )


def test_every_size_and_dtype_has_a_warning_of_its_own(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_COMPILE", "0")
    for dtype, directions in ((torch.bfloat16, 1), (torch.bfloat16, 2), (torch.float32, 1)):
        both = "in both directions, " if directions == 2 else ""
        with pytest.warns(UserWarning, match=both + str(dtype).removeprefix("torch.")):
            on_gpu(32, dtype, directions)


def test_tensors_that_a_fused_kernel_does_not_take_are_one_warning(
    on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_use, "settle", lambda *wanted: RUNS)
    with warnings.catch_warnings(action="error"):
        on_gpu(32)
        on_gpu(31, fits=False)
    with pytest.warns(UserWarning, match="do not all begin at multiples of 16 bytes; the alternating kernel runs"):
        on_gpu(32, fits=False)
    with warnings.catch_warnings(action="error"):
        on_gpu(64, fits=False)


@pytest.mark.parametrize(
    "error", [ImportError("no lark"), InternalError("a step"), OSError(37, "No locks available"), ValueError("size")]
)
def test_whatever_goes_wrong_is_one_warning(error: Exception, on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def compile_fused(*given: Any) -> Any:
        calls.append(given)
        raise error

    monkeypatch.setattr("rnncc.on_demand.compile_fused", compile_fused)
    reason = f"{type(error).__name__}: {error}"
    # Where warnings are errors, the op raises one of them.
    with warnings.catch_warnings(action="error"):
        with pytest.raises(RuntimeError, match=re.escape("UserWarning: " + SAID.format(reason))):
            on_gpu()
        on_gpu()
    assert len(calls) == 1
    assert list(fused.STATE.answers.values()) == [Answer(Outcome.FAILED, reason)]


@pytest.mark.parametrize("path", ["/w\udcff/", "ü" * 3000, "x" + "ü" * 3000], ids=["bytes", "long", "longer"])
def test_every_error_can_be_said(path: str, on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that are no UTF-8, and messages that are cut."""

    def settle(wanted: fused.Wanted, meanwhile: Callable[[], None]) -> Answer:
        raise ValueError(path)

    monkeypatch.setattr(first_use, "settle", settle)
    with pytest.raises(RuntimeError, match=r"^ValueError: .{4,}$"):
        on_gpu()


def test_a_setting_that_means_nothing_is_the_ops_error(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_COMPILE", "maybe")
    with pytest.raises(RuntimeError, match="ValueError: RNNCC_COMPILE is 'maybe'"):
        on_gpu()
    monkeypatch.setenv("RNNCC_COMPILE", "0")
    monkeypatch.setenv("RNNCC_LOG", "loud")
    with pytest.raises(RuntimeError, match="ValueError: RNNCC_LOG is 'loud': set it to debug, info, warning or error"):
        on_gpu(32)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_it_compiles_is_pythons(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(wanted: fused.Wanted, meanwhile: Callable[[], None]) -> Answer:
        raise KeyboardInterrupt

    monkeypatch.setattr(first_use, "settle", settle)
    with pytest.raises((KeyboardInterrupt, RuntimeError)) as caught:
        on_gpu()
        time.sleep(1)  # where the interrupt comes, if it came not at once
    assert caught.type is KeyboardInterrupt or isinstance(caught.value.__context__, KeyboardInterrupt)


@pytest.mark.parametrize("text", ["", "lstm_0_forward bf16 64\n"])
def test_kernels_that_cannot_be_read_are_one_warning(
    text: str, on_gpu: Any, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fused.txt").write_text(text)
    monkeypatch.setattr("rnncc.on_demand.compile_fused", lambda *given: (tmp_path, ""))
    with pytest.warns(UserWarning, match="fused kernel for .*; the alternating kernel runs"):
        on_gpu()
    with warnings.catch_warnings(action="error"):
        on_gpu()
    assert fused.STATE.folders == [] and spied.added == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[fused.Wanted]:
    """What was to be compiled."""
    found: list[fused.Wanted] = []
    compiled = threading.Event()

    def settle(wanted: fused.Wanted, meanwhile: Callable[[], None]) -> Answer:
        found.append(wanted)
        compiled.wait(0.05)
        return RUNS

    monkeypatch.setattr(first_use, "settle", settle)
    return found


def test_a_single_step_asks_for_nothing(on_gpu: Any, asked: list[fused.Wanted]) -> None:
    on_gpu(1)
    assert asked == []
    for steps in (2, 9, 100):
        on_gpu(steps)
        ahead.finish()
    size = "lstm_0", 64, 1, torch.bfloat16
    assert [(w.segment, w.head_dim, w.heads, w.dtype, *w.programs) for w in asked] == [
        (*size, "forward"), (*size, "backward")
    ]  # fmt: skip


def test_what_a_call_does_not_run_is_not_compiled(on_gpu: Any, asked: list[fused.Wanted]) -> None:
    for program in ("inference", "forward", "backward", "masked_backward", "masked_forward", "masked_inference"):
        on_gpu(program=program)
        ahead.finish()
    assert [w.programs for w in asked] == [
        ("inference",), ("forward",), ("backward",), ("masked_backward",), ("masked_forward",), ("masked_inference",)
    ]  # fmt: skip
    assert {w.segment for w in asked} == {"lstm_0"}


def test_one_warning_for_all_that_a_size_lacks(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_COMPILE", "0")
    with pytest.warns(UserWarning, match="the alternating kernel runs") as caught:
        for program in ("inference", "forward", "masked_forward"):
            on_gpu(32, program=program)
    assert len(caught) == 1


def test_both_directions_ask_for_kernels_of_their_own(on_gpu: Any, asked: list[fused.Wanted]) -> None:
    for directions in (1, 2, 2, 1):
        on_gpu(directions=directions)
        ahead.finish()
    assert [(w.heads, w.directions, w.made_for) for w in asked[::2]] == [(1, 1, (1,)), (1, 2, (1, 2))]
    assert [w.programs for w in asked] == 2 * [("forward",), ("backward",)]


def test_the_backwards_kernels_are_compiled_while_the_forwards_are(
    on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward waits for its own alone. Those of the backward begin once compilers run for the forward, and not
    before: planning takes turns in one process."""
    said: list[str] = []
    began, release = threading.Event(), threading.Event()

    def settle(wanted: fused.Wanted, meanwhile: Callable[[], None]) -> Answer:
        if wanted.programs == ("backward",):
            began.set()
            assert release.wait(10)
        else:
            assert not began.wait(0.05)
            meanwhile()
            assert began.wait(10)
        said.extend(wanted.programs)
        return RUNS

    monkeypatch.setattr(first_use, "settle", settle)
    on_gpu(2)
    assert said == ["forward"]
    release.set()
    on_gpu(2, program="backward")
    assert said == ["forward", "backward"]


def test_they_are_compiled_too_where_the_forwards_were_kept(
    on_gpu: Any, asked: list[fused.Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(2)
    ahead.finish()
    (backward,) = [key for key in fused.STATE.answers if key[1] == "backward"]
    del fused.STATE.answers[backward]
    on_gpu(40)
    ahead.finish()
    assert [w.programs for w in asked] == [("forward",), ("backward",), ("backward",)]


@pytest.fixture
def autocast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Autocast to float16 on GPUs; the context manager does nothing without one."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


def test_a_layer_explains_what_autocast_runs(autocast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = rnncc.load("lstm").LSTM(8, 64)
    with FakeTensorMode():
        weight = torch.empty(256, 8, device="cuda")
    monkeypatch.setattr(layer, "parameters", lambda: iter([weight]))
    monkeypatch.setattr(layer, "_choose", lambda x: (object(), "one launch a loop"))
    described = SimpleNamespace(
        describe=lambda *given: [f"runs {given[4].dtype} on {given[4].get_device()}", f"batch {given[5]}"]
    )
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
    threads = [threading.Thread(target=on_gpu) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ahead.finish()
    assert sorted(w.programs for w in asked) == [("backward",), ("forward",)]


def test_sizes_are_compiled_side_by_side(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=10)

    def settle(wanted: fused.Wanted, meanwhile: Callable[[], None]) -> Answer:
        both.wait()
        return RUNS

    monkeypatch.setattr(first_use, "settle", settle)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(on_gpu, program="backward"), (2, 2), (torch.bfloat16, torch.float16)))
    assert len(fused.STATE.answers) == 2


def test_a_child_that_is_forked_meanwhile_is_not_kept_waiting(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    began, release = threading.Event(), threading.Event()

    def settle(wanted: fused.Wanted, meanwhile: Callable[[], None]) -> Answer:
        began.set()
        assert release.wait(30)
        return RUNS

    def settled_at_once() -> bool:
        first_use.settle = lambda *wanted: RUNS
        on_gpu()
        return "forward" in {program for _, program, *_ in fused.STATE.answers}

    monkeypatch.setattr(first_use, "settle", settle)
    with ThreadPoolExecutor(1) as pool:
        parent = pool.submit(on_gpu)
        assert began.wait(10)
        try:
            assert succeeds_in_a_fork(settled_at_once, 10)
        finally:
            release.set()
        parent.result()


def test_who_has_no_python_is_told_on_stderr(
    on_gpu: Any, spied: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spied.library.rnncc_set_kernel_handler(None)
    on_gpu(31)
    assert capfd.readouterr().err == ""
    for _ in range(2):
        on_gpu(32)
    said = capfd.readouterr().err
    assert said.startswith(
        "rnncc: no fused kernel runs lstm_0_forward (1 heads of 64, bf16): the package has none of this size"
    )
    assert said.count("\n") == 1
    monkeypatch.setenv("RNNCC_LOG", "error")
    on_gpu(32, torch.float16)
    assert capfd.readouterr().err == ""
