"""What kernels are made for, as data: instruction sets of CPUs, architectures of GPUs, and a table of known GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

# x86-64's levels, worst first, and what a processor needs for each beyond the one before, as Linux calls it (lzcnt is
# abm): templates/include/rnncc/cpu/dispatch.h has the same lists.
INSTRUCTION_SETS = {
    "generic": frozenset[str](),
    "v3": frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"}),
    "v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
EVERY = "all"  # in place of one of them: all, in one library that chooses when it runs
# What kernels are compiled for: a GPU architecture's code (sm_90a), or PTX (compute_80), which a driver translates.
ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d{2,3})(a?)")


def has_clusters(architecture: str) -> bool:
    """Whether CTAs form clusters there: since Hopper."""
    return number_of(architecture) >= 90


def number_of(architecture: str) -> int:
    """Its number: 90 for sm_90a; 0 for what is no architecture."""
    match = ARCHITECTURE.fullmatch(architecture)
    return int(match[1]) if match is not None else 0


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU.

    architecture              its name: sm_90a
    sms                       the number of SMs, each with `REGISTERS` registers of 4 bytes in four quarters
    shared_bytes              the largest shared memory of a CTA; an SM has 1024 bytes more
    clusters                  pairs (CTAs per cluster, how many such clusters run at once with one CTA per SM). Clusters
                              of more than one CTA exist from sm_90 on
    clock_mhz                 the boost clock
    product_cycles            cycles that a quarter of an SM takes per mma.m16n8k16 (16-bit terms, float32 sums)
    l2_mb                     the size of the L2 cache
    l2_gb_s, memory_gb_s      the bandwidths of L2 and of memory
    memory_gb                 the size of memory
    """

    name: str
    architecture: str
    sms: int
    shared_bytes: int
    clusters: tuple[tuple[int, int], ...]
    clock_mhz: int
    product_cycles: float
    l2_mb: int
    l2_gb_s: int
    memory_gb_s: int
    memory_gb: int

    @property
    def capability(self) -> str:
        """The compute capability: `9.0`."""
        number = self.architecture.removeprefix("sm_").rstrip("a")
        return f"{number[:-1]}.{number[-1]}"

    @property
    def has_clusters(self) -> bool:
        """Whether there are clusters of several CTAs."""
        return any(ctas > 1 for ctas, _ in self.clusters)


REGISTERS = 65_536

# Sources: NVIDIA's architecture whitepapers and the CUDA programming guide's table of compute capabilities. Measured on
# an H200: its clusters (with 200 KB of shared memory per CTA), product cycles and L2 bandwidth; the H100 is the same
# chip. Estimates: the other GPUs' L2 bandwidths, and the B200's clusters and product cycles. A100 and H100 are those of
# 80 GB.
_HOPPER = ((1, 132), (2, 66), (4, 30), (8, 15), (16, 7))
_BLACKWELL = ((1, 148), (2, 74), (4, 34), (8, 16), (16, 7))
GPUS = {
    gpu.name: gpu
    for gpu in (
        Target("a100", "sm_80", 108, 166_912, ((1, 108),), 1410, 8, 40, 4000, 2039, 80),
        Target("rtx3090", "sm_86", 82, 101_376, ((1, 82),), 1695, 32, 6, 2000, 936, 24),
        Target("rtx4090", "sm_89", 128, 101_376, ((1, 128),), 2520, 16, 72, 5000, 1008, 24),
        Target("h100", "sm_90a", 132, 232_448, _HOPPER, 1980, 6.3, 50, 7000, 3350, 80),
        Target("h200", "sm_90a", 132, 232_448, _HOPPER, 1980, 6.3, 50, 7000, 4800, 141),
        Target("b200", "sm_100a", 148, 232_448, _BLACKWELL, 1965, 6.3, 126, 8000, 8000, 180),
    )
}


def gpu(name: str) -> Target | None:
    """The GPU of that name, or the first known one of that architecture (`sm_90` and `sm_90a` alike); else None."""
    return GPUS.get(name) or next((g for g in GPUS.values() if g.architecture.rstrip("a") == name.rstrip("a")), None)
