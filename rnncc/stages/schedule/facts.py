"""What of a fused loop a layout depends on: the numbers that templates/include/rnncc/cuda/fused/step.cuh derives."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import Place, Table
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target

# Of the ring that holds what a block reads ahead: few stages where one is larger than this, many where not.
_LARGE_STAGE, _FEW_STAGES, _MANY_STAGES = 8192, 4, 8


@dataclass(frozen=True, slots=True)
class Facts:
    """An item is the elementwise part of 8 units × 8 columns, done by one warp.

    reads, float_reads   tensors [T, B, H] read, of 16 bits and of float
    writes, float_writes the same, written
    item_registers       of a thread for an item: carries and values on their way
    item_traffic         pieces that an item of the alternating kernel reads, tensors that it writes
    unit_bytes           read and written in memory for a (unit, column) of a step
    """

    sums: int
    operands: int
    reads: int
    float_reads: int
    writes: int
    float_writes: int
    item_registers: int
    item_traffic: int
    unit_bytes: int

    @property
    def read_pieces(self) -> int:
        """Of 16 bytes, for 8 units of a column."""
        return self.reads + 2 * self.float_reads

    @property
    def written_pieces(self) -> int:
        """Of 16 bytes, for 8 units of a column."""
        return self.writes + 2 * self.float_writes

    @property
    def pieces(self) -> int:
        """Of 16 bytes, for 8 units of a column."""
        return self.read_pieces + self.written_pieces

    def traffic_bytes(self, unit_blocks: int, columns: int) -> int:
        """Shared memory of a block for what it reads ahead and has written, for so many blocks of 8 units. Rows are odd
        multiples of 16 bytes."""

        def rows(tensors: int, floats: int) -> int:
            return columns * 16 * (tensors * (unit_blocks | 1) + floats * (2 * unit_blocks + 1))

        stage = rows(self.reads, self.float_reads)
        stages = _FEW_STAGES if stage > _LARGE_STAGE else _MANY_STAGES
        return stages * (stage + 8) + 2 * rows(self.writes, self.float_writes)


def facts(loop: FusedLoop, dtype: str) -> Facts:
    """Of the loop as training runs it with streams of that dtype; inference, which writes less, has the same layout."""

    def is_float(place: Place | None) -> bool:
        return dtype == "fp32" or (place is not None and place.table is Table.SAVED)

    float_reads = sum(is_float(read.place) for read in loop.reads)
    float_writes = sum(is_float(write.place) for write in loop.writes)
    carries = len(loop.edges) + len(loop.kept)
    pieces = len(loop.reads) + float_reads
    return Facts(
        len(loop.sums),
        len(loop.operands),
        len(loop.reads) - float_reads,
        float_reads,
        len(loop.writes) - float_writes,
        float_writes,
        2 * carries + len(loop.writes) + 12,
        pieces + len(loop.writes),
        2 * (pieces + len(loop.writes) + float_writes),
    )


def memory_us(facts: Facts, problem: Problem, target: Target) -> float:
    """Microseconds that a step's tensors take through memory, whatever the kernel."""
    elements = problem.columns * problem.heads * problem.units
    return elements * facts.unit_bytes / (1000 * target.memory_gb_s)
