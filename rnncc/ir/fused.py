"""A loop in the form that the fused kernels run: a chain of products and reductions, with elementwise work
in between.

A *phase* is a product, or reductions over the units of a head, or both. All of it waits for the same earlier results. A
step is stage, phase, stage, phase, …, stage: each stage (elementwise) takes what the phase before it gave and makes
what the phase after it takes. Most loops have one phase; the first stage is then called `start`, and the last one
`finish`. The *carries* are floats per unit and batch entry that live in registers, from stage to stage and from step to
step.

Every name stands for one number per unit. A value of k*H units has k names, one for each part
(rnncc/stages/lower/units.py). `slot` and `part` say which value and which part. A step may have values of several
widths, as of H and of P units. `width` says which of the loop's widths a value has.
rnncc/stages/render/cuda/steps.py prints these types, and templates/include/rnncc/cuda/fused/call.cuh says what kernels
expect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from rnncc.ir.dim import Dim
from rnncc.ir.expr import Expr, references
from rnncc.ir.kernel import Place

# The number of units of a head, as statements name it.
HEAD_DIM = "head_dim__"


def head_dim_name(width: int) -> str:
    """The same for the width with that number."""
    return f"head_dim_{width}__" if width else HEAD_DIM


@dataclass(frozen=True, slots=True)
class FusedRead:
    """A tensor [T, B, width] that a step reads at its t. With an `edge`, it reads at the next step in the order of the
    loop, and the tensor `edge` [B, width] where there is no next step."""

    name: str
    place: Place
    edge: Place | None = None
    slot: str = ""
    part: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class FusedRow:
    """A tensor [T, B, 1] that a step reads at its t, or [T, B, heads] (`per_head`)."""

    name: str
    place: Place
    per_head: bool = False


@dataclass(frozen=True, slots=True)
class FusedVector:
    """A weight with one number per unit, or one number for all units (`scalar`). It may be a `matrix` of one row or one
    column."""

    name: str
    place: Place
    scalar: bool
    slot: str = ""
    part: int = 0
    width: int = 0
    matrix: str = ""


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
    """A value that goes to a tensor [T, B, width], in the stage with that number: to the slot's destination with that
    number. Without a place it goes to the record that the products after the loop read."""

    value: str
    place: Place | None
    stage: int
    slot: str = ""
    part: int = 0
    destination: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class FusedLateSum:
    """A sum over all heads that nothing in a step waits for: the gradient of a stream with one number per batch entry.
    It is taken after the loop, from the record of `terms`, and goes to the destinations of `slot`."""

    slot: str
    terms: str


@dataclass(frozen=True, slots=True)
class FusedStatement:
    """`target = expr`. `line` is the line of the `.rnn` text, or 0 for a statement that no line stands for."""

    target: str
    expr: Expr
    line: int


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """One part of a matrix of the program. Its rows lie as so many parts, one after the other."""

    name: str
    part: int = 0


class Relation(Enum):
    """How a unit and a term of a MatrixRule stand to each other. The names are those of call.cuh."""

    EQUAL = "equal"
    AT_MOST = "at_most"
    AT_LEAST = "at_least"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class MatrixRule:
    """A matrix of ones and zeros: 1 where term // term_times is equal to unit // unit_times, at
    most that, at least that, or anything. So running sums, repeated values and sums of neighbours are products."""

    relation: Relation
    unit_times: int = 1
    term_times: int = 1


class ReductionKind(Enum):
    """What a reduction makes of all its sources: their sum; the largest of them; or their mean, and the sum of the
    squares of their deviations from it."""

    SUM = auto()
    LARGEST = auto()
    MOMENTS = auto()


@dataclass(frozen=True, slots=True)
class FusedReduction:
    """`results` are made of the sources, over all units of a head. CTAs send each other a number for each result, and
    join them as templates/include/rnncc/cuda/fused/reduce.cuh says."""

    results: tuple[str, ...]
    kind: ReductionKind
    sources: tuple[str, ...]
    width: int = 0


@dataclass(frozen=True, slots=True)
class FusedPhase:
    """A product of a step, or reductions, or both at once.

    sums        what the product makes
    operands    what it takes
    matrices    `matrices[sum][operand]`: of the program, or given by a rule; None: the sum does not take the operand
    joined      whether the matrices lie side by side in one weight, so that one product takes them all. Forward, these
                are the matrices of one operand, in the order of the sums. Transposed, they are the matrices of one sum,
                in the reverse order of the operands
    transposed  whether the product takes the matrices transposed
    sum_widths, operand_widths
                which of the loop's widths each of them has
    """

    sums: tuple[str, ...]
    operands: tuple[str, ...]
    matrices: tuple[tuple[MatrixPart | MatrixRule | None, ...], ...]
    joined: bool
    transposed: bool
    reductions: tuple[FusedReduction, ...] = ()
    sum_widths: tuple[int, ...] = ()
    operand_widths: tuple[int, ...] = ()

    @property
    def has_holes(self) -> bool:
        """Whether some sum does not take some operand."""
        return any(matrix is None for row in self.matrices for matrix in row)

    @property
    def rules(self) -> tuple[MatrixRule | None, ...]:
        """The rules of all its matrices, row by row."""
        return tuple(each if isinstance(each, MatrixRule) else None for row in self.matrices for each in row)

    @property
    def reduced(self) -> tuple[str, ...]:
        """The numbers that its reductions give."""
        return tuple(name for reduction in self.reductions for name in reduction.results)


@dataclass(frozen=True, slots=True)
class FusedLoop:
    """One direction of a loop.

    widths      the widths of its values, without what divides them into parts; the first is that of the first product.
                A kernel is laid out for the widest
    phases      products and reductions, in the order of the chain
    stages      the statements before the first phase, between phases and after the last one
    kept        the values that a stage leaves for later ones and for the next step
    row_writes  values with one number per head that go to tensors [T, B, heads]
    late_sums   sums over all heads, which are taken after the loop
    waits       how many phases the program has as it is written. The alternating kernel runs those
    masked      whether the loop has the mask streams. ACTIVE is not among `rows`: kernels know from the lengths which
                batch entries a step is for
    """

    widths: tuple[Dim, ...]
    phases: tuple[FusedPhase, ...]
    stages: tuple[tuple[FusedStatement, ...], ...]
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
