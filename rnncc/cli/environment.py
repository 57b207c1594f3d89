"""What works on this machine, and what is missing: the facts of `rnncc env`."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from rnncc.cli.output import ignore_missing_numpy
from rnncc.language.diagnostics import RnnccError
from rnncc.machine import gpus
from rnncc.machine.cache import Cache, default_root, limit_bytes
from rnncc.machine.targets import SETTING, instruction_sets, pretended
from rnncc.runtime.settings import compiles_at_first_use, log_level
from rnncc.stages.build.commands import most_jobs
from rnncc.stages.build.nvrtc import ENVIRONMENT, INSTALL, find_library, known
from rnncc.stages.build.toolchain import find_toolchain
from rnncc.version import VERSION


def _anything() -> None:
    """Reads a setting that may have any value."""


# Environment variables, and what reads each.
SETTINGS: dict[str, Callable[[], object]] = {
    "RNNCC_CACHE_DIR": lambda: Cache(default_root()).check(),
    "RNNCC_CACHE_LIMIT": limit_bytes,
    "RNNCC_COMPILE": compiles_at_first_use,
    "RNNCC_LOG": log_level,
    "MAX_JOBS": most_jobs,
    SETTING: pretended,
    # What is wrong with these, the compilers themselves say.
    "CXX": _anything,
    "CUDA_HOME": _anything,
    ENVIRONMENT: _anything,
}


def environment() -> dict[str, Any]:
    """PyTorch, compilers, GPUs, the cache and the settings by name, None for what is not here; `kernels`, the devices
    on which cells that are loaded here run kernels; and `advice`, a line for each thing that is missing or wrong."""
    found = {
        "rnncc": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _torch(),
        "cxx": _compiler(),
        "ninja": _distribution("ninja"),
        "nvrtc": _nvrtc(),
        "gpu": sorted({gpu.architecture for gpu in gpus.here()}),
        "cpu": {"cores": os.cpu_count(), "instructions": _instructions()},
        "cache": _cache(),
        "settings": {name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
    }
    return {**found, "kernels": _kernels(found), "advice": [*_advice(found), *_unreadable()]}


def _torch() -> dict[str, Any] | None:
    ignore_missing_numpy()
    try:
        import torch
    except ImportError:
        return None
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus, "threads": torch.get_num_threads()}


def _distribution(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _compiler() -> dict[str, Any] | None:
    try:
        found = find_toolchain()
    except RnnccError:
        return None
    return {"command": " ".join(found.command), "version": found.version}


def _nvrtc() -> dict[str, Any] | None:
    found = find_library()
    if found is None:
        return None
    try:
        version, numbers = known(found)
    except RnnccError as error:
        return {"library": str(found), "version": None, "fault": error.diagnostics[0].message}
    return {"library": str(found), "version": version, "architectures": [f"sm_{number}" for number in numbers]}


def _instructions() -> str:
    """The instruction set the CPU op would choose: the x86-64 level, or `generic`."""
    best = (instruction_sets() or ("unknown",))[-1]
    return f"x86-64-{best}" if best.startswith("v") else best


def _cache() -> dict[str, Any]:
    try:
        cache = Cache(default_root())
        packages, size = cache.usage()
    except RnnccError:
        return {"folder": os.environ.get("RNNCC_CACHE_DIR"), "packages": 0, "bytes": 0}
    return {"folder": str(cache.root), "packages": packages, "bytes": size}


def _kernels(found: dict[str, Any]) -> list[str]:
    """The devices on which cells that are loaded here run kernels."""
    if found["torch"] is None or found["cxx"] is None:
        return []
    has_nvrtc = found["nvrtc"] is not None and found["nvrtc"]["version"] is not None
    return ["cpu", *(["cuda"] if found["torch"]["gpus"] and found["gpu"] and has_nvrtc else [])]


def _advice(found: dict[str, Any]) -> list[str]:
    """What is missing, what that means, and how to get it."""
    lines = []
    if found["torch"] is None:
        lines.append(
            "PyTorch is missing: check, show, explain and build work, loading a cell does not. "
            "Install it: pip install torch"
        )
    if found["cxx"] is None:
        lines.append(
            "No C++ compiler: cells run on the slow eager fallback, build does not work. "
            "Install one (apt install g++), or set CXX to its path"
        )
    if found["gpu"] and found["nvrtc"] is None:
        lines.append(
            f"A GPU but no NVRTC, which compiles for it: cells run on the slow eager fallback there. `{INSTALL}`"
        )
    if found["nvrtc"] is not None and "fault" in found["nvrtc"]:
        lines.append(found["nvrtc"]["fault"])
    return lines


def _unreadable() -> Iterator[str]:
    """What is wrong with the settings."""
    for read in SETTINGS.values():
        try:
            read()
        except RnnccError as error:
            problem = error.diagnostics[0]
            yield f"{problem.message}: {problem.help}"
        except ValueError as error:
            yield str(error)
