"""What kernels are built for: names of GPUs, architectures, and the GPUs of this machine. Imports no torch."""

from __future__ import annotations

import ctypes
import re

from rnncc.diagnostics import Diagnostic, RnnccError

# NVIDIA's architectures by the GPUs' names. An `a` has instructions that no other architecture runs.
ARCHITECTURES = {
    "a100": "sm_80",
    "rtx3090": "sm_86",
    "rtx4090": "sm_89",
    "h100": "sm_90a",
    "h200": "sm_90a",
    "b200": "sm_100a",
}
OLDEST = 80
_ARCHITECTURE = re.compile(r"sm_(\d{2,3})(a?)")
_MAJOR, _MINOR = 75, 76  # of CUdevice_attribute


def architectures(target: str) -> tuple[str, ...]:
    """The architectures of a `--target` text: `auto` (the GPUs present), `cpu` (none), or names separated by commas.

    Raises RnnccError (RNN606) for a name that means nothing here.
    """
    found: dict[str, None] = {}
    for name in (part.strip().lower() for part in target.split(",")):
        match = _ARCHITECTURE.fullmatch(name)
        if name == "auto":
            found.update(dict.fromkeys(present()))
        elif name in ARCHITECTURES:
            found[ARCHITECTURES[name]] = None
        elif match and int(match[1]) >= OLDEST:
            found[name] = None
        elif name != "cpu":
            known = ", ".join(("auto", "cpu", *ARCHITECTURES))
            raise RnnccError(
                Diagnostic(
                    "RNN606",
                    f"no kernels can be built for '{name}'",
                    help=f"targets are {known}, and architectures from sm_{OLDEST} on, separated by commas",
                )
            )
    return tuple(sorted(found))


def has_clusters(architecture: str) -> bool:
    """Whether thread blocks form clusters there: since Hopper."""
    match = _ARCHITECTURE.fullmatch(architecture)
    return match is not None and int(match[1]) >= 90


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
        number = 10 * major.value + minor.value
        if number >= OLDEST:
            found.add(next((a for a in ARCHITECTURES.values() if a == f"sm_{number}a"), f"sm_{number}"))
    return tuple(sorted(found))
