"""NVRTC in this process, for tests that look at what it makes. It needs neither a CUDA toolkit nor a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rnncc.stages.build import nvrtc_worker
from rnncc.stages.build.nvrtc import FLAGS, find_library

MISSING = "NVRTC is not installed: pip install 'nvidia-cuda-nvrtc==13.0.*' (`make setup` does it)"


class NvrtcError(Exception):
    """What NVRTC said of a text that it does not compile."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What NVRTC made of a file: code (empty for `compute_…`), PTX, and what it said."""

    cubin: bytes
    ptx: str
    log: str


def library_file() -> Path:
    """NVRTC's library. Raises FileNotFoundError, which says what to install."""
    found = find_library()
    if found is None:
        raise FileNotFoundError(MISSING)
    return found


@cache
def library() -> ctypes.CDLL:
    """NVRTC, loaded."""
    return nvrtc_worker.load(library_file())


def compiled(path: Path, architecture: str, include: tuple[Path, ...], *options: str) -> Compiled:
    """Compiles a file. Raises NvrtcError with the compiler's messages."""
    folders = (f"-I{folder}" for folder in (path.parent, *include))
    made, said = nvrtc_worker.compiled(library(), path, architecture, (*FLAGS, *folders, *options))
    if made is None:
        raise NvrtcError(said)
    return Compiled(made.get("CUBIN", b""), made["PTX"].decode(), said)
