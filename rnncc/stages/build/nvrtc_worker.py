"""Compiles one file of GPU kernels by NVRTC. It is a program of its own: where a compiler crashes, does not end, or
takes all memory, only this process ends.

    python -I -S nvrtc_worker.py LIBRARY ARCHITECTURE SOURCE OUTPUT [OPTION...]
    python -I -S nvrtc_worker.py LIBRARY

The first writes a cubin for `sm_90a`, or PTX for `compute_90`. The second prints NVRTC's version, and the numbers of
the architectures that it compiles for. It needs the standard library alone: it starts in some 20 ms.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

SECONDS = 900  # of processor time; the largest file of a shipped cell takes 10
_BYTES = 16 << 30  # of address space
UNUSABLE = "NVRTC cannot be used"  # what it says of a library that is none of NVRTC's


def load(path: Path) -> ctypes.CDLL:
    """NVRTC. It loads its builtins by name, so these come first: a wheel's folder is none where the system looks."""
    for builtins in sorted(path.parent.glob("libnvrtc-builtins*.so*")):
        if ".alt." not in builtins.name:
            ctypes.CDLL(os.fspath(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(os.fspath(path))


def known(nvrtc: ctypes.CDLL) -> tuple[tuple[int, int], list[int]]:
    """Its version, and the numbers of the architectures that it compiles for: 80 for sm_80."""
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    _check(nvrtc, nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check(nvrtc, nvrtc.nvrtcGetSupportedArchs(numbers))
    return (major.value, minor.value), list(numbers)


def compiled(
    nvrtc: ctypes.CDLL, source: Path, architecture: str, options: Sequence[str]
) -> tuple[dict[str, bytes] | None, str]:
    """What NVRTC makes of a file, `PTX` and for `sm_…` the `CUBIN`, or None where it fails; and what it says."""
    program = ctypes.c_void_p()
    text, name = source.read_bytes(), os.fsencode(source)
    given = [os.fsencode(option) for option in (*options, f"-arch={architecture}")]
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None))
    code = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    said = _made(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    if code != 0:
        return None, said if "error" in said else f"{said}error: {_error(nvrtc, code)}\n"
    made = {"PTX": _made(nvrtc, program, "PTX").rstrip(b"\0")}
    if architecture.startswith("sm"):
        made["CUBIN"] = _made(nvrtc, program, "CUBIN")
    return made, said


def _made(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """What NVRTC has of a program: nvrtcGet<what>, whose size nvrtcGet<what>Size gives."""
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _error(nvrtc: ctypes.CDLL, code: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(nvrtc.nvrtcGetErrorString(code).decode())


def _check(nvrtc: ctypes.CDLL, code: int) -> None:
    if code != 0:
        raise OSError(_error(nvrtc, code))


def _limit(what: int, most: int) -> None:
    """A limit for this process, unless there is a lower one."""
    soft, hard = resource.getrlimit(what)
    lowest = min(limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(what, (lowest, hard))


def main(arguments: Sequence[str]) -> int:
    """Runs the program. Its exit code is 1 where NVRTC does not compile the file."""
    library, *rest = arguments
    # Whatever ends the process says so on stderr, which the build keeps.
    faulthandler.enable()
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
    _limit(resource.RLIMIT_CPU, SECONDS)
    _limit(resource.RLIMIT_AS, _BYTES)
    try:
        nvrtc = load(Path(library))
    except OSError as error:
        print(f"error: {UNUSABLE}: {error}")
        return 1
    try:
        if not rest:
            version, numbers = known(nvrtc)
            print(".".join(map(str, version)), *numbers)
            return 0
        architecture, source, output, *options = rest
        made, said = compiled(nvrtc, Path(source), architecture, options)
        print(said, end="")
        if made is not None:
            Path(output).write_bytes(made["CUBIN" if output.endswith(".cubin") else "PTX"])
        return made is None
    except AttributeError as error:  # a library without the functions
        print(f"error: {UNUSABLE}: {error}")
    except OSError as error:  # of NVRTC's, or no room on the disk
        print(f"error: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
