"""A loop in the form that the fused kernels run: a chain of products and reductions, with elementwise work
in between.

A *phase* is a product, or reductions over a head, or both. All of it waits for the same earlier results. A step is
stage, phase, stage, phase, …, stage. A stage is elementwise: it takes what the phase before it gives, and makes what
the phase after it takes. Kernels call the first stage `start`, the last one `finish`, and the others `middle`. The
*carries* are floats per unit and batch entry that live in registers, from stage to stage and from step to step.

Every name stands for one number per unit, or for one number per head. A value of k*H units has k names, one for each
part (rnncc/stages/lower/operations.py). `slot` and `part` say which value and which part. A step may have values of
several widths, such as H and P. `width` says which of the loop's widths a value has, as an index.
rnncc/stages/render/cuda/steps.py prints these types, and cuda/fused/device/call.cuh says what kernels
expect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from rnncc.ir.dim import Dim
from rnncc.ir.expr import references
from rnncc.ir.step import Place, Statement
from rnncc.ir.structure import Sparsity


def head_dim_name(width: int) -> str:
    """How statements name the head_dim of the width with that number."""
    return f"head_dim_{width}__" if width else "head_dim__"


@dataclass(frozen=True, slots=True)
class FusedRead:
    """A tensor [T, B, width] that a step reads at its t. With an `edge` it reads at the next step in the loop's order.
    After the last step it reads the tensor `edge` [B, width]."""

    name: str
    place: Place
    edge: Place | None = None
    width: int = 0


@dataclass(frozen=True, slots=True)
class FusedRow:
    """A tensor [T, B, 1] that a step reads at its t, or [T, B, heads] (`per_head`)."""

    name: str
    place: Place
    per_head: bool = False


@dataclass(frozen=True, slots=True)
class FusedVector:
    """A weight with one number per unit, or one number for all units (`scalar`). It may be a part of a `matrix` of one
    row or one column."""

    name: str
    place: Place
    scalar: bool
    width: int = 0
    matrix: MatrixPart | None = None


@dataclass(frozen=True, slots=True)
class FusedEdge:
    """A carry with an initial value.

    link    the value that the carry has at the next step
    place   the tensor [B, width] of the initial value
    last    the tensor [B, width] that takes the value after the last step, if one does
    """

    name: str
    link: str
    place: Place
    last: Place | None
    width: int = 0


@dataclass(frozen=True, slots=True)
class FusedWrite:
    """A value that goes to a tensor [T, B, width].

    place        where it goes; None: to the record of the slot, which is read after the loop
    stage        the number of the stage that writes it
    destination  which of the slot's destinations it is
    """

    value: str
    place: Place | None
    stage: int
    slot: str = ""
    part: int = 0
    destination: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class FusedLateSum:
    """A sum over all heads that nothing in a step waits for. It is the gradient of a stream with one number per batch
    entry. It is taken after the loop, from the record of `terms`, and goes to the destinations of `slot`."""

    slot: str
    terms: str


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """A matrix of the program has parts, whose rows lie one after the other. This is one of them."""

    name: str
    part: int = 0


class Relation(Enum):
    """How the term's number of a MatrixRule compares with the unit's. call.cuh has the same names."""

    EQUAL = "equal"
    AT_MOST = "at_most"
    AT_LEAST = "at_least"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class MatrixRule:
    """A matrix of ones and zeros. Its element for a unit and a term is 1 where term // term_times has the relation to
    unit // unit_times. By such matrices running sums, repeated values and sums of neighbours are products."""

    relation: Relation
    unit_times: int = 1
    term_times: int = 1


class ReductionKind(Enum):
    """What a reduction makes of all its sources: their sum, the largest of them, or moments. Moments are the mean, and
    the sum of the squares of deviations from it."""

    SUM = auto()
    LARGEST = auto()
    MOMENTS = auto()


@dataclass(frozen=True, slots=True)
class FusedReduction:
    """`results` are made of all numbers that a head has of the sources. CTAs send each other a number for each result,
    and join them as cuda/fused/device/reduce.cuh says."""

    results: tuple[str, ...]
    kind: ReductionKind
    sources: tuple[str, ...]
    width: int = 0


