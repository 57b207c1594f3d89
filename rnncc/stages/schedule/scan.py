"""How the kernels of a loop without products are laid out (templates/include/rnncc/cuda/scan): one layout for all GPUs
and sizes, since only the number of thread blocks goes by these, at run time."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.scan import ScanLoop
from rnncc.ir.schedule import ScanSchedule, ScanShape


def scan_schedule(loop: ScanLoop, element_bytes: int) -> ScanSchedule:
    """The kernels for streams of elements of so many bytes."""
    known = _facts(loop)
    return ScanSchedule(loop.map is not None, *(_shape(known, element_bytes, wide) for wide in (True, False)))


@dataclass(frozen=True, slots=True)
class _Facts:
    """entries   slopes of the map of several steps, at most; 0 of a walk
    edges, totals   floats of a channel that live from step to step, and that are summed
    """

    edges: int
    totals: int
    entries: int


def _facts(loop: ScanLoop) -> _Facts:
    return _Facts(len(loop.edges), len(loop.totals), sum(loop.map.entries()) if loop.map else 0)


def _shape(facts: _Facts, element_bytes: int, wide: bool) -> ScanShape:
    vector = 2 if wide and element_bytes == 2 else 1
    steps, warps = 8, 4
    lanes = 128 * vector  # bytes of a float of each channel of a warp
    if not facts.entries:
        return ScanShape(vector, steps, warps, 128, 4, 0, 0, 0)
    maps = 2 * lanes * (facts.entries + facts.edges)
    shared = warps * maps + 2 * lanes * facts.edges + 16
    return ScanShape(vector, steps, warps, 128, 4, shared, maps, lanes * warps * facts.totals)
