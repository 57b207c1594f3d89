"""What the models of all families share: the multiprocessor's limits, and how batch columns are shared out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rnncc.constrint import Expression, Model, Solution, Variable, ceil_div, lookup
from rnncc.constrint.expr import Operand
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import FusedSchedule
from rnncc.ir.target import REGISTERS, Target
from rnncc.stages.schedule.facts import Facts, memory_us, reached_gb_s
from rnncc.stages.schedule.rates import Rates

MOST_WARPS = 16
MOST_THREADS = 2048  # of a multiprocessor
UNIT_BLOCK, TILE_COLUMNS = 8, 8  # of an item
# A pair of k16 fragments of 16 rows of 16-bit numbers, or of 8 rows of float32: of a warp in shared memory, of a thread
# in registers.
PAIR_BYTES, PAIR_REGISTERS = 1024, 8
# Of a thread, for a piece of 16 bytes that it moves every step: from where, to where, in which steps.
_PIECE_REGISTERS = 5
# Of a thread, for addresses and counters: what nvcc 13 needs for the LSTM and the GRU without a spill.
BASE_REGISTERS = 30
# More cost more than they save. (The estimate is high by up to 20: at 768 and 2048 units that many are no harm.)
MOST_SPILLED = 32
TENTHS_OF_NS = 10_000  # in a microsecond


@dataclass(frozen=True, slots=True)
class Draft:
    """A family's model for one loop, problem and GPU.

    step     tenths of a nanosecond
    total    the same for all batch columns: as many passes as it takes
    busy     of `step`, what a thread block keeps its multiprocessor from others: those that are there as well wait
    needed   registers of a thread, as counted; nvcc takes about `overcount` fewer
    shape, tiles, blocks, threads, shared_bytes, registers, columns, capacity
             as FusedSchedule has them; capacity 0 means any number
    """

    family: str
    facts: Facts
    model: Model
    step: Expression
    total: Expression
    busy: Expression
    needed: Operand
    overcount: int
    shape: tuple[Operand, ...]
    tiles: Mapping[str, Operand]
    blocks: Operand
    threads: Operand
    shared_bytes: Expression
    registers: Operand
    columns: Operand
    capacity: Operand

    def expected_us(
        self, solution: Solution, problem: Problem, target: Target, shared_bytes: int | None = None
    ) -> float:
        """Microseconds of a step of all batch columns; none takes less than its tensors do through memory.
        `shared_bytes`: of a block, where a layout for other columns is used.

        All blocks of the grid run at once. Of clusters as many do as registers and shared memory allow, several on a
        multiprocessor, the others after them. Those of a multiprocessor hide each other's latencies, but not what they
        are busy with: together they take as long as one alone, or as that of all."""
        value, memory = solution.value, memory_us(self.facts, problem, target)
        step_us = value(self.step) / TENTHS_OF_NS
        if value(self.capacity):
            operands = problem.heads * self.facts.operands * ceil(problem.units, 32) * 32
            exchanged = problem.columns * operands * element_bytes(problem.dtype)
            return max(step_us, memory) + exchanged / (1000 * reached_gb_s(target))  # which is cleared first
        blocks, threads = value(self.blocks), value(self.threads)
        registers = round_up(value(self.needed) - self.overcount, 8)
        resident = min(
            REGISTERS // (threads * registers),
            (target.shared_bytes + 1024) // ((shared_bytes or value(self.shared_bytes)) + 1024),
            MOST_THREADS // threads,
        )
        places = dict(target.clusters)[blocks] * max(1, resident)
        left = problem.heads * ceil(problem.columns, cluster_columns(problem, dict(target.clusters)[blocks]))
        busy_us = value(self.busy) / TENTHS_OF_NS * blocks / target.multiprocessors  # of a cluster, shared by all
        total_us = 0.0
        while left > 0:
            total_us += max(step_us, min(left, places) * busy_us)
            left -= places
        return max(total_us, memory)

    def scheduled(self, solution: Solution, problem: Problem, target: Target) -> FusedSchedule:
        """The kernel of a solution."""
        value = solution.value
        blocks, capacity = value(self.blocks), value(self.capacity) or None
        # Blocks of a grid wait for each other: each has a multiprocessor.
        places = target.multiprocessors // blocks if capacity else dict(target.clusters)[blocks]
        return FusedSchedule(
            self.family,
            blocks,
            tuple(map(value, self.shape)),
            tuple((name, value(size)) for name, size in self.tiles.items()),
            value(self.threads),
            value(self.shared_bytes),
            value(self.registers),
            value(self.columns),
            capacity,
            problem.heads,
            places,
            round(value(self.step) / TENTHS_OF_NS, 3),
            round(self.expected_us(solution, problem, target), 3),
            solution.values_by_index,
        )

    def known(self, kernel: FusedSchedule) -> Solution:
        """The solution that a kernel of this family is, where the loop may be that of inference: as few registers spill
        as must."""
        values = list(kernel.solution)
        if isinstance(spilled := self.tiles["spilled_registers"], Variable):
            found = Solution(self.model.variables, kernel.solution)
            values[spilled.index] = max(0, found.value(self.needed) - found.value(self.registers))
        return Solution(self.model.variables, tuple(values))


def ceil(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The next multiple of `b`."""
    return ceil(a, b) * b


