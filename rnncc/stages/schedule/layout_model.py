"""What the models of the fused families share: the limits of an SM, and how a batch is divided into groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rnncc.constrint import Expression, Limits, Model, Solution, Variable, by, ceil_div, lookup, maximum, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.family import Family, Scope
from rnncc.ir.layout import KernelLayout, ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import REGISTERS, Target
from rnncc.language.diagnostics import InternalError
from rnncc.stages.schedule.cost import LoopCost, PhaseCost, beside_memory
from rnncc.stages.schedule.lanes import float_sum_registers
from rnncc.stages.schedule.rates import Rates

MOST_WARPS = 16
UNIT_BLOCK, TILE_BATCH = 8, 8  # the units and the batch entries of an item
EXCHANGE_STEPS = 64  # the steps that an exchange holds: GridLayout::SLOTS in grid_loop.cuh
# A *pair* is two k16 fragments: of 16 rows of 16-bit numbers, or of 8 rows of float32. For a product a thread has it in
# so many registers. In shared memory half-tiles of 8 rows each take their own share (Elements).
PAIR_REGISTERS = 8
# Registers per thread for each piece of 16 bytes that it moves every step: from where, to where, and in which steps.
_PIECE_REGISTERS = 5
# Registers per thread for addresses and counters: what nvcc 13 needs for the LSTM and the GRU without a spill.
BASE_REGISTERS = 30
# More spilled registers cost more than they save. (The estimate is high by up to 20: that many do no harm at a head_dim
# of 768 and 2048.)
MOST_SPILLED = 32
TENTHS_OF_NS = 10_000  # per microsecond
MOST_BATCH = 1 << 16  # for which a layout can be asked for
# A search takes some tens of nodes; far more would be a mistake in a model.
LIMITS = Limits(nodes=1_000, steps=20_000)

Part = TypeVar("Part", int, Expression)
# The time of a step by the batch, and by the batch that it would be if its last group were full.
StepTime = Callable[[int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutModel:
    """The model of a family for one loop, problem and GPU, and what its variables mean.

    step        the time of a step of all groups that run side by side, in tenths of a nanosecond
    total       the time of a step of the whole batch: the passes that it takes, times `step`
    batch       the batch, which a search cannot change: one model serves all batches
    busy        the part of `step` in which a CTA has its SM to itself; other CTAs of the SM wait
    needed      registers per thread, as counted; nvcc takes about `overcount` fewer
    shape, tiles, ctas, threads, shared_bytes, registers, group_batch, launch_batch, multiple, exchange_steps, relayed,
    cluster
                the fields of the same names of a KernelLayout
    """

    family: Family
    cost: LoopCost
    model: Model
    batch: Variable
    step: Expression
    total: Expression
    busy: Expression
    needed: Operand
    overcount: int
    shape: tuple[Operand, ...]
    tiles: Mapping[str, Operand]
    ctas: Operand
    threads: Operand
    shared_bytes: Expression
    registers: Operand
    group_batch: Operand
    launch_batch: Operand | None
    multiple: int = 1
    exchange_steps: int | None = None
    relayed: tuple[Operand, ...] = ()
    cluster: Operand = 1

    def best(self, batch: int, given: Mapping[Variable, int] | None = None) -> Solution:
        """The layout with the least time for a batch; of several, one with the fewest CTAs. Raises Infeasible,
        LimitReached or WrongAnswer, as `Model.minimise` does."""
        return self.model.minimise((self.total, self.ctas), given=given, where={self.batch: batch}, limits=LIMITS)

    def step_us(self, solution: Solution, problem: Problem, target: Target, shared_bytes: int) -> StepTime:
        """The time of a step of the whole batch, in microseconds, its tensors' way through memory included.
        `shared_bytes`: shared memory per CTA."""
        match self.family.scope:
            case Scope.GRID:
                return self._grid_us(solution, problem, target)
            case Scope.CLUSTER:
                return self._clusters_us(solution, problem, target, shared_bytes)
            case _:
                raise InternalError(f"no model says what a step of {self.family.name} takes")

    def _grid_us(self, solution: Solution, problem: Problem, target: Target) -> StepTime:
        """All CTAs run at once."""
        step = solution.along(self.batch)(self.step)
        with_memory = beside_memory(self.cost, problem, target)

        def us(batch: int, full: int) -> float:
            return with_memory(step(full) / TENTHS_OF_NS, batch)

        return us

    def _clusters_us(self, solution: Solution, problem: Problem, target: Target, shared_bytes: int) -> StepTime:
        """As many clusters run at once as registers and shared memory allow, several CTAs per SM, and the others after
        them. The CTAs of an SM hide each other's latencies. They do not hide what they are busy with, so together they
        take as long as one alone or as the sum of all busy parts, whichever is longer."""
        ctas, threads = solution.value(self.ctas), solution.value(self.threads)
        at_once = dict(target.clusters)[ctas]
        registers = round_up(solution.value(self.needed) - self.overcount, 8)
        resident = min(
            REGISTERS // (threads * registers),
            (target.shared_bytes + 1024) // (shared_bytes + 1024),
            target.threads // threads,
            target.ctas,
        )
        places = at_once * max(1, resident)
        along = solution.along(self.batch)
        step, busy = along(self.step), along(self.busy)
        with_memory = beside_memory(self.cost, problem, target)

        def us(batch: int, full: int) -> float:
            left = problem.heads * ceil(batch, min(TILE_BATCH, ceil(batch, max(1, at_once // problem.heads))))
            step_us = step(full) / TENTHS_OF_NS
            busy_us = busy(full) / TENTHS_OF_NS * ctas / target.sms  # per cluster, as a share of all SMs
            total_us = 0.0
            while left > 0:
                total_us += max(step_us, min(left, places) * busy_us)
                left -= places
            return with_memory(total_us, batch)

        return us

    def scheduled(self, solution: Solution, problem: Problem, target: Target) -> KernelLayout:
        """The kernel of a solution. It is planned with one CTA per SM: the CTAs of a grid wait for each other, and two
        on one SM would each take up to twice as long."""
        value = solution.value
        step_us = self.step_us(solution, problem, target, value(self.shared_bytes))
        ctas = value(self.ctas)
        cluster = value(self.cluster) if self.family.scope is Scope.GRID else ctas
        return KernelLayout(
            family=self.family,
            ctas=ctas,
            cluster=cluster,
            shape=tuple(map(value, self.shape)),
            tiles=tuple((name, value(size)) for name, size in self.tiles.items()),
            threads=value(self.threads),
            shared_bytes=value(self.shared_bytes),
            registers=value(self.registers),
            group_batch=value(self.group_batch),
            multiple=self.multiple,
            exchange_steps=self.exchange_steps,
            relayed=tuple(map(value, self.relayed)),
            launch_batch=None if self.launch_batch is None else value(self.launch_batch),
            heads=problem.heads,
            concurrent_groups=dict(target.clusters)[cluster] * cluster // ctas,
            step_us=round(step_us(problem.batch, problem.batch), 3),
            solution=solution.values_by_index,
        )

    def solution_of(self, kernel: KernelLayout) -> Solution:
        """The solution from which a kernel of this family was made. The loop may be that of inference, which spills
        fewer registers."""
        return Solution(self.model.variables, kernel.solution)


def tensor_products(rate: Rates, warps: Operand, kinds: Iterable[tuple[Operand, Operand]]) -> Operand:
    """The time in which all warps of a CTA multiply by 8 batch entries on tensor cores, in tenths of a nanosecond.
    `kinds`: of each kind of products the fragments, and the chunks of 32 terms that a warp has."""
    return 2 * rate.tensor_core_product * ceil_div(warps, 4) * summed(f * n for f, n in kinds)


def round_up(a: int, b: int) -> int:
    """The next multiple of `b`."""
    return ceil(a, b) * b


def held_variables(model: Model, name: str, most: Sequence[int]) -> list[Variable]:
    """How many pairs of their matrices the products of each kind hold in registers: a variable per kind. A variable per
    product would make the search look at every way of sharing the same number. `most`: how many those of each kind
    have."""
    names = [name] if len(most) == 1 else [f"{name}_{number}" for number in range(len(most))]
    return [model.integer(each, 0, limit) for each, limit in zip(names, most, strict=True)]


def of_kinds(kinds: Sequence[Hashable], parts: Sequence[Part]) -> list[Part]:
    """What the products of each kind have together, from the kind of each product, and what it has."""
    found: dict[Hashable, Part] = {}
    for kind, part in zip(kinds, parts, strict=True):
        found[kind] = found[kind] + part if kind in found else part
    return list(found.values())


def of_phases(kinds: Sequence[Hashable], pairs: Sequence[Operand], held: Sequence[Operand]) -> tuple[Operand, ...]:
    """The register tiles of each phase, from its kind, or None where it has no product; the pairs of each product; and
    those that each kind holds in registers: the first products of a kind hold all of theirs."""
    known = dict.fromkeys(kind for kind in kinds if kind is not None)
    left, own, tiles = dict(zip(known, held, strict=True)), iter(pairs), []
    for kind in kinds:
        taken: Operand = 0
        if kind is not None:
            taken = minimum(next(own), left[kind])
            left[kind] = left[kind] - taken
        tiles.append(2 * taken)
    return tuple(tiles)


def require_shared_part(model: Model, held: Expression, whole: Operand) -> Expression:
    """The limit on what registers hold of a warp's part of a matrix. The result is the rest, in shared memory."""
    model.require(held <= whole, because="matrix: a warp's part of it, in registers or in shared memory")
    # A search has better bounds where it knows at once that this is not negative.
    return maximum(whole - held, 0)


