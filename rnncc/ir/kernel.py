"""A step with addresses, for the kernels that tables drive: those of CPUs, and the alternating ones.

The driver (templates/include/rnncc/cpu/sequence.h) is the same for all programs: it goes through steps and batch, and
owns threads and memory. The program says where every value lies, and where threads wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.dim import Dim
from rnncc.ir.step import Edge, Place, Read, Stage, Step, Vector


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """A value that a stage writes. It lies in the first destination that is wanted and has the compute type, or else in
    a workspace."""

    name: str
    width: Dim
    destinations: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewSlot:
    """The units [offset, offset + width) of another slot."""

    name: str
    width: Dim
    link: str
    offset: Dim


@dataclass(frozen=True, slots=True)
class TileSlot:
    """An accumulator of a stage's products, which has no address."""

    name: str
    width: Dim


Slot = Read | Edge | Vector | StoredSlot | ViewSlot | TileSlot


@dataclass(frozen=True, slots=True)
class Program:
    """A step and its addresses.

    slots     every value with an address, and the accumulators behind them
    barriers  for each stage, whether threads that share the units wait before it: it reads what others wrote
    """

    step: Step
    slots: tuple[Slot, ...]
    barriers: tuple[bool, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the step."""
        return self.step.stages
