"""NVRTC, the compiler of GPU kernels: where it is, what it compiles for, and the command for a file of kernels.

CUDA builds of PyTorch bring it, so that no CUDA toolkit is needed. Elsewhere it is one wheel, nvidia-cuda-nvrtc.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rnncc.ir.artifact import DeviceUnit
from rnncc.ir.target import GPUS, code_file, number_of
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.stages.build import nvrtc_worker, processes
from rnncc.stages.build.commands import Command
from rnncc.stages.build.nvrtc_worker import UNUSABLE

# Functions without `__device__` are those of the device: NVRTC knows no host code. The tables of cells name the fields
# that they set, which is C++20. NVRTC optimises by itself; there is no fast-math flag.
FLAGS = ("-std=c++20", "-default-device")
# More options for NVRTC, divided by spaces.
ENVIRONMENT = "RNNCC_NVRTC_FLAGS"
INSTALL = "pip install nvidia-cuda-nvrtc"
# CUDA's releases whose NVRTC compiles the kernels, the preferred one first; and the wheels' folders of each.
_WHEELS = {13: "cu13/lib", 12: "cuda_nvrtc/lib"}
# NVRTC of CUDA 12 and 13 compiles for all of these, so that the library need not be asked.
_KNOWN_TO_ALL = (80, 86, 87, 89, 90)
_SYSTEM = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """NVRTC's library, and the architectures to compile for: `sm_90a`, or `compute_90` for PTX, which a driver
    translates for its GPU when it loads the kernels."""

    library: Path
    architectures: tuple[str, ...]

    def key(self) -> str:
        """What a build depends on."""
        return " ".join((identity(self.library), *self._options(), *self.architectures))

    def command(self, unit: DeviceUnit, architecture: str, include: tuple[str, ...]) -> Command:
        """Compiles a unit for one of the architectures that are `made`; paths are relative to the package."""
        output = code_file(unit.name, architecture)
        paths = (f"-I{path}" for path in include)
        worker = (*_worker(), os.fspath(self.library), architecture, unit.path, output)
        return Command(output, (*worker, *self._options(), *paths))

    def made(self) -> tuple[str, ...]:
        """What is compiled for, each once. Raises as `made_for`."""
        return tuple(dict.fromkeys(map(self.made_for, self.architectures)))

    def made_for(self, architecture: str) -> str:
        """What kernels for an architecture are compiled for: itself, or, where this NVRTC is older than the GPU, the
        newest PTX that runs there.

        Raises RnnccError (RNN602) where the library has to be asked, and is none of NVRTC's."""
        wanted = number_of(architecture)
        if wanted in _KNOWN_TO_ALL or wanted in (numbers := known(self.library)[1]):
            return architecture
        return f"compute_{max((number for number in numbers if number <= wanted), default=wanted)}"

    def warnings(self) -> Iterator[str]:
        """A sentence for each architecture that this NVRTC does not know."""
        for architecture in self.architectures:
            if (made := self.made_for(architecture)) != architecture:
                yield (
                    f"NVRTC {known(self.library)[0]} does not know {architecture}: kernels are {made}'s PTX, which the "
                    f"driver translates. A newer one ({INSTALL}) makes kernels for that GPU"
                )

    @property
    def release(self) -> str:
        """The major release of CUDA that it belongs to."""
        return self.library.name.rpartition(".")[2]

    @staticmethod
    def extra_options() -> tuple[str, ...]:
        """The user's options."""
        return tuple(os.environ.get(ENVIRONMENT, "").split())

    def _options(self) -> tuple[str, ...]:
        return (*FLAGS, *self.extra_options())


def find_nvrtc(architectures: tuple[str, ...], *, required: bool) -> Nvrtc | None:
    """The compiler for these architectures; None without any, and without NVRTC unless it is `required`.

    Raises RnnccError (RNN608) where it is required and missing.
    """
    if not architectures:
        return None
    found = find_library()
    if found is not None:
        return Nvrtc(found, architectures)
    if not required:
        return None
    raise RnnccError(
        Diagnostic(
            "RNN608",
            f"kernels for {', '.join(architectures)} need NVRTC, NVIDIA's compiler library, which is not installed",
            help=f"`{INSTALL}` brings it, as CUDA builds of PyTorch do; or build with --target cpu",
        )
    )


def for_all_gpus() -> Nvrtc | None:
    """The compiler for the GPUs whose sizes are known, as far as it knows them; None without NVRTC. Raises RnnccError
    (RNN602) where the library is none of NVRTC's."""
    library = find_library()
    if library is None:
        return None
    names = dict.fromkeys(gpu.architecture for gpu in GPUS.values())
    return Nvrtc(library, tuple(name for name in names if number_of(name) in known(library)[1]))


def find_library() -> Path | None:
    """NVRTC's library: torch's own or the wheel's, else the CUDA toolkit's; None where there is none. The one of the
    CUDA that torch was built for goes before the others: the driver runs what that one makes."""
    major = _torch_major()
    releases = sorted(_WHEELS, key=lambda release: release != major)
    return next((path for release in releases for path in _libraries(release)), None)


@cache
def known(library: Path) -> tuple[str, tuple[int, ...]]:
    """The library's version, and the numbers of the architectures that it compiles for.

    Raises RnnccError (RNN602) where it is none of NVRTC's."""
    shown = processes.run([*_worker(), os.fspath(library)], seconds=60)
    if not shown.succeeded:
        error = shown.error or shown.text.strip().removeprefix("error: ")
        message = error if error.startswith(UNUSABLE) else f"{UNUSABLE}: {error}"
        raise RnnccError(Diagnostic("RNN602", message, help=f"`{INSTALL}`"))
    version, *numbers = shown.text.split()
    return version, tuple(map(int, numbers))


def _libraries(release: int) -> Iterator[Path]:
    """The libraries of a release of CUDA, in the order of preference."""
    nvidia = find_spec("nvidia")
    folders = [Path(path) / _WHEELS[release] for path in (nvidia and nvidia.submodule_search_locations) or ()]
    torch = find_spec("torch")
    folders += [Path(path) / "lib" for path in (torch and torch.submodule_search_locations) or ()]
    homes = (os.environ.get("CUDA_HOME"), sys.prefix)  # the latter is an environment of conda's
    folders += [Path(home) / name for home in homes if home for name in ("lib64", "lib")]
    folders += [Path(path) for path in (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_SYSTEM) if path]
    found = (folder / f"libnvrtc.so.{release}" for folder in folders)
    return (path for path in found if path.is_file())


def _torch_major() -> int | None:
    """The release of CUDA that the installed torch was built for. torch itself is not imported, which takes a
    second."""
    torch = find_spec("torch")
    for folder in (torch and torch.submodule_search_locations) or ():
        try:
            text = (Path(folder) / "version.py").read_text(encoding="utf-8")
        except OSError:
            continue
        if match := re.search(r"^cuda[^=\n]*= *'(\d+)", text, re.MULTILINE):
            return int(match[1])
    return None


def identity(library: Path) -> str:
    """What tells one build of NVRTC from another, without loading it."""
    builtins = sorted(path.name for path in library.parent.glob("libnvrtc-builtins.so*"))
    return " ".join((*builtins, str(library.stat().st_size)))


@cache
def _worker() -> tuple[str, ...]:
    """The program that compiles, with what Python needs to start it alone."""
    # A program that embeds Python is no Python.
    embeds = not Path(sys.executable or "").name.startswith("python")
    own = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = sys.executable if not embeds else str(own) if own.is_file() else processes.find("python3") or "python3"
    return (python, "-I", "-S", os.fspath(Path(nvrtc_worker.__file__).absolute()))
