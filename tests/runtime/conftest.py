"""A package of the LSTM as first use of fused kernels sees it, without a GPU: the library is the GPU part of a
package's, whose index grows. And a package whose CPU kernels are compiled when a call first needs them."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rnncc.driver import load_module
from rnncc.machine.paths import cells_dir, templates_dir
from rnncc.runtime.kernels import ahead, first_use, fused
from rnncc.stages.build import own_code
from rnncc.stages.build.toolchain import BINDING
from tests.cuda.sources import write_sources
from tests.runtime.first_use import CELL, H200, SEGMENT, SIZES
from tests.runtime.late import TEXT, ones, request_of
from tests.shared_objects import LOOPS_ON_GPUS, shared_object


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The GPU part of the LSTM's library, host side."""
    folder = tmp_path_factory.mktemp("host")
    write_sources("lstm", folder)
    torch_lib = Path(torch.__file__).parent / "lib"
    subprocess.run(
        ["g++", *BINDING, "-shared", f"-I{templates_dir() / 'include'}", "src/lstm_cuda.cpp",
         str(shared_object(LOOPS_ON_GPUS)), str(Path(__file__).with_name("first_use.cpp")), "-o", "lib.so",
         f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}", "-ltorch_cpu", "-lc10"],
        cwd=folder, check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(folder / "lib.so"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Spied:
    """A library that counts the kernels it was given."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.added = library, 0
        self.rnncc_set_kernel_handler = library.rnncc_set_kernel_handler
        self.rnncc_add_folder = library.rnncc_add_folder

    def rnncc_add_kernels(self, folder: bytes) -> int:
        count = int(self.library.rnncc_add_kernels(folder))
        self.added += count
        return count


@pytest.fixture
def spied(library: ctypes.CDLL, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spied]:
    """A package of the LSTM without fused kernels, just opened."""
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(cache))
    monkeypatch.delenv("RNNCC_COMPILE", raising=False)
    monkeypatch.setenv("RNNCC_LOG", "info")
    text = (cells_dir() / "lstm.rnn").read_text(encoding="utf-8")
    found: Any = Spied(library)
    about = {
        "source": text,
        "stem": "lstm",
        "code": own_code(),
        "fused": {"lstm_0": ""},
        "scans": {},
        "by_head": [],
        "newton": [],
    }
    fused.attach(tmp_path, found, about)
    first_use.attach(found, (CELL,))
    yield found
    ahead.finish()
    monkeypatch.undo()
    fused.attach(tmp_path, found, {})
    library.rnncc_set_kernel_handler(None)


@pytest.fixture
def on_gpu(spied: Spied, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call of the LSTM's loop, as far as the library asks for kernels. Raises RuntimeError as the op does."""
    monkeypatch.setattr(fused, "gpu_of", lambda device: H200)

    def call(
        steps: int = 2, dtype: torch.dtype = torch.bfloat16, directions: int = 1, fits: bool = True,
        program: str = "forward",
    ) -> None:  # fmt: skip
        problem = ctypes.create_string_buffer(4096)
        sizes = ctypes.c_int64(SIZES["H"]), ctypes.c_int64(SIZES["num_heads"])
        given = f"{SEGMENT.name}_{program}".encode(), fused.DTYPES[dtype][0].encode(), *sizes, directions
        if spied.library.call(*given, ctypes.c_int64(steps), fits, problem, ctypes.c_int64(len(problem))):
            raise RuntimeError(problem.value.decode())

    return call


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that starts tests in the background has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def late_objects() -> None:
    """The cache of all tests has what all packages share."""
    load_module(request_of(TEXT, "late_shared")).Late(3, 4).double()(ones(5, 2, 3))


@pytest.fixture
def late_cache(late_objects: None, cell_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(cell_cache))
    return cell_cache


@pytest.fixture
def late_module(late_cache: Path, request: pytest.FixtureRequest) -> ModuleType:
    """A package that no test has called before. It has no CPU kernels at all."""
    return load_module(request_of(TEXT, re.sub(r"\W", "_", request.node.name)), ())
