"""The kernels of a package, as layers call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Kernels:
    """The ops of a package by name: `linear`, each segment's forward by the segment's name, and with kernels for GPUs
    `permute_rows`, and `head_norm` where layers call it; by the same names what runs them, their `calls` (autograd.py)
    or, of those `dispatched`, the ops themselves: for whoever must see them go through the dispatcher, compilers,
    torch.jit.trace, autocast. `architectures`: those that it has kernels for, as
    `sm_90a`, or PTX for, as `compute_80`."""

    namespace: str
    ops: dict[str, Any]
    architectures: tuple[str, ...] = ()
    calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    dispatched: Kernels = field(init=False, repr=False, compare=False)
    _known: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = self if self.calls is self.ops else replace(self, calls=self.ops)
        object.__setattr__(self, "dispatched", own)

    def run_on(self, major: int, minor: int) -> bool:
        """Whether there are kernels for a GPU of that compute capability: its own, an older one's of its generation, or
        PTX for any older one."""
        older = {f"sm_{major}{number}" for number in range(minor + 1)}
        translated = {f"compute_{number}" for number in range(10 * major + minor + 1)}
        return not {f"sm_{major}{minor}a", *older, *translated}.isdisjoint(self.architectures)

    def run_on_gpu(self, index: int) -> bool:
        """The same of this machine's GPU of that number, which eager calls ask again and again."""
        if torch.compiler.is_compiling():
            return self.run_on(*torch.cuda.get_device_capability(index))
        if index not in self._known:
            self._known[index] = self.run_on(*torch.cuda.get_device_capability(index))
        return self._known[index]

    def run(self, name: str, *arguments: Any) -> Any:
        """The op of that name."""
        return self.calls[name](*arguments)
