"""Kernels that take every size, which a package for this machine's GPUs compiles when a call first needs them."""

from __future__ import annotations

import ctypes
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rnncc import driver
from rnncc.ir.artifact import OF_EVERY_PACKAGE
from rnncc.ir.target import GPUS
from rnncc.language.read import read_request
from rnncc.machine import gpus
from rnncc.pipeline import compile_cells
from rnncc.runtime.kernels import first_use, fused
from rnncc.stages.build import nvrtc, own_code
from tests.compilers import quick_nvrtc, replace_nvrtc
from tests.runtime.first_use import H200

FILE = "lstm_0_forward_bf16"


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
        return driver.compile_file(source.text, cell, {}, ("", file), (9, 0, 132), own_code())

    request = replace(read_request("lstm"), architectures=("sm_90a",), instructions="generic")
    units = compile_cells(request).bundle.device_units
    assert {unit.name for unit in units if unit.shared} == set(OF_EVERY_PACKAGE)
    for file in OF_EVERY_PACKAGE:
        assert made("lstm", file) == made("gru", file)
        assert [path.name for path in made("gru", file).iterdir()] == [f"{file}_sm_90a.cubin"]
    assert made("lstm", FILE) != made("lstm", "_core") and made("lstm", "_core") != made("lstm", "_small_f32")


def test_threads_compile_it_once(need: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_nvrtc(tmp_path, monkeypatch)
    asked: list[str] = []
    compile_file, began = driver.compile_file, threading.Barrier(3, timeout=10)

    def spy(text: str, name: str, options: Any, wanted: tuple[str, str], *rest: Any) -> Path:
        asked.append(wanted[1])
        return compile_file(text, name, options, wanted, *rest)

    monkeypatch.setattr(driver, "compile_file", spy)

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
