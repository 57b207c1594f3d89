"""Kernels that take every size, which a package for this machine's GPUs compiles when a call first needs them."""

from __future__ import annotations

import ctypes
import importlib
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc import driver, on_demand
from rnncc.ir.artifact import OF_EVERY_PACKAGE
from rnncc.ir.target import GPUS
from rnncc.language.read import read_request
from rnncc.machine import gpus
from rnncc.pipeline import compile_cells
from rnncc.runtime.kernels import ahead, first_use, fused
from rnncc.stages.build import nvrtc, own_code
from tests.compilers import quick_nvrtc, replace_nvrtc
from tests.runtime.first_use import H200
from tests.shared_objects import LOOPS_ON_GPUS, WHOLE, WHOLE_ON_GPUS, shared_object

FILE, BACKWARD = "lstm_0_forward_bf16", "lstm_0_backward_bf16"


@pytest.fixture
def need(spied: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call that needs a file of kernels: its path. Raises RuntimeError as the op does."""
    monkeypatch.setattr(fused, "gpu_of", lambda device: H200)

    def call(file: str = FILE) -> Path:
        text = ctypes.create_string_buffer(4096)
        if spied.library.need(file.encode(), text, ctypes.c_int64(len(text))):
            raise RuntimeError(text.value.decode())
        return Path(text.value.decode())

    return call


def test_it_is_compiled_alone_and_once(need: Any, capfd: pytest.CaptureFixture[str], spied: Any) -> None:
    path = need()
    said = [line for line in capfd.readouterr().err.splitlines() if " files compiled" not in line]
    assert said[0] == f"rnncc: compiling {FILE} for sm_90a" and len(said) == 2
    assert path.name == f"{FILE}_sm_90a.cubin" and [file.name for file in path.parent.iterdir()] == [path.name]
    assert need() == path and need("_core").name == "_core_sm_90a.cubin"
    # Another process: found in the cache, without a word.
    capfd.readouterr()
    fused.STATE.provided.clear()
    first_use.provide(FILE, H200)
    assert capfd.readouterr().err == ""


def test_what_every_package_has_is_compiled_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_nvrtc(tmp_path, monkeypatch)

    def made(cell: str, file: str) -> Path:
        source = read_request(cell).source
        return on_demand.compile_file((source.text, cell, own_code()), {}, ("", file), (9, 0, 132))

    request = replace(read_request("lstm"), architectures=("sm_90a",), instructions="generic")
    units = compile_cells(request).bundle.device_units
    assert {unit.name for unit in units if unit.shared} == set(OF_EVERY_PACKAGE)
    for file in OF_EVERY_PACKAGE:
        assert made("lstm", file) == made("gru", file)
        assert [path.name for path in made("gru", file).iterdir()] == [f"{file}_sm_90a.cubin"]
    assert made("lstm", FILE) != made("lstm", "_core") and made("lstm", "_core") != made("lstm", "_small_f32")


@pytest.mark.parametrize("file", ["a_0_forward_f32", "a_0_0_forward_f32", "_head_norm"])
def test_which_cell_of_a_text_a_file_belongs_to(
    file: str, cell_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One loop's name begins with another's; and only the second cell has `_head_norm`."""
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(cell_cache))
    quick_nvrtc(tmp_path, monkeypatch)
    text = "cell A\nstate h\nh[t] = tanh(W@x + R@h[t-1])\n\ncell A_0\nstate h\nh[t] = tanh(layernorm(W@x) + R@h[t-1])\n"
    package = sys.modules[rnncc.compile(text, "two").A.__module__]
    own = importlib.import_module(f"{package.__name__.partition('.')[0]}._runtime.kernels.first_use")
    assert [*own._CELLS] == ["a_0", "a_0_0"]
    assert [path.name for path in own._compile_file(file, H200).iterdir()] == [f"{file}_sm_90a.cubin"]


