"""NVRTC, the compiler of CUDA that is a library. It has no standard header, and it needs neither nvcc nor a GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

MISSING = "NVRTC is not installed: pip install 'nvidia-cuda-nvrtc>=13,<14' (`make setup` does it)"
# NVRTC optimises by itself. It knows no host code, so that a function without `__device__` is one of the device. The
# tables of cells name the fields that they set. That is C++20, which nvcc takes in C++17 too, since g++ does.
OPTIONS = ("-std=c++20", "-default-device")


class NvrtcError(Exception):
    """What NVRTC said of a text that it does not compile."""


def libraries() -> Iterator[Path]:
    """NVRTC's libraries in the wheel of CUDA 13: first the one that the other loads by itself."""
    nvidia = find_spec("nvidia")
    folders = [Path(folder) / "cu13" / "lib" for folder in (nvidia and nvidia.submodule_search_locations) or ()]
    for pattern in ("libnvrtc-builtins.so.13*", "libnvrtc.so.13"):
        found = [path for folder in folders for path in folder.glob(pattern)]
        if not found:
            raise FileNotFoundError(MISSING)
        yield found[0]


@cache
def library() -> ctypes.CDLL:
    """NVRTC, loaded. Raises FileNotFoundError, which says what to install."""
    # The wheel's folder is not where the system looks for libraries, so what NVRTC needs is loaded before.
    _, nvrtc = [ctypes.CDLL(os.fspath(path), mode=ctypes.RTLD_GLOBAL) for path in libraries()]
    return nvrtc


def compiled(path: Path, architecture: str, include: tuple[Path, ...]) -> bytes:
    """The cubin of a file. Raises NvrtcError with the compiler's messages."""
    nvrtc, program = library(), ctypes.c_void_p()
    text, name = path.read_bytes(), os.fsencode(path)
    options = [*OPTIONS, f"-arch={architecture}", *(f"-I{folder}" for folder in (path.parent, *include))]
    given = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None) == 0
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), given) != 0:
            raise NvrtcError(_made(program, "ProgramLog").rstrip(b"\0").decode())
        return _made(program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _made(program: ctypes.c_void_p, what: str) -> bytes:
    """What NVRTC has of a program: nvrtcGet<what>, whose size nvrtcGet<what>Size gives."""
    size = ctypes.c_size_t()
    assert getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(library(), f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.raw
