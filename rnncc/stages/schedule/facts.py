"""What of a fused loop a layout depends on: the numbers that templates/include/rnncc/cuda/fused/step.cuh derives."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import Place, Table
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target

RING_STAGES = 8
# Bytes of a column of 8 units in a ring: 16-bit, float.
_COLUMN_BYTES, _FLOAT_COLUMN_BYTES = 16, 48


@dataclass(frozen=True, slots=True)
class Facts:
    """An item is the elementwise part of 8 units × 8 columns, done by one warp.

    ring_bytes       shared memory of an item's ring of tensors read ahead
    item_registers   of a thread for an item: carries, addresses, values on their way
    item_traffic     tensors that an item reads and writes, a float one counted twice
    unit_bytes       read and written in memory for a (unit, column) of a step
    """

    sums: int
    operands: int
    ring_bytes: int
    item_registers: int
    item_traffic: int
    unit_bytes: int


def facts(loop: FusedLoop) -> Facts:
    """Of the loop as training runs it; inference, which writes less, has the same layout."""

    def size(place: Place | None) -> int:
        return 2 if place is not None and place.table is Table.SAVED else 1

    reads = [size(read.place) for read in loop.reads]
    traffic = sum(reads) + sum(size(write.place) for write in loop.writes)
    carries = len(loop.edges) + len(loop.kept)
    addresses = -(-sum(reads) // 4)  # a lane copies 16 bytes of every fourth
    return Facts(
        len(loop.sums),
        len(loop.operands),
        RING_STAGES * 8 * sum(_FLOAT_COLUMN_BYTES if floats == 2 else _COLUMN_BYTES for floats in reads),
        2 * carries + 6 * addresses + len(loop.writes) + 12,
        sum(reads) + len(loop.writes),
        2 * traffic,
    )


def memory_us(facts: Facts, problem: Problem, target: Target) -> float:
    """Microseconds that a step's tensors take through memory, whatever the kernel."""
    elements = problem.columns * problem.heads * problem.units
    return elements * facts.unit_bytes / (1000 * target.memory_gb_s)