def by(key: Expression, domain: range | tuple[int, ...], function: Callable[[int], int]) -> Expression:
    """A function of one expression, as a table over the values that it may take."""
    return lookup(key, {value: function(value) for value in domain})


def registers_of(warps: int) -> int:
    """Of a thread: the warps of a quarter of the multiprocessor share its registers."""
    return min(255, REGISTERS // 4 // (32 * ceil(warps, 4)) // 8 * 8)


@dataclass(frozen=True, slots=True)
class Elements:
    """What operands and matrices of a dtype take (resident.cuh).

    size           bytes
    operand_bytes  of 32 units × 8 columns of operands in shared memory
    peers          that a warp sends to at a time
    """

    size: int
    operand_bytes: int
    peers: int

    @property
    def is_float(self) -> bool:
        """Multiplied without tensor cores."""
        return self.size == 4

    def fragments(self, halves: int) -> int:
        """Of a pair of `halves` half-tiles, 8 rows each."""
        return halves if self.is_float else ceil(halves, 2)

    def accumulator_registers(self, halves: int) -> int:
        """Of the sums of half-tiles. A lane has all eight columns of float32 while it multiplies, then two of them, and
        eight terms of an operand; few tensor core tiles have a second set (`multiply` in cluster.cuh)."""
        if self.is_float:
            return 10 * halves + 8
        rows = ceil(halves, 2)
        return rows * 4 * (2 if rows < 4 else 1)

    def product(self, rate: Rates) -> int:
        """Tenths of a nanosecond of a fragment of 32 terms times 8 columns, of a quarter of a multiprocessor."""
        return rate.float_product if self.is_float else 2 * rate.product


def element_bytes(dtype: str) -> int:
    """Of a number of the problem's dtype."""
    return 4 if dtype == "fp32" else 2


def elements(problem: Problem) -> Elements:
    """Those of the problem's dtype."""
    size = element_bytes(problem.dtype)
    return Elements(size, 1088, 2) if size == 4 else Elements(size, 640, 4)


def share(columns: int, seats: int) -> int:
    """Batch columns of a group, where `seats` groups of each head run side by side: what makes one pass of it."""
    return ceil(columns, max(1, seats))


def cluster_columns(problem: Problem, places: int) -> int:
    """Batch columns of a group where `places` clusters run side by side; templates/include/rnncc/cuda/fused/run.h."""
    return min(TILE_COLUMNS, share(problem.columns, places // problem.heads))


def cluster_passes(problem: Problem, places: int) -> int:
    """How many times `places` clusters must run until all groups of all heads have."""
    return ceil(problem.heads * ceil(problem.columns, cluster_columns(problem, places)), places)


def piece_registers(facts: Facts, items: Operand, warps: Operand) -> Expression:
    """Of a thread, for its share of what so many warps read and write for so many items."""
    return _PIECE_REGISTERS * (
        ceil_div(facts.read_pieces * items, 4 * warps) + ceil_div(facts.written_pieces * items, 4 * warps)
    )


def require_registers(model: Model, needed: Expression, registers: Operand) -> Variable:
    """Every family's limit on registers of a thread; how many go to memory and back every step."""
    spilled = model.integer("spilled_registers", 0, MOST_SPILLED)
    model.require(
        needed <= registers + spilled,
        because="registers: of a thread, for its part of the matrix beside sums, operands and items; a few may spill",
    )
    return spilled


def require_shared(model: Model, shared_bytes: Expression, target: Target) -> None:
    """Every family's limit on shared memory."""
    model.require(
        shared_bytes <= target.shared_bytes,
        because="shared memory: of a block, for the matrix beyond registers, operands, sums and reads ahead",
    )
