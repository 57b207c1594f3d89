"""The GPUs of this machine, as the CUDA driver describes them. Imports no torch."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from rnncc.ir.target import GPUS, Target, number_of

OLDEST = 80  # the oldest compute capability that kernels run on, times ten
# Numbers of CUdevice_attribute (cuda.h), by our names for what they ask. `shared_bytes`: of a CTA, where a kernel opts
# in; `threads`, `ctas`: of an SM at once.
_ATTRIBUTES = {
    "clock_khz": 13,
    "sms": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "threads": 39,
    "major": 75,
    "minor": 76,
    "shared_bytes": 97,
    "ctas": 106,
}
_WORDS = re.compile(r"[^a-z0-9]+")


@cache
def here() -> tuple[Target, ...]:
    """The GPUs that kernels run on, in the driver's order; none where there is no driver or no GPU."""
    found = (describe(name, facts) for name, facts in _driver_facts())
    return tuple(target for target in found if number_of(target.architecture) >= OLDEST)


def at(capability: tuple[int, int], index: int) -> Target:
    """The GPU of that number, which torch and the driver have in common. `capability`: its compute capability, as torch
    says. Where the driver has no GPU of both, the result is the first known one of that compute capability."""
    found = _driver_facts()
    if index < len(found) and (found[index][1]["major"], found[index][1]["minor"]) == capability:
        return describe(*found[index])
    nearest = _nearest_known("", 10 * capability[0] + capability[1])
    return replace(nearest, architecture=architecture_of(*capability))


def architecture_of(major: int, minor: int) -> str:
    """What kernels for a GPU of that compute capability are compiled for: with an `a` where rnncc knows such a GPU."""
    known = (gpu.architecture for gpu in GPUS.values())
    return next((name for name in known if name == f"sm_{major}{minor}a"), f"sm_{major}{minor}")


def describe(name: str, facts: Mapping[str, int]) -> Target:
    """The GPU that the driver calls so. It is a known GPU where name, architecture and SMs are that one's. Any other
    GPU (an RTX 4080, a part of an A100) is what the driver says of it. What the driver does not say is taken from the
    nearest known GPU, in proportion to SMs and clock where it depends on them.

    facts  numbers by the names of _ATTRIBUTES, and `memory_bytes`; 0 where the driver did not say
    """
    architecture = architecture_of(facts["major"], facts["minor"])
    words = _WORDS.split(re.sub(r"rtx\s+", "rtx", name.lower()))
    for known in GPUS.values():
        if (known.architecture, known.sms) == (architecture, facts["sms"]) and known.name in words:
            return known
    nearest = _nearest_known(name, number_of(architecture))
    clock_mhz = facts["clock_khz"] // 1000 or nearest.clock_mhz
    sms = facts["sms"]
    # Two transfers per clock, of so many bits.
    memory_gb_s = facts["memory_clock_khz"] * facts["memory_bus_bits"] // 4_000_000
    return Target(
        name=name,
        architecture=architecture,
        sms=sms,
        shared_bytes=facts["shared_bytes"] or nearest.shared_bytes,
        clusters=tuple((ctas, max(1, count * sms // nearest.sms)) for ctas, count in nearest.clusters if ctas <= sms),
        clock_mhz=clock_mhz,
        product_cycles=nearest.product_cycles,
        l2_mb=facts["l2_bytes"] >> 20 or nearest.l2_mb,
        l2_gb_s=nearest.l2_gb_s * sms * clock_mhz // (nearest.sms * nearest.clock_mhz),
        memory_gb_s=memory_gb_s or nearest.memory_gb_s,
        memory_gb=max(1, round(facts["memory_bytes"] / 1e9)),
        threads=facts["threads"] or nearest.threads,
        ctas=facts["ctas"] or nearest.ctas,
    )


def _nearest_known(name: str, number: int) -> Target:
    """The known GPU that is most like a GPU of that name and architecture (90: sm_90): of its compute capability or the
    last one before it. A GeForce card is most like a GeForce card, if there is one."""
    numbers = {number_of(gpu.architecture) for gpu in GPUS.values()}
    own = max((each for each in numbers if each <= number), default=min(numbers))
    alike = [gpu for gpu in GPUS.values() if number_of(gpu.architecture) == own]
    return next((gpu for gpu in alike if gpu.name.startswith("rtx") == ("geforce" in name.lower())), alike[0])


@cache
def _driver_facts() -> tuple[tuple[str, Mapping[str, int]], ...]:
    """The name of each GPU, and its facts as `describe` takes them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_facts(driver, index) for index in range(count.value))


def _facts(driver: ctypes.CDLL, index: int) -> tuple[str, Mapping[str, int]]:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    facts = {"memory_bytes": memory.value}
    for fact, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        facts[fact] = value.value
    return name.value.decode(errors="replace"), facts
