"""The GPUs of this machine, as the CUDA driver describes them. Imports no torch."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from rnncc.ir.target import GPUS, Target, number_of

OLDEST = 80  # the oldest compute capability that kernels run on, times ten
# Of CUdevice_attribute (cuda.h), by what they are of a GPU.
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
    found = (known_or_own(name, facts) for name, facts in _driver_facts())
    return tuple(target for target in found if number_of(target.architecture) >= OLDEST)


def at(capability: tuple[int, int], index: int) -> Target:
    """The GPU of that number, as torch counts them too. `capability`: what torch says of it. Where the driver says
    nothing, or something else, it is the first known GPU of that compute capability."""
    found = _driver_facts()
    if index < len(found) and (found[index][1]["major"], found[index][1]["minor"]) == capability:
        return known_or_own(*found[index])
    like = _alike("", 10 * capability[0] + capability[1])
    return replace(like, architecture=architecture_of(*capability))


def architecture_of(major: int, minor: int) -> str:
    """What kernels for a GPU of that compute capability are compiled for: with an `a` where rnncc knows such a GPU."""
    known = (gpu.architecture for gpu in GPUS.values())
    return next((name for name in known if name == f"sm_{major}{minor}a"), f"sm_{major}{minor}")


def known_or_own(name: str, facts: Mapping[str, int]) -> Target:
    """The known GPU of that name that has as many SMs as the driver says. Any other one (an RTX 4080, a part of an
    A100) is described by what the driver says of it. What the driver does not say is taken from the known GPU that is
    most alike, by SMs and clock where it depends on these. `facts`: by the names of _ATTRIBUTES, and `memory_bytes`;
    0 where the driver did not say."""
    architecture = architecture_of(facts["major"], facts["minor"])
    words = _WORDS.split(re.sub(r"rtx\s+", "rtx", name.lower()))
    for known in GPUS.values():
        if (known.architecture, known.sms) == (architecture, facts["sms"]) and known.name in words:
            return known
    like = _alike(name, number_of(architecture))
    clock_mhz = facts["clock_khz"] // 1000 or like.clock_mhz
    sms = facts["sms"]
    # Two transfers per clock, of so many bits.
    memory_gb_s = facts["memory_clock_khz"] * facts["memory_bus_bits"] // 4_000_000
    return Target(
        name=name,
        architecture=architecture,
        sms=sms,
        shared_bytes=facts["shared_bytes"] or like.shared_bytes,
        clusters=tuple((ctas, max(1, count * sms // like.sms)) for ctas, count in like.clusters if ctas <= sms),
        clock_mhz=clock_mhz,
        product_cycles=like.product_cycles,
        l2_mb=facts["l2_bytes"] >> 20 or like.l2_mb,
        l2_gb_s=like.l2_gb_s * sms * clock_mhz // (like.sms * like.clock_mhz),
        memory_gb_s=memory_gb_s or like.memory_gb_s,
        memory_gb=max(1, round(facts["memory_bytes"] / 1e9)),
        threads=facts["threads"] or like.threads,
        ctas=facts["ctas"] or like.ctas,
    )


def _alike(name: str, number: int) -> Target:
    """The known GPU that is most like one of that name: of its compute capability or the last one before it, and among
    these one that is a GeForce card if it is one."""
    numbers = {number_of(gpu.architecture) for gpu in GPUS.values()}
    own = max((each for each in numbers if each <= number), default=min(numbers))
    alike = [gpu for gpu in GPUS.values() if number_of(gpu.architecture) == own]
    return next((gpu for gpu in alike if gpu.name.startswith("rtx") == ("geforce" in name.lower())), alike[0])


@cache
def _driver_facts() -> tuple[tuple[str, Mapping[str, int]], ...]:
    """The name of each GPU, and its facts as `known_or_own` takes them."""
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
