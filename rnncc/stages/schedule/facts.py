"""What of a fused loop a layout depends on: the numbers that templates/include/rnncc/cuda/fused/step.cuh derives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import Place, Table
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.language.operators import OPERATORS

# Of the ring that holds what a block reads ahead: few stages where one is larger than this, many where not.
_LARGE_STAGE, _FEW_STAGES, _MANY_STAGES = 8192, 4, 8

# Instructions of a function, about: tanh, a sigmoid, a quotient. bfloat16 has the hardware's own (fused/fast.cuh).
_FUNCTION_OPERATIONS = {"bf16": 8, "fp16": 27, "fp32": 27}


@dataclass(frozen=True, slots=True)
class Facts:
    """An item is the elementwise part of 8 units × 8 columns, done by one warp.

    carries              floats that live from step to step
    reads, float_reads   tensors [T, B, H] read, of 16 bits and of float
    writes, float_writes the same, written
    item_registers       of a thread for an item: carries and values on their way
    item_traffic         pieces that an item of the alternating kernel reads, tensors that it writes
    operations           instructions of an element's elementwise part, about
    unit_bytes           read and written in memory for a (unit, column) of a step
    """

    sums: int
    operands: int
    carries: int
    reads: int
    float_reads: int
    writes: int
    float_writes: int
    item_registers: int
    item_traffic: int
    operations: int
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
        carries,
        len(loop.reads) - float_reads,
        float_reads,
        len(loop.writes) - float_writes,
        float_writes,
        2 * carries + len(loop.writes) + 12,
        pieces + len(loop.writes),
        sum(_operations(statement.expr, _FUNCTION_OPERATIONS[dtype]) for statement in (*loop.start, *loop.finish)),
        2 * (pieces + len(loop.writes) + float_writes),
    )


def _operations(expr: Expr, of_function: int) -> int:
    match expr:
        case Const() | Ref():
            return 0
        case Apply(operator, arguments):
            own = 1 if OPERATORS[operator].cheap else of_function
            return own + sum(_operations(argument, of_function) for argument in arguments)
        case _:
            assert_never(expr)


def reached_gb_s(target: Target) -> float:
    """What copies reach of the memory's bandwidth, as measured on an H200."""
    return 0.86 * target.memory_gb_s


def memory_us(facts: Facts, problem: Problem, target: Target) -> float:
    """Microseconds that a step's tensors take through memory, whatever the kernel."""
    elements = problem.columns * problem.heads * problem.units
    return elements * facts.unit_bytes / (1000 * reached_gb_s(target))
