"""The cost of a fused loop that its layout depends on. cuda/fused/device/traffic.cuh derives the same
numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from rnncc.ir.dim import Dim, evaluate
from rnncc.ir.expr import Apply, Const, Expr, Ref, references
from rnncc.ir.fused import FusedLoop, FusedPhase
from rnncc.ir.layout import ceil
from rnncc.ir.problem import Problem
from rnncc.ir.step import Place, Table
from rnncc.ir.structure import Sparsity
from rnncc.ir.target import Target
from rnncc.language.operators import OPERATORS
from rnncc.stages.schedule.rates import rates

# A CTA reads ahead into a ring of stages in shared memory: few stages where one is larger than this many bytes, many
# where it is not.
_LARGE_STAGE, _FEW_STAGES, _MANY_STAGES = 8192, 4, 8
# Instructions per function (tanh, a sigmoid, a quotient), about. bfloat16 has the hardware's own (device/fast.cuh).
_FUNCTION_OPERATIONS = {"bf16": 8, "fp16": 27, "fp32": 27}


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """A phase of a step: how many sums its product makes and how many operands it takes, each of head_dim units, both 0
    where it has no product; and how many numbers its reductions give.

    sparsity the density of its densest matrix, and a block that divides those of all, where all are sparse
    uneven   whether they are transposed: as masks are drawn, rows have equally many elements, and columns have not
    parts    where some sum does not take some operand: a product for each run of operands that the same sums take
    relays   whether its sums do nothing but go into the next phase
    """

    sums: int
    operands: int
    reductions: int = 0
    sparsity: Sparsity | None = None
    uneven: bool = False
    parts: tuple[PhaseCost, ...] = ()
    relays: bool = False

    @property
    def runs(self) -> tuple[PhaseCost, ...]:
        """The phase's product as one or several, in which each sum takes each operand."""
        return self.parts or (replace(self, reductions=0, relays=False),)

    @property
    def matrices(self) -> int:
        """Matrices [head_dim, head_dim] per head, as if each sum took each operand."""
        return self.sums * self.operands


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCost:
    """The numbers of a loop. An *item* is the elementwise work on 8 units of 8 batch entries, which one warp does.

    phases               the phases of a step, in order
    carries              the floats per unit that live from stage to stage or from step to step
    reads, float_reads   the tensors [T, B, H] that a step reads, in 16 bits and in float32
    writes, float_writes the tensors that a step writes
    item_registers       registers per thread for an item: carries, and values on their way
    item_traffic         pieces of 16 bytes that an item of the alternating kernel reads, plus tensors it writes
    operations           instructions per element of the elementwise work, about
    unit_bytes           bytes per unit and batch entry that a step reads and writes in memory
    held_pieces          pieces of 16 bytes per 8 units and batch entry that a step has before its first product. What
                         is read both before and after a product counts twice
    vectors              weights with one number per unit
    widths               the number of widths that values have
    masked               whether batch entries have lengths and resets
    waits                how often the CTAs of the alternating kernel wait for each other in a step
    relayed              the width of relayed sums, if there are any
    relayed_writes       the tensors that take them
    """

    phases: tuple[PhaseCost, ...]
    carries: int
    reads: int
    float_reads: int
    writes: int
    float_writes: int
    item_registers: int
    item_traffic: int
    operations: int
    unit_bytes: int
    held_pieces: int
    vectors: int
    widths: int
    masked: bool
    waits: int
    relayed: Dim | None = None
    relayed_writes: int = 0

    @property
    def sums(self) -> int:
        """The most sums of a product."""
        return max(phase.sums for phase in self.phases)

    @property
    def products(self) -> tuple[PhaseCost, ...]:
        """The phases that have one."""
        return tuple(phase for phase in self.phases if phase.operands)

    @property
    def split(self) -> LoopCost:
        """The cost with each run as a phase. Models ask them what products hold, and nothing else."""
        return replace(self, phases=tuple(run for phase in self.phases for run in phase.runs))

    def narrow(self, problem: Problem) -> int:
        """The head_dim of relayed sums, where kernels of the grid family deal them out; 0 where they do not."""
        if self.relayed is None:
            return 0
        width = evaluate(self.relayed, {"H": problem.hidden, "num_heads": problem.heads})
        head_dim = width // problem.heads
        return head_dim if 0 < head_dim < problem.head_dim and width % (8 * problem.heads) == 0 else 0

    def dealt(self, problem: Problem) -> LoopCost:
        """The cost as a kernel has them that deals relayed sums out: items do not write them."""
        floats = self.relayed_writes if problem.is_float else 0
        return replace(
            self,
            writes=self.writes - self.relayed_writes + floats,
            float_writes=self.float_writes - floats,
            item_registers=self.item_registers - self.relayed_writes,
            unit_bytes=self.unit_bytes - 2 * (self.relayed_writes + floats),
        )

    def exchanged_terms(self, head_dim: int, narrow: int) -> int:
        """The terms of all operands of a head and batch entry as CTAs of a grid send them, with those that fill up
        chunks of 32. `narrow`: the head_dim of relayed sums, or 0."""
        return sum(
            phase.operands * 32 * ceil(narrow if narrow and takes_relayed else head_dim, 32)
            for phase, takes_relayed in self.after_relays
        )

    @property
    def is_sparse(self) -> bool:
        """Whether all matrices are sparse."""
        return bool(self.products) and all(phase.sparsity is not None for phase in self.products)

    def has_blocks_of(self, size: int) -> bool:
        """Whether all matrices are sparse, in blocks of which each has a whole number of size x size elements."""
        return self.is_sparse and all(phase.sparsity and phase.sparsity.block % size == 0 for phase in self.products)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The numbers of sums that products have. Products with as many are alike to a model: all that counts is what
        they hold in registers together."""
        return tuple(dict.fromkeys(product.sums for product in self.products))

    @property
    def reductions(self) -> int:
        """The numbers that the reductions of all phases give."""
        return sum(phase.reductions for phase in self.phases)

    @property
    def operands(self) -> int:
        """The operands of all products."""
        return sum(phase.operands for phase in self.phases)

    @property
    def matrices(self) -> int:
        """Recurrent matrices [head_dim, head_dim] per head."""
        return sum(phase.matrices for phase in self.phases)

    def matrix_elements(self, rows: int, terms: int, narrow: int = 0) -> int:
        """The elements of one head's matrices in so many rows of each sum and so many columns of each operand. All
        costs of a matrix are made from this number. `narrow`: the head_dim of relayed sums, where it is known."""
        if not narrow:
            return self.matrices * rows * terms
        return sum(
            run.matrices * (min(rows, narrow) if phase.relays else rows) * (narrow if takes_relayed else terms)
            for phase, takes_relayed in self.after_relays
            for run in phase.runs
        )

    @property
    def after_relays(self) -> Iterator[tuple[PhaseCost, bool]]:
        """Each phase, and whether it takes the sums of a relayed one."""
        return zip(self.phases, (False, *(phase.relays for phase in self.phases)), strict=False)

    @property
    def read_pieces(self) -> int:
        """Pieces of 16 bytes per 8 units and batch entry that a step reads."""
        return self.reads + 2 * self.float_reads

    @property
    def written_pieces(self) -> int:
        """Pieces of 16 bytes per 8 units and batch entry that a step writes."""
        return self.writes + 2 * self.float_writes

    @property
    def pieces(self) -> int:
        """Pieces of 16 bytes per 8 units and batch entry that a step reads and writes."""
        return self.read_pieces + self.written_pieces

    def traffic_bytes(self, unit_blocks: int, batch: int) -> int:
        """Shared memory per CTA, in bytes, for what it reads ahead and what it has written, where it has so many blocks
        of 8 units. A row takes an odd multiple of 16 bytes."""

        def rows(tensors: int, floats: int) -> int:
            return batch * 16 * (tensors * (unit_blocks | 1) + floats * (2 * unit_blocks + 1))

        stage = rows(self.reads, self.float_reads)
        stages = _FEW_STAGES if stage > _LARGE_STAGE else _MANY_STAGES
        return stages * (stage + 8) + 2 * rows(self.writes, self.float_writes)


def cost_of(loop: FusedLoop, dtype: str) -> LoopCost:
    """The cost of a loop as training runs it, with streams of that dtype. Inference writes less and has the same
    layout."""

    def is_float(place: Place | None) -> bool:
        return dtype == "fp32" or (place is not None and place.table is Table.SAVED)

    float_reads = sum(is_float(read.place) for read in loop.reads)
    float_writes = sum(is_float(write.place) for write in loop.writes)
    carries = len(loop.edges) + len(loop.kept)
    pieces = len(loop.reads) + float_reads
    # On how many sides of the first product a tensor is read: 1 or 2.
    before, *after = ({name for each in stage for name in references(each.expr)} for stage in loop.stages)
    sides = Counter(before) + Counter(set().union(*after))
    relays = loop.relays
    relayed = (False,) * len(loop.phases) if relays is None else map(bool, relays.phases)
    return LoopCost(
        phases=tuple(map(_phase_facts, loop.phases, relayed)),
        carries=carries,
        reads=len(loop.reads) - float_reads,
        float_reads=float_reads,
        writes=len(loop.writes) - float_writes,
        float_writes=float_writes,
        item_registers=2 * carries + len(loop.writes) + 12,
        item_traffic=pieces + len(loop.writes),
        operations=sum(
            _operations(statement.expr, _FUNCTION_OPERATIONS[dtype]) for stage in loop.stages for statement in stage
        ),
        unit_bytes=2 * (pieces + len(loop.writes) + float_writes),
        held_pieces=sum((1 + is_float(read.place)) * sides[read.name] for read in loop.reads),
        vectors=len(loop.vectors),
        widths=len(loop.widths),
        masked=loop.masked,
        waits=loop.waits,
        relayed=None if relays is None else relays.size,
        relayed_writes=0 if relays is None else sum(map(relays.takes, loop.writes)),
    )


def _phase_facts(phase: FusedPhase, relays: bool) -> PhaseCost:
    uneven = phase.sparsity is not None and phase.transposed
    parts = [
        PhaseCost(sum(taken), count, 0, phase.sparsity, uneven) for taken, count in Counter(phase.taken_by).items()
    ]
    return PhaseCost(
        len(phase.sums),
        len(phase.operands),
        len(phase.reduced),
        phase.sparsity,
        uneven,
        tuple(parts) if phase.has_holes else (),
        relays,
    )


def _operations(expr: Expr, function_operations: int) -> int:
    match expr:
        case Const() | Ref():
            return 0
        case Apply(operator, arguments):
            own = 1 if OPERATORS[operator].cheap else function_operations
            return own + sum(_operations(argument, function_operations) for argument in arguments)
        case _:
            assert_never(expr)


def reached_gb_s(target: Target) -> float:
    """The bandwidth that copies reach."""
    return rates(target).memory_share * target.memory_gb_s


def memory_us(cost: LoopCost, problem: Problem, target: Target) -> float:
    """The time that a step's tensors take through memory, in microseconds, whatever the kernel."""
    elements = problem.batch * problem.hidden
    return elements * cost.unit_bytes / (1000 * reached_gb_s(target))


def beside_memory(cost: LoopCost, problem: Problem, target: Target) -> Callable[[float, int], float]:
    """The time of a step from its time on the chip and its batch, its tensors' way through memory included, in
    microseconds. One hides the other, but not all of it where both take about as long."""
    hiding, gb_s = rates(target).hiding_exponent, reached_gb_s(target)
    entry_bytes = problem.hidden * cost.unit_bytes

    def us(chip_us: float, batch: int) -> float:
        memory_us = batch * entry_bytes / (1000 * gb_s)
        return float((chip_us**hiding + memory_us**hiding) ** (1 / hiding))

    return us
