"""How the fused kernels of a loop are laid out on a GPU for one size and dtype."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FusedSchedule:
    """One kernel of one loop.

    family         gather or scatter (a cluster of thread blocks for a head and group of columns), or grid
    blocks         thread blocks of a cluster, or of the grid for a head and group of columns
    shape          the template arguments of the family's shape after the step and the units, in its order
    threads, shared_bytes, registers   of a thread block, and of a thread as planned
    columns        most batch columns of a group
    step_us        what a step is expected to take
    """

    family: str
    blocks: int
    shape: tuple[int, ...]
    threads: int
    shared_bytes: int
    registers: int
    columns: int
    step_us: float


@dataclass(frozen=True, slots=True)
class FusedKernels:
    """The fused kernels of a cell for heads of `units` units; `dtype` is bf16 or f16. `kernels`: the program's name
    and how it is laid out; of several of one program, those for few batch columns stand first."""

    units: int
    dtype: str
    kernels: tuple[tuple[str, FusedSchedule], ...]
