"""The kernels of a package, as layers call them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch


def said_by(library: ctypes.CDLL, name: str) -> int:
    """A number that a library exports, since its own code reads it, too."""
    return ctypes.c_int64.in_dll(library, name).value


def runs_on(architecture: str, major: int, minor: int) -> bool:
    """Whether a GPU of that compute capability runs code for an architecture: PTX (`compute_80`) of its own or an older
    one; other code (`sm_80`) of its own or an older one of its generation, or (`sm_90a`) of its own alone.
    templates/include/rnncc/cuda/architecture.h has the same rule."""
    if architecture.startswith("compute_"):
        return int(architecture.removeprefix("compute_")) <= 10 * major + minor
    return architecture in (f"sm_{major}{minor}a", *(f"sm_{major}{older}" for older in range(minor + 1)))


@dataclass(frozen=True, slots=True)
class Kernels:
    """The ops of a package by name: `linear`, each segment's forward by the segment's name, and with kernels for GPUs
    `permute_rows`, and `head_norm` where layers call it; by the same names what runs them, their `calls` (autograd.py)
    or, of those `dispatched`, the ops themselves: for whoever must see them go through the dispatcher, compilers,
    torch.jit.trace, autocast. `whole`: the ops of whole layers (whole.py), by the segment's name. `architectures`:
    those that it has kernels for, as `sm_90a`, or PTX for, as `compute_80`. `long_call_steps`: a call of so many steps
    warns where it is slow. `head_norm_units`: the units of the largest head that `head_norm` takes."""

    namespace: str
    ops: dict[str, Any]
    architectures: tuple[str, ...] = ()
    calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    long_call_steps: int = 0
    head_norm_units: int = 0
    dispatched: Kernels = field(init=False, repr=False, compare=False)
    _known: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = self if self.calls is self.ops else replace(self, calls=self.ops)
        object.__setattr__(self, "dispatched", own)

    def run_on(self, major: int, minor: int) -> bool:
        """Whether there are kernels for a GPU of that compute capability."""
        return any(runs_on(architecture, major, minor) for architecture in self.architectures)

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
