"""Fused kernels at first use, but for running them: what is compiled, when, and what is said instead. The library is
the GPU part of a package's, whose index grows."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rnncc.paths import cells_dir, templates_dir
from rnncc.runtime import fused
from rnncc.runtime.run import run_segment
from rnncc.stages.build import own_code
from rnncc.stages.build.nvcc import nvcc_release
from rnncc.stages.build.toolchain import BINDING
from tests.cuda.sources import write_sources

needs_nvcc = pytest.mark.skipif(nvcc_release() is None, reason="no nvcc")
SIZES = {"H": 64, "num_heads": 1, "I": 8}
# As much of the LSTM's description as is read.
SEGMENT = SimpleNamespace(name="lstm_0", states=(SimpleNamespace(width=lambda sizes: sizes["H"]),))
CELL: Any = SimpleNamespace(name="LSTM", constants=(), sizes=(), segments=(SEGMENT,))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The GPU part of the LSTM's library, host side."""
    folder = tmp_path_factory.mktemp("host")
    write_sources("lstm", folder)
    torch_lib = Path(torch.__file__).parent / "lib"
    subprocess.run(
        ["g++", *BINDING, "-shared", f"-I{templates_dir() / 'include'}", "src/lstm_cuda.cpp", "-o", "lib.so",
         f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}", "-ltorch_cpu", "-lc10"],
        cwd=folder, check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(folder / "lib.so"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Spied:
    """A library that counts the kernels it was given."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.added = library, 0

    def rnncc_add_kernels(self, folder: bytes) -> int:
        count = int(self.library.rnncc_add_kernels(folder))
        self.added += count
        return count


@pytest.fixture
def spied(library: ctypes.CDLL, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spied]:
    """A package of the LSTM without fused kernels, just opened."""
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(cache))
    monkeypatch.delenv("RNNCC_COMPILE", raising=False)
    text = (cells_dir() / "lstm.rnn").read_text(encoding="utf-8")
    found: Any = Spied(library)
    fused.attach(tmp_path, found, {"source": text, "stem": "lstm", "code": own_code(), "fused": {"lstm_0": ""}})
    yield found
    fused.attach(tmp_path, found, {})


def wanted(units: int = 64, dtype: torch.dtype = torch.bfloat16, **changed: Any) -> fused.Wanted:
    given: dict[str, Any] = {"cell": CELL, "segment": "lstm_0", "heads": 1, "capability": (9, 0)}
    return fused.Wanted(**{**given, "units": units, "dtype": dtype, **changed})


@needs_nvcc
def test_a_missing_kernel_is_compiled_once_for_all(
    spied: Spied, capfd: pytest.CaptureFixture[str], cache: Path
) -> None:
    assert "the first call of several steps" in fused.explain(wanted(), None)
    assert fused.settle(wanted()) == ""
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "rnncc: compiling LSTM for 1 head of 64 units, bf16, sm_90a" and len(lines) == 2
    assert re.fullmatch(r"rnncc: compiled LSTM for 1 head of 64 units, bf16, sm_90a in [\d.]+ s", lines[1])
    # The library and the package know the same kernels, each in a file of its own.
    (index,) = cache.glob("packages/*/lstm/cuda/fused.txt")
    names = [line.split()[-1] for line in index.read_text(encoding="utf-8").splitlines()]
    assert spied.added == len(names) >= 6
    assert sorted(path.name for path in index.parent.glob("*.cubin")) == sorted(f"{n}_sm_90a.cubin" for n in names)
    said = fused.explain(wanted(), "")
    assert said.startswith("fused (forward gather, backward scatter), made for 1 head of 64 units, bfloat16")
    assert fused.settle(wanted()) == "" and spied.added == len(names)
    # Another process: found in the cache, without a word.
    fused.attach(index.parent, spied, fused._STATE.about)  # type: ignore[arg-type]
    fused._STATE.lines.clear()
    assert fused.settle(wanted()) == "" and spied.added == 2 * len(names)
    assert capfd.readouterr().err == ""
    # Kernels for one number of heads serve others, where there are no better ones.
    assert "made for another number of heads" in fused.explain(wanted(heads=2), "no nvcc")
    assert fused.explain(wanted(capability=(10, 0)), "no nvcc").startswith("alternating")


@needs_nvcc
def test_what_fits_nowhere_is_said(spied: Spied, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # planned, then known
        said = fused.settle(wanted(8192))
        assert "no fused kernel for 1 head of 8192 units fits" in said
        assert "rnncc explain lstm --target sm_90a --hidden 8192 --heads 1 --dtype bf16" in said
    assert spied.added == 0 and capfd.readouterr().err == ""
    assert fused.explain(wanted(8192), said) == f"alternating, one launch a sequence at every size: {said}"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": torch.float32}, "bfloat16 and float16, not torch.float32"),
        ({"units": 60}, "a multiple of 8 units, not 60"),
        ({"capability": (8, 6)}, "compute capability 9.0, not 8.6"),
    ],
)
def test_what_has_no_fused_kernel_is_not_compiled(changed: dict[str, Any], reason: str, spied: Spied) -> None:
    assert reason in fused.settle(wanted(**changed))
    assert reason in fused.explain(wanted(**changed), None)


def test_a_loop_without_a_fused_form_says_so(spied: Spied, tmp_path: Path) -> None:
    library: Any = spied
    fused.attach(tmp_path, library, {"fused": {"lstm_0": "a step takes the mean of a row"}})
    assert fused.settle(wanted()) == "its loop has no fused form: a step takes the mean of a row"


def test_the_setting_and_a_missing_rnncc(spied: Spied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_COMPILE", "0")
    assert "RNNCC_COMPILE=0" in fused.settle(wanted()) and "rnncc build lstm" in fused.explain(wanted(), None)
    monkeypatch.setenv("RNNCC_COMPILE", "no")
    with pytest.raises(ValueError, match="RNNCC_COMPILE is 'no'"):
        fused.settle(wanted())
    monkeypatch.setenv("RNNCC_COMPILE", "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "not installed" in fused.settle(wanted())


def test_kernels_of_another_rnncc_are_not_mixed(spied: Spied, tmp_path: Path) -> None:
    library: Any = spied
    fused.attach(tmp_path, library, {**fused._STATE.about, "code": "0"})
    assert "build it again" in fused.settle(wanted())


@pytest.fixture
def on_gpu(spied: Spied, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`prepare` for the LSTM, as if the CPU's tensors were on a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return lambda x: fused.prepare(CELL, CELL.segments[0], x, SIZES)


def failing_nvcc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = folder / "nvcc"
    nvcc.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "release 0" && exit 0\necho "error: no" >&2; exit 2\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_failing_nvcc_is_one_warning(
    on_gpu: Any, spied: Spied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_no_nvcc_is_one_warning(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.warns(UserWarning, match="nvcc, which is neither on PATH"):
        on_gpu(torch.zeros(2, 1, 256, dtype=torch.bfloat16))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[fused.Wanted]:
    """What was to be compiled."""
    found: list[fused.Wanted] = []
    compiled = threading.Event()

    def settle(wanted: fused.Wanted) -> str:
        found.append(wanted)
        compiled.wait(0.05)
        return ""

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


def test_autocast_decides_the_dtype(on_gpu: Any, asked: list[fused.Wanted]) -> None:
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:  # the context manager does nothing without a GPU
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.float16)
        on_gpu(torch.zeros(2, 1, 256))
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    assert [w.dtype for w in asked] == [torch.float16]


def test_threads_compile_once(on_gpu: Any, asked: list[fused.Wanted]) -> None:
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16)
    threads = [threading.Thread(target=on_gpu, args=(x,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


def test_a_loop_on_a_gpu_is_prepared_but_not_while_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    monkeypatch.setattr(fused, "prepare", lambda *given: prepared.append(given))
    kernels: Any = SimpleNamespace(forward={"lstm_0": lambda *given: ([], [], [])})
    stream: Any = SimpleNamespace(is_cuda=True, requires_grad=False)

    def call() -> None:
        rest: Any = ([], [], None, None, [], SIZES, False, [], False)
        run_segment(CELL, CELL.segments[0], kernels, [stream], *rest)

    call()
    assert prepared == [(CELL, SEGMENT, stream, SIZES)]
    stream.is_cuda = False
    call()
    stream.is_cuda = True
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    call()
    assert len(prepared) == 1
