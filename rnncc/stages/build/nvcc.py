"""The CUDA compiler, and its command for a file of kernels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rnncc.ir.artifact import DeviceUnit
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.stages.build import processes
from rnncc.stages.build.commands import Command

# No fast-math flag.
FLAGS = ("-cubin", "-std=c++17", "-O3", "--expt-relaxed-constexpr")
# From which nvcc takes more flags by itself.
ENVIRONMENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """nvcc's path, its release, and the architectures to compile for."""

    path: str
    version: str
    architectures: tuple[str, ...]

    def key(self) -> str:
        """What a build depends on."""
        settings = (f"{name}={os.environ.get(name, '')}" for name in ENVIRONMENT)
        return " ".join((self.version, *FLAGS, *self.architectures, *settings))

    def command(self, unit: DeviceUnit, architecture: str, include: tuple[str, ...]) -> Command:
        """Compiles a unit for an architecture; paths are relative to the package."""
        output = f"cuda/{unit.name}_{architecture}.cubin"
        paths = (f"-I{path}" for path in include)
        return Command(output, (self.path, *FLAGS, f"-arch={architecture}", *paths, unit.path, "-o", output))


def nvcc_release() -> tuple[str, str] | None:
    """(path, release) of nvcc: on PATH, else in $CUDA_HOME or /usr/local/cuda; None where there is none."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    path = processes.find("nvcc") or processes.find("nvcc", str(Path(home) / "bin"))
    if path is None:
        return None
    shown = processes.run([path, "--version"], seconds=60)
    if not shown.succeeded:
        return None
    release = [line for line in shown.text.splitlines() if "release" in line]
    return path, release[0].strip() if release else shown.text.strip()


def find_nvcc(architectures: tuple[str, ...], *, required: bool) -> Nvcc | None:
    """The compiler for these architectures; None without any, and without nvcc unless it is `required`.

    Raises RnnccError (RNN608) where it is required and missing.
    """
    if not architectures:
        return None
    found = nvcc_release()
    if found is not None:
        return Nvcc(found[0], found[1], architectures)
    if not required:
        return None
    raise RnnccError(
        Diagnostic(
            "RNN608",
            f"kernels for {', '.join(architectures)} need nvcc, which is neither on PATH nor in $CUDA_HOME/bin",
            help="install NVIDIA's CUDA toolkit 12 or later (developer.nvidia.com/cuda-downloads; Debian and Ubuntu: "
            "apt install nvidia-cuda-toolkit), or build with --target cpu",
        )
    )