def kind_of(phase: PhaseCost) -> int | None:
    """The kind of a phase's product: products with as many sums are alike to a model."""
    return phase.sums if phase.operands else None


def summed(parts: Iterable[Operand]) -> Operand:
    """The sum of what each kind of products has. It is 0 where a step has no product."""
    return sum(parts)


def fragments_of(element: Elements, sums: int) -> Callable[[int], int]:
    """The fragments of a pair of the matrix of so many sums, by the blocks of 8 units that a warp or CTA has."""
    return lambda unit_blocks: element.fragments(sums * unit_blocks)


def registers_of(warps: int) -> int:
    """The most registers per thread of a CTA that has an SM to itself. The warps of a quarter of the SM share its
    registers."""
    return min(255, REGISTERS // 4 // (32 * ceil(warps, 4)) // 8 * 8)


@dataclass(frozen=True, slots=True)
class Elements:
    """What operands and matrices of a dtype take (resident.cuh).

    size           bytes per element
    operand_bytes  shared memory of 32 units × 8 batch entries of operands, in bytes
    peers          CTAs that a warp sends to at a time
    """

    size: int
    operand_bytes: int
    peers: int

    @property
    def is_float(self) -> bool:
        """Whether products are made without tensor cores."""
        return self.size == 4

    def fragments(self, halves: int) -> int:
        """The fragments of a pair that has `halves` half-tiles of 8 rows each."""
        return halves if self.is_float else ceil(halves, 2)

    @property
    def half_bytes(self) -> int:
        """Shared memory of a half-tile of a pair per warp, in bytes."""
        return 256 * self.size

    def accumulator_registers(self, halves: int, row_limit: int) -> int:
        """Registers per thread for the sums of half-tiles. In float32 a lane has all eight batch entries of its rows
        while it multiplies, then two of one row, and the terms of an operand. A small number of tensor core tiles has a
        second set of sums (`multiply` in cluster.cuh)."""
        if self.is_float:
            return float_sum_registers(halves, row_limit) + 8
        rows = ceil(halves, 2)
        return rows * 4 * (2 if rows < 4 else 1)


def elements(problem: Problem) -> Elements:
    """The elements of the problem's dtype."""
    return Elements(4, 1152, 2) if problem.is_float else Elements(2, 640, 4)


def batch_variable(model: Model) -> Variable:
    """The batch, which a question gives."""
    return model.integer("batch", 1, MOST_BATCH)


def share(batch: Operand, seats: Operand) -> Expression:
    """The batch of a group that makes one pass enough, where `seats` groups of each head run side by side."""
    return ceil_div(batch, maximum(seats, 1))


def cluster_group(batch: Variable, ctas: Variable, problem: Problem, target: Target) -> Expression:
    """The batch of a group of clusters of so many CTAs: KernelLayout.group has the same rule."""
    places = dict(target.clusters)
    return minimum(TILE_BATCH, ceil_div(batch, by(ctas, lambda c: max(1, places[c] // problem.heads))))


def cluster_passes(batch: Variable, ctas: Variable, problem: Problem, target: Target) -> Expression:
    """How many times clusters run side by side until all groups of all heads have run."""
    groups = problem.heads * ceil_div(batch, cluster_group(batch, ctas, problem, target))
    return ceil_div(groups, lookup(ctas, dict(target.clusters)))


def piece_registers(cost: LoopCost, items: Operand, warps: Operand) -> Expression:
    """Registers per thread for the pieces that it moves, where so many warps share what so many items read and
    write."""
    return _PIECE_REGISTERS * (
        ceil_div(cost.read_pieces * items, 4 * warps) + ceil_div(cost.written_pieces * items, 4 * warps)
    )


def require_at_most(model: Model, name: str, value: int, most: int, because: str) -> None:
    """A limit on a number that no choice changes. `name` and `because` make its reason."""
    if value > most:
        model.require(model.integer(name, value, value) <= most, because=f"{name}: {because}")


def require_registers(
    model: Model, needed: Expression, registers: Operand, most_spilled: Operand = MOST_SPILLED
) -> Expression:
    """The limit on registers per thread, for every family. The result is how many go to memory and back at every
    step."""
    model.require(
        needed <= registers + most_spilled,
        because="registers: a thread holds its part of the matrix, sums, operands and items; a few may spill",
    )
    return maximum(needed - registers, 0)


def require_shared(model: Model, shared_bytes: Expression, target: Target) -> None:
    """The limit on shared memory, for every family."""
    model.require(
        shared_bytes <= target.shared_bytes,
        because="shared memory: a CTA holds the rest of the matrix, operands, sums and what it reads ahead",
    )