def test_what_is_announced_is_compiled_meanwhile(
    need: Any, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_nvrtc(tmp_path, monkeypatch)
    asked: list[tuple[str, str]] = []
    compile_file, release = on_demand.compile_file, threading.Event()

    def slow(package: Any, options: Any, wanted: tuple[str, str], gpu: Any) -> Path:
        asked.append((wanted[1], threading.current_thread().name))
        assert release.wait(30)
        return compile_file(package, options, wanted, gpu)

    monkeypatch.setattr(on_demand, "compile_file", slow)
    for _ in range(2):  # told once
        spied.library.announce(BACKWARD.encode())
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(need, BACKWARD)
        release.set()
        assert waiting.result().name.startswith(BACKWARD)
    assert asked == [(BACKWARD, "rnncc")]
    other = "lstm_0_masked_forward_f16"
    need(other)
    spied.library.announce(other.encode())  # it is there
    assert [file for file, _ in asked] == [BACKWARD, other] and not ahead._THREADS


def test_what_fails_in_the_background_is_an_error_of_the_call(
    need: Any, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_nvrtc(tmp_path, monkeypatch, 'echo "error: no" >&2; exit 2')
    file = "lstm_0_masked_backward_f16"
    spied.library.announce(file.encode())
    for thread in list(ahead._THREADS):
        thread.join()
    with pytest.raises(RuntimeError, match="no kernels for sm_90 yet: the compiler failed on lstm: error: no"):
        need(file)
    quick_nvrtc(tmp_path, monkeypatch)
    assert need(file).name.startswith(file)


# A compiler that takes a minute has begun in the background when the program ends, or has a child that ends.
ENDS = """
import os, sys, threading, time
from pathlib import Path
from rnncc.runtime.kernels import ahead
from rnncc.stages.build.processes import Programs
from rnncc.stages.build import commands
folder = Path(sys.argv[1])
command = commands.Command("out", ("sh", "-c", f"echo $$ > {folder}/began; sleep 60"))
def work():
    try:
        if sys.argv[2] == "plan":
            time.sleep(0.7)
        commands.run([command], None, folder / "work")
    finally:
        (folder / "cleaned").touch()
(folder / "work").mkdir()
if sys.argv[2] == "thread":  # of the user's own
    threading.Thread(target=work, daemon=True).start()
else:
    ahead.begin(work)
if sys.argv[2] == "plan":
    sys.exit(0)  # no compiler has begun yet
while not (folder / "began").exists() or not (folder / "began").read_text():
    time.sleep(0.01)
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        sys.exit(0)  # with all that is registered for the end of a process
    os.waitpid(child, 0)
    os.kill(int((folder / "began").read_text()), 0)  # it still runs
    assert not (folder / "cleaned").exists()
"""


@pytest.mark.parametrize("how", ["end", "fork", "thread"])
def test_a_process_ends_while_it_compiles(how: str, tmp_path: Path) -> None:
    # Python 3.12 warns of each fork of a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ENDS, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "cleaned").exists() or how == "thread"  # nobody waits for that one
    status = Path(f"/proc/{(tmp_path / 'began').read_text().strip()}/stat")
    # Nobody may have waited for it.
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_process_ends_before_its_compilers_begin(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path), "plan"], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "cleaned").exists() and not (tmp_path / "began").exists()


def test_threads_compile_it_once(need: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_nvrtc(tmp_path, monkeypatch)
    asked: list[str] = []
    compile_file, began = on_demand.compile_file, threading.Barrier(3, timeout=10)

    def spy(package: Any, options: Any, wanted: tuple[str, str], gpu: Any) -> Path:
        asked.append(wanted[1])
        return compile_file(package, options, wanted, gpu)

    monkeypatch.setattr(on_demand, "compile_file", spy)

    def call(_: int) -> Path:
        began.wait()
        return Path(need("lstm_0_backward_f16"))

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(call, range(3)))) == 1
    assert asked == ["lstm_0_backward_f16"]


def test_where_nothing_can_be_compiled_the_op_says_why(
    need: Any, spied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(nvrtc, "find_library", lambda: None)
        with pytest.raises(RuntimeError, match=r"sm_90a need NVRTC, NVIDIA's compiler library.*pip install"):
            need("lstm_0_masked_forward_f32")
    with monkeypatch.context() as broken:
        replace_nvrtc(tmp_path, broken, 'echo "error: no"; exit 1')
        with pytest.raises(RuntimeError, match="the compiler failed on lstm: error: no"):
            need("lstm_0_masked_forward_f32")
    monkeypatch.setattr(fused.STATE, "about", {**fused.STATE.about, "code": "another"})
    with pytest.raises(RuntimeError, match="another rnncc than this one"):
        need("lstm_0_masked_forward_f32")
    spied.library.rnncc_set_kernel_handler(None)
    with pytest.raises(RuntimeError, match=r"no kernels for this GPU \(sm_90\): build it with --target sm_90"):
        need("lstm_0_masked_forward_f32")


@pytest.fixture(scope="module")
def gpu_objects() -> None:
    """The cache of all tests has what all packages with GPU kernels share."""
    for name in (WHOLE, WHOLE_ON_GPUS, LOOPS_ON_GPUS):
        shared_object(name)


@pytest.mark.usefixtures("gpu_objects")
def test_a_package_for_this_machine_has_none_of_its_own(cell_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(cell_cache))
    monkeypatch.setattr(gpus, "here", lambda: (GPUS["h200"],))
    module = driver.load_module(replace(read_request("lstm")))
    (package,) = module.__path__
    assert json.loads((Path(package) / "_rnncc.json").read_text())["architectures"] == ["sm_90a"]
    assert not (Path(package) / "cuda").exists()
    kernels = module._package.kernels()[0]
    assert kernels is not None and kernels.run_on(9, 0) and "permute_rows" in kernels.ops
    layer = module.LSTM(3, 4)
    assert layer(torch.zeros(2, 1, 3))[0].shape == (2, 1, 4)
    # Without a GPU it is another package.
    monkeypatch.setattr(gpus, "here", lambda: ())
    assert driver.load_module(read_request("lstm")).__path__ != [package]
