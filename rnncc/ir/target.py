"""What kernels are made for, as data: instruction sets of CPUs, architectures of GPUs, and a table of known GPUs.

An *architecture* is what device code is compiled for. `sm_80` is code for GPUs of compute capability 8.0, and for later
ones of the same generation. `sm_90a` is code for 9.0 alone. `compute_80` is PTX: the driver compiles it for the GPU
where it runs, which may be any from 8.0 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

# x86-64's levels, worst first, and what a processor needs for each beyond the one before, as Linux calls it (lzcnt is
# abm). dispatch.h looks for these features.
INSTRUCTION_SETS = {
    "generic": frozenset[str](),
    "v3": frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"}),
    "v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
# The types that CPU kernels compute in, and what C++ calls them: float64 in doubles, every other dtype in floats.
COMPUTE_TYPES = {"f32": "float", "f64": "double"}
# The files of CPU kernels that each cell has: of a compute type, its loops without lengths or resets, and (`masked`)
# those with them.
CPU_FILES = ("f32", "f32_masked", "f64", "f64_masked")
EVERY = "all"  # in place of one of them: all, in one library that chooses when it runs
ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d{2,3})(a?)", re.ASCII)


def compute_type_of(cpu_file: str) -> str:
    """The compute type of one of CPU_FILES."""
    return cpu_file.removesuffix("_masked")


def number_of(architecture: str) -> int:
    """The compute capability of an architecture, times ten: 90 of `sm_90a`, 80 of `compute_80`; 0 for what is none."""
    match = ARCHITECTURE.fullmatch(architecture)
    return int(match[1]) if match is not None else 0


def is_ptx(architecture: str) -> bool:
    """Whether code for it is PTX."""
    return architecture.startswith("compute_")


def code_file(name: str, architecture: str) -> str:
    """Where a package has its code of the kernels `name`; code_file in templates/include/rnncc/cuda/architecture.h has
    the same rule."""
    return f"cuda/{name}_{architecture}.{'ptx' if is_ptx(architecture) else 'cubin'}"


def has_clusters(architecture: str) -> bool:
    """Whether code for it uses clusters of several CTAs: since Hopper."""
    return number_of(architecture) >= 90


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU.

    architecture              what its kernels are compiled for
    sms                       the number of SMs, each with `REGISTERS` registers of 4 bytes in four quarters
    shared_bytes              the largest shared memory of a CTA; an SM has 1024 bytes more
    clusters                  pairs (CTAs per cluster, how many such clusters run at once with one CTA per SM). Clusters
                              of more than one CTA exist from sm_90 on
    clock_mhz                 the boost clock
    product_cycles            cycles that a quarter of an SM takes per mma.m16n8k16 (16-bit terms, float32 sums)
    l2_mb                     the size of the L2 cache
    l2_gb_s, memory_gb_s      the bandwidths of L2 and of memory
    memory_gb                 the size of memory
    threads, ctas             how many of them an SM has at once, at most
    is_measured               whether the rates of the cost model were fitted to this GPU. For others they are scaled
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
    threads: int = 2048
    ctas: int = 32
    is_measured: bool = False

    @property
    def capability(self) -> str:
        """The compute capability: `9.0`."""
        major, minor = divmod(number_of(self.architecture), 10)
        return f"{major}.{minor}"

    @property
    def float_lanes(self) -> int:
        """How many multiply-adds of float32 an SM makes per cycle, without tensor cores (CUDA C++ programming guide,
        "Throughput of Native Arithmetic Instructions")."""
        return 64 if number_of(self.architecture) == 80 else 128

    @property
    def has_clusters(self) -> bool:
        """Whether there are clusters of several CTAs."""
        return any(ctas > 1 for ctas, _ in self.clusters)

    @property
    def has_warpgroups(self) -> bool:
        """Whether kernels may use the products of warpgroups (wgmma.cuh)."""
        return self.architecture == "sm_90a"

    def with_ptx(self) -> Target:
        """The same GPU with PTX for its kernels. Any later GPU runs these, with the plans of this one."""
        return replace(self, architecture=f"compute_{number_of(self.architecture)}")


REGISTERS = 65_536


def _single(sms: int) -> tuple[tuple[int, int], ...]:
    return ((1, sms),)


# By compute capability: the largest shared memory of a CTA; threads and CTAs per SM. From the CUDA C++ programming
# guide, "Technical Specifications per Compute Capability".
_LIMITS = {
    "sm_80": (166_912, 2048, 32),
    "sm_86": (101_376, 1536, 16),
    "sm_89": (101_376, 1536, 24),
    "sm_90a": (232_448, 2048, 32),
    "sm_100a": (232_448, 2048, 32),
    "sm_103a": (232_448, 2048, 32),
    "sm_120a": (101_376, 1536, 24),
    "sm_121a": (101_376, 1536, 24),
}
# Pairs as in `Target.clusters`. Hopper's were measured on an H200, with 200 KB of shared memory per CTA. The others are
# estimates; a kernel asks the driver before it runs. GPUs of compute capability 12 have no clusters of 16.
_HOPPER = ((1, 132), (2, 66), (4, 30), (8, 15), (16, 7))
_BLACKWELL = ((1, 148), (2, 74), (4, 34), (8, 16), (16, 7))
_RTX_5090 = ((1, 170), (2, 85), (4, 40), (8, 17))
_GB10 = ((1, 48), (2, 24), (4, 11), (8, 5))
# Where a user names an architecture, plans are for its first GPU here.
#
# Name, architecture, clusters; clock, product cycles; L2: MB, GB/s; memory: GB/s, GB.
#
# SMs, clocks, caches and memories are those of NVIDIA's data sheets and architecture whitepapers (A100, "NVIDIA A100
# Tensor Core GPU Architecture"; A10, L4 and L40S, data sheets; RTX 3090, "NVIDIA Ampere GA102 GPU Architecture"; RTX
# 4090, "NVIDIA Ada GPU Architecture"; H100, "NVIDIA H100 Tensor Core GPU Architecture"; RTX 5090, "NVIDIA RTX Blackwell
# GPU Architecture"), and for B200, B300 and GB10 what the driver says of them. A100 and H100 are those of 80 GB.
#
# The product cycles of GPUs before Hopper and of the RTX 5090 follow from the data sheets' dense rates in FP16 with
# float32 sums: GeForce cards have half the rate of the others there. The H200's were measured: its mma.sync does not
# reach the data sheet's rate, 4. B200 and B300 have the H200's, and GB10 has the RTX 5090's: a guess.
#
# L2's bandwidth was measured on an H200; by others on an A100 and an RTX 4090 (arXiv:2402.13499, table V: 2008 and 1708
# bytes per cycle). The others are estimates from these, by SMs and clock.
_ROWS = (
    ("a100", "sm_80", _single(108), 1410, 8, 40, 2800, 2039, 80),
    ("rtx3090", "sm_86", _single(82), 1695, 32, 6, 1800, 936, 24),
    ("a10", "sm_86", _single(72), 1695, 16, 6, 1600, 600, 24),
    ("rtx4090", "sm_89", _single(128), 2520, 32, 72, 4300, 1008, 24),
    ("l4", "sm_89", _single(58), 2040, 16, 48, 1500, 300, 24),
    ("l40s", "sm_89", _single(142), 2520, 16, 96, 4700, 864, 48),
    ("h100", "sm_90a", _HOPPER, 1980, 6.3, 50, 7000, 3350, 80),
    ("h200", "sm_90a", _HOPPER, 1980, 6.3, 50, 7000, 4800, 141),
    ("b200", "sm_100a", _BLACKWELL, 1965, 6.3, 126, 8000, 8000, 180),
    ("b300", "sm_103a", _BLACKWELL, 2032, 6.3, 126, 8000, 8000, 270),
    ("rtx5090", "sm_120a", _RTX_5090, 2407, 32, 96, 5300, 1792, 32),
    ("gb10", "sm_121a", _GB10, 2418, 32, 24, 1500, 273, 120),
)
_MEASURED = "h200"


def _known() -> Iterator[Target]:
    for name, architecture, clusters, clock, cycles, l2_mb, l2_gb_s, memory_gb_s, memory_gb in _ROWS:
        shared, threads, ctas = _LIMITS[architecture]
        sms, is_measured = clusters[0][1], name == _MEASURED
        chip = (clock, cycles, l2_mb, l2_gb_s, memory_gb_s, memory_gb)
        yield Target(name, architecture, sms, shared, clusters, *chip, threads, ctas, is_measured)


GPUS = {known.name: known for known in _known()}


def gpu(name: str) -> Target | None:
    """The GPU of that name, or the first known one of that architecture (`sm_90` and `sm_90a` alike), whose kernels are
    then compiled for what the name says; else None."""
    if name in GPUS:
        return GPUS[name]
    number = number_of(name)
    known = next((each for each in GPUS.values() if number_of(each.architecture) == number), None)
    return None if known is None else replace(known, architecture=name)
