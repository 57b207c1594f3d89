"""NVRTC, for tests that look at what it makes. It needs neither a CUDA toolkit nor a GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rnncc.stages.build import nvrtc_worker
from rnncc.stages.build.nvrtc import FLAGS, find_library

MISSING = "NVRTC is not installed: pip install 'nvidia-cuda-nvrtc==13.0.*' (`make setup` does it)"
# What rnncc's own program does, but that one keeps either the code or the PTX.
_BOTH = """
import sys
from pathlib import Path
folder, library, source, architecture, output, *options = sys.argv[1:]
sys.path.insert(0, folder)
import nvrtc_worker
made, said = nvrtc_worker.compiled(nvrtc_worker.load(Path(library)), Path(source), architecture, options)
print(said, end="")
for what, content in (made or {}).items():
    Path(f"{output}.{what}").write_bytes(content)
sys.exit(made is None)
"""


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


def compiled(path: Path, architecture: str, include: tuple[Path, ...], *options: str) -> Compiled:
    """Compiles a file, in a process of its own as a build does: where NVRTC compiled another file before, in the
    same process, it can spill registers that it otherwise does not. Raises NvrtcError with the compiler's messages."""
    worker, output = Path(nvrtc_worker.__file__).parent, path.with_name(f"{path.name}.{architecture}")
    folders = (f"-I{folder}" for folder in (path.parent, *include))
    given = (worker, library_file(), path, architecture, output, *FLAGS, *folders, *options)
    command = [sys.executable, "-I", "-S", "-c", _BOTH, *map(str, given)]
    run = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if run.returncode != 0:
        raise NvrtcError(run.stdout)
    cubin, ptx = (output.with_name(f"{output.name}.{what}") for what in ("CUBIN", "PTX"))
    return Compiled(cubin.read_bytes() if cubin.exists() else b"", ptx.read_text(encoding="utf-8"), run.stdout)
