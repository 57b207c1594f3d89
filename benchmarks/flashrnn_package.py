"""FlashRNN's own package, for benchmarks/gpu_flashrnn.py: where it is, what it needs to compile, and calls of it.

FlashRNN (github.com/NX-AI/flashrnn) compiles its kernels when it is called first. With CUDA 13 and FlashRNN 1.0.8 that
fails, or takes long, in three places. Each is dealt with here within the process. The package's files stay as they are.

- FlashRNN compiles a module that reads the properties of the GPU. It uses members of `cudaDeviceProp` that CUDA 13 does
  not have any more. PyTorch knows the four numbers that FlashRNN asks for, and `gpu_info` gives them instead.
- FlashRNN waits up to 10 seconds, at random, before each compilation. The wait keeps processes apart that compile into
  one folder. Here every case has a folder of its own and needs no wait.
- The headers of PyTorch include those of cuBLAS, cuSPARSE and cuSOLVER, and FlashRNN links with cuBLAS. Where the
  toolkit has no such files, those of NVIDIA's wheels serve, which PyTorch has brought.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from flashrnn_cases import Case
from toolkit import nvcc
from torch import Tensor

HEADERS = ("cublas_v2.h", "cusparse.h", "cusolverDn.h")
LIBRARIES = ("cublas", "cudart")


def find(folder: Path | None) -> str:
    """The version of FlashRNN in `folder`, or of the installed one. Makes it importable.

    Raises ValueError where there is none."""
    if folder is not None:
        sys.path.insert(0, str(folder.resolve()))
    if find_spec("flashrnn") is None:
        raise ValueError(
            f"there is no package `flashrnn` {f'in {folder}' if folder else 'to import'}: "
            "`pip install --no-deps --target FOLDER flashrnn`, then --flashrnn FOLDER"
        )
    try:
        return metadata.version("flashrnn")
    except metadata.PackageNotFoundError:
        told = ["git", "-C", str(folder or "."), "describe", "--always", "--dirty"]
        return subprocess.run(told, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def environment(folder: Path) -> dict[str, str]:
    """The variables with which a process can compile FlashRNN; `folder` takes links to libraries and what is cached."""
    found = nvcc()
    if found is None:
        raise ValueError("FlashRNN needs nvcc, which is neither on PATH nor in $CUDA_HOME/bin")
    told = subprocess.run([found, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True, check=True)
    top = re.search(r"TOP=(.+)", told.stderr)
    assert top is not None, told.stderr
    home = Path(top[1]).resolve()
    variables = {
        "CUDA_HOME": str(home),
        "CUDA_CACHE_PATH": str(folder / "driver"),
        "CUDA_CACHE_MAXSIZE": str(2**32),
        "CONSTRINT_CACHE_DIR": str(folder / "constrint"),
        # PyTorch calls ninja, which may lie beside this Python alone.
        "PATH": os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent), sysconfig.get_path("scripts"))),
    }
    wheels = [Path(place) / "cu13" for place in getattr(find_spec("nvidia"), "submodule_search_locations", None) or ()]
    if not all((home / "include" / header).is_file() for header in HEADERS):
        places = [str(wheel / "include") for wheel in wheels if (wheel / "include").is_dir()]
        variables["FLASHRNN_EXTRA_INCLUDE_PATHS"] = os.pathsep.join(places)
    links = folder / "lib"
    for needed in (links, folder / "driver"):
        needed.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        if any((home / place / f"lib{name}.so").exists() for place in ("lib64", "lib")):
            continue
        for library in (path for wheel in wheels for path in (wheel / "lib").glob(f"lib{name}.so.*")):
            (links / f"lib{name}.so").unlink(missing_ok=True)
            (links / f"lib{name}.so").symlink_to(library)
    variables["LIBRARY_PATH"] = os.pathsep.join((str(links), *filter(None, [os.environ.get("LIBRARY_PATH")])))
    return variables


def gpu_info(device_id: int) -> dict[str, int]:
    """What FlashRNN's search for a tiling asks of the GPU."""
    found: Any = torch.cuda.get_device_properties(device_id)
    return {
        "maxThreadsPerBlock": found.max_threads_per_block,
        "regsPerMultiprocessor": found.regs_per_multiprocessor,
        "multiProcessorCount": found.multi_processor_count,
        "sharedMemPerBlockOptin": found.shared_memory_per_block_optin,
    }


class Package:
    """Calls FlashRNN's function with one backend, at one size."""

    def __init__(self, case: Case) -> None:
        core: Any = import_module("flashrnn.flashrnn.flashrnn")
        core.get_gpu_info = gpu_info
        self.core = core
        building: Any = import_module("flashrnn.flashrnn.cuda_init")
        building.time = SimpleNamespace(sleep=lambda seconds: None)
        self.interface = self.core.FlashRNNConfig(
            backend=case.beside,
            function=case.cell,
            head_dim=case.head_dim,
            num_heads=case.heads,
            batch_size=case.batch,
            dtype="bfloat16",
        )

    def own(self) -> Any:
        """The options with which FlashRNN's function permutes no tensor, but for the biases. Its kernels are the same:
        what was built for the other options is found under these, too."""
        told = self.interface
        own = replace(
            told,
            input_shape=told._internal_input_shape,
            recurrent_shape=told._internal_recurrent_shape,
            output_shape=told._internal_output_shape,
        )
        for kernels in (self.core._FlashRNNCUDAFused.mod, self.core._FlashRNNCUDA.mod):
            for key in list(kernels):
                kernels[key.replace(repr(told), repr(own))] = kernels[key]
        return own

    def forward(self, options: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The function with these options: of Wx, R and b, h of all steps."""

        def call(wx: Tensor, recurrent: Tensor, bias: Tensor) -> Tensor:
            h: Tensor = self.core.flashrnn(wx, recurrent, bias, config=options)[0][0]
            return h

        return call
