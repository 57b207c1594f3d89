"""What runs the calls of a layer: kernels, or eager torch in their place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# How a layer's `explain` says which kernels run a loop of it on a GPU.
_LOOP = re.compile(r"  \w+: ((?:fused|alternating|scan|walk|forward)\b(?: \([^)]*\)|[^,:]*))")
FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class Runner:
    """What runs the calls of a layer. `str` of it is the value `kernels` of `--json`: `cpu`, `fallback`, or
    `cuda: fused (forward grid, backward grid)` with the kernels of each loop.

    device   `cpu` or `cuda`, whose kernels run; `fallback`: eager torch runs
    loops    on a GPU, the kernels that run each loop
    why      why eager torch runs
    """

    device: str
    loops: tuple[str, ...] = ()
    why: str = ""

    @property
    def is_fallback(self) -> bool:
        """Whether eager torch runs."""
        return self.device == FALLBACK

    @property
    def words(self) -> str:
        """For a sentence: `GPU kernels (alternating)`."""
        if self.is_fallback:
            return "the eager fallback"
        loops = f" ({'; '.join(self.loops)})" if self.loops else ""
        return f"{'GPU' if self.device == 'cuda' else 'CPU'} kernels{loops}"

    def __str__(self) -> str:
        return f"{self.device}: {'; '.join(self.loops)}" if self.loops else self.device


def runner_of(layer: Any, batch: int) -> Runner:
    """What runs calls with a batch of that size, of a layer and the dtype and device of its parameters. On a GPU, fused
    kernels are compiled by the first call: ask after it."""
    first, *lines = layer.explain(batch_size=batch).splitlines()
    _, path, why = first.split(": ", 2)
    if path.startswith("the eager fallback"):
        return Runner(FALLBACK, why=why)
    if path.startswith("CPU"):
        return Runner("cpu")
    return Runner("cuda", tuple(match[1].strip() for line in lines if (match := _LOOP.match(line))))


def together(runners: Iterable[Runner]) -> Runner:
    """What runs several layers, of which all run kernels of one device, or none does."""
    found = list(runners)
    return Runner(found[0].device, tuple(dict.fromkeys(loop for each in found for loop in each.loops)), found[0].why)
