"""What kernels are built for: instruction sets, names of GPUs, architectures, and what this machine has of them.
Imports no torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

from rnncc.ir.target import ARCHITECTURE, EVERY, GPUS, INSTRUCTION_SETS, Target, gpu
from rnncc.language.diagnostics import Diagnostic, RnnccError

# By the GPUs' names. An `a` has instructions that no other architecture runs.
ARCHITECTURES = {name: known.architecture for name, known in GPUS.items()}
OLDEST = 80
_MAJOR, _MINOR = 75, 76  # of CUdevice_attribute


def own_instructions() -> str:
    """What code for this machine's processor alone is compiled for; EVERY where that cannot be told."""
    return (instruction_sets() or (EVERY,))[-1]


def instruction_sets() -> tuple[str, ...]:
    """The INSTRUCTION_SETS that this machine's processor runs, best last; none where that cannot be read."""
    try:
        # Only as far as the first processor's flags: Linux makes up the text as it is read, processor by processor.
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return ()
    found = []
    for name, needed in INSTRUCTION_SETS.items():
        if not needed <= flags:
            break
        found.append(name)
    return tuple(found)


def architectures(target: str) -> tuple[str, ...]:
    """The architectures of a `--target` text: `auto` (the GPUs present), `cpu` (none), or names separated by commas.

    Raises RnnccError (RNN606) for a name that means nothing here.
    """
    found: dict[str, None] = {}
    for name in (part.strip().lower() for part in target.split(",")):
        match = ARCHITECTURE.fullmatch(name)
        if name == "auto":
            found.update(dict.fromkeys(present()))
        elif name in ARCHITECTURES:
            found[ARCHITECTURES[name]] = None
        elif match and int(match[1]) >= OLDEST:
            found[name] = None
        elif name != "cpu":
            raise _unknown(name, f"architectures from sm_{OLDEST} on, separated by commas")
    return tuple(sorted(found))


def planned(target: str) -> Target | None:
    """The GPU that plans are made for: a name or an architecture; `auto`: the first GPU present, if there is one.

    Raises RnnccError (RNN606) for several, and for a GPU whose sizes are not known here.
    """
    name = target.strip().lower()
    if "," in name:
        message = f"a plan is for one GPU, and '{name}' names several"
        raise RnnccError(Diagnostic("RNN606", message, help="name one: `--target h200`"))
    if name == "auto":
        return next((known for architecture in present() if (known := gpu(architecture))), None)
    found = gpu(name)
    if found is None and name != "cpu":
        raise _unknown(name, f"{', '.join(sorted(set(ARCHITECTURES.values())))}; a plan is for one of them")
    return found


def _unknown(name: str, architectures: str) -> RnnccError:
    known = ", ".join(("auto", "cpu", *ARCHITECTURES))
    return RnnccError(
        Diagnostic("RNN606", f"no kernels can be built for '{name}'", help=f"targets are {known}, and {architectures}")
    )


def architecture_of(major: int, minor: int) -> str:
    """What kernels for a GPU of that compute capability are compiled for: with an `a` where rnncc knows such a GPU."""
    number = 10 * major + minor
    return next((a for a in ARCHITECTURES.values() if a == f"sm_{number}a"), f"sm_{number}")


def present() -> tuple[str, ...]:
    """The architectures of this machine's GPUs, by the CUDA driver; none where there is no driver or no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    found = set()
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        if 10 * major.value + minor.value >= OLDEST:
            found.add(architecture_of(major.value, minor.value))
    return tuple(sorted(found))
