"""What runs the calls of a layer: kernels, or eager torch in their place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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


def runner_of(layer: Any) -> Runner:
    """What runs calls of a layer in the dtype and on the device of its parameters. On a GPU, fused kernels are compiled
    by the first call: ask after it."""
    device, loops, why = layer._in_use()
    return Runner(device, loops, why if device == FALLBACK else "")


def together(runners: Iterable[Runner]) -> Runner:
    """What runs several layers, of which all run kernels of one device, or none does."""
    found = list(runners)
    return Runner(found[0].device, tuple(dict.fromkeys(loop for each in found for loop in each.loops)), found[0].why)
