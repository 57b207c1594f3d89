"""The GPUs that kernels are planned for, as data: what one has, and a table of known ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU.

    architecture              as nvcc names it: sm_90a
    multiprocessors           each with `REGISTERS` registers of 4 bytes in four quarters
    shared_bytes              most of one thread block (of a multiprocessor: 1024 more)
    clusters                  (blocks of a cluster, how many such clusters run at once, a block a multiprocessor);
                              larger ones than 1 exist where blocks send into each other's shared memory (sm_90 on)
    clock_mhz                 boost
    product_cycles            of a quarter, from one mma.m16n8k16 (16-bit, float32 sums) to the next
    l2_mb                     of the L2 cache
    l2_gb_s, memory_gb_s      bandwidths
    memory_gb                 of memory
    """

    name: str
    architecture: str
    multiprocessors: int
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
        """Whether blocks form clusters of several."""
        return any(blocks > 1 for blocks, _ in self.clusters)


REGISTERS = 65_536

# Sources: NVIDIA's architecture whitepapers and the CUDA programming guide's table of compute capabilities. Measured on
# an H200: its clusters (with 200 KB of shared memory a block), product cycles and L2 bandwidth; the H100 is the same
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