@dataclass(frozen=True, slots=True)
class FusedPhase:
    """A product of a step, or reductions, or both at once.

    sums            what the product makes
    operands        what it takes. Those that the same sums take stand side by side
    matrices        `matrices[sum][operand]`: a matrix of the program, or one given by a rule; None: the sum does not
                    take the operand
    joined          whether the matrices lie side by side in one weight, so that one product takes them all. Forward,
                    these are the matrices of one operand, in the order of the sums. Transposed, they are the matrices
                    of one sum, in the reverse order of the operands
    transposed      whether the product takes the matrices transposed
    reductions      the reductions of the phase
    sum_widths      which of the loop's widths each sum has
    operand_widths  the same for each operand
    sparsity        the density of the densest matrix, and a block that divides those of all; None: some matrix has no
                    mask
    """

    sums: tuple[str, ...]
    operands: tuple[str, ...]
    matrices: tuple[tuple[MatrixPart | MatrixRule | None, ...], ...]
    joined: bool
    transposed: bool
    reductions: tuple[FusedReduction, ...] = ()
    sum_widths: tuple[int, ...] = ()
    operand_widths: tuple[int, ...] = ()
    sparsity: Sparsity | None = None

    @property
    def has_holes(self) -> bool:
        """Whether some sum does not take some operand."""
        return any(matrix is None for row in self.matrices for matrix in row)

    @property
    def taken_by(self) -> tuple[tuple[bool, ...], ...]:
        """For each operand, whether each sum takes it."""
        return tuple(tuple(row[operand] is not None for row in self.matrices) for operand in range(len(self.operands)))

    @property
    def rules(self) -> tuple[MatrixRule | None, ...]:
        """The rules of all its matrices, row by row."""
        return tuple(each if isinstance(each, MatrixRule) else None for row in self.matrices for each in row)

    @property
    def reduced(self) -> tuple[str, ...]:
        """The numbers that its reductions give."""
        return tuple(name for reduction in self.reductions for name in reduction.results)

    @property
    def takes(self) -> tuple[str, ...]:
        """All that it takes."""
        return (*self.operands, *(name for reduction in self.reductions for name in reduction.sources))

    @property
    def gives(self) -> tuple[str, ...]:
        """All that it gives."""
        return (*self.sums, *self.reduced)


@dataclass(frozen=True, slots=True)
class Relay:
    """A sum that does nothing but go into the next phase.

    operand  which operand of that phase it is
    written  the name by which a tensor takes it, or ""
    """

    operand: int
    written: str


@dataclass(frozen=True, slots=True)
class Relays:
    """The phases whose sums are all relayed: nothing else is in the stage between such a phase and the next one.

    width   which of the loop's widths all these sums have
    size    that width, from the hidden size and the number of heads alone
    phases  for each phase of the loop, the relays of its sums; () where a phase is not relayed
    """

    width: int
    size: Dim
    phases: tuple[tuple[Relay, ...], ...]

    def takes(self, write: FusedWrite) -> bool:
        """Whether a write takes a relayed sum. A stage behind a relayed phase has no others."""
        return write.stage > 0 and bool(self.phases[write.stage - 1])

    @property
    def count(self) -> int:
        """The relayed sums, which are as many operands."""
        return sum(map(len, self.phases))


@dataclass(frozen=True, slots=True)
class FusedLoop:
    """One direction of a loop.

    widths      the widths of its values: H for one of 4*H units. The first is that of the first product, where there
                is one. A kernel is laid out for the widest
    phases      products and reductions, in the order of the chain
    stages      the statements before the first phase, between phases, and after the last one
    reads       the tensors with one number per unit that a step reads
    rows        those with one number per batch entry or head
    vectors     the weights that stages read
    constants   the names of the layer's constants
    edges       the carries that have an initial value
    kept        the carries that have none: what a stage leaves for later ones or for the next step
    writes      values with one number per unit that go to tensors
    row_writes  values with one number per head that go to tensors [T, B, heads]
    late_sums   sums over all heads, which are taken after the loop
    waits       how many phases the program has as it is written. The alternating kernel runs those
    relays      the phases whose sums do nothing but go into the next phase, if there are any. What takes their sums
                comes last among the writes
    masked      whether the loop has the mask streams. ACTIVE is not among `rows`, since kernels know from the lengths
                which batch entries a step is for
    """

    widths: tuple[Dim, ...]
    phases: tuple[FusedPhase, ...]
    stages: tuple[tuple[Statement, ...], ...]
    reads: tuple[FusedRead, ...]
    rows: tuple[FusedRow, ...]
    vectors: tuple[FusedVector, ...]
    constants: tuple[str, ...]
    edges: tuple[FusedEdge, ...]
    kept: tuple[str, ...]
    writes: tuple[FusedWrite, ...]
    masked: bool
    row_writes: tuple[FusedWrite, ...] = ()
    late_sums: tuple[FusedLateSum, ...] = ()
    waits: int = 1
    relays: Relays | None = None

    @property
    def head_dims(self) -> tuple[str, ...]:
        """The head_dims of all widths by name, where statements read one of them."""
        names = tuple(map(head_dim_name, range(len(self.widths))))
        used = {name for stage in self.stages for each in stage for name in references(each.expr)}
        return () if used.isdisjoint(names) else names

    @property
    def operands(self) -> int:
        """The operands of all products."""
        return sum(len(phase.operands) for phase in self.phases)


def inference(loop: FusedLoop) -> FusedLoop:
    """A forward loop without the writes that only a backward loop reads."""
    kept = (write for write in loop.writes if write.place is not None and not write.place.is_saved)
    rows = (write for write in loop.row_writes if write.place is not None and not write.place.is_saved)
    return replace(loop, writes=tuple(kept), row_writes=tuple(rows))
