"""The layout of a loop's kernels on a GPU: fused kernels for one size and dtype, with the reasons against the other
families, and kernels of loops without products. Times are in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnncc.ir.family import ALTERNATING, Family, Scope
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target


def ceil(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLayout:
    """One fused kernel of one loop. A *group* is a part of the batch that runs with one copy of a head's matrix.

    family          the kernel's family
    ctas            the CTAs that hold one copy of a head's matrix: those of a cluster, or some of a grid
    cluster         the CTAs of a cluster, with which the kernel is launched
    shape           the arguments of the family's template that follow the step and head_dim, in the template's order
    tiles           the same numbers, and those that follow from them, by name
    threads         threads per CTA
    shared_bytes    shared memory per CTA
    registers       registers per thread, as planned
    group_batch     the largest batch of a group; None: the whole batch is one group
    multiple        groups have a multiple of so many batch entries, but for the last one
    exchange_steps  the steps whose operands the exchange of a grid holds; None: there is no exchange
    relayed         where the kernel deals relayed sums out among its CTAs, their head_dim, and how many pieces of 16
                    bytes a lane asks for at a time
    launch_batch    the largest batch of a launch, after which another launch follows; None: a launch takes any batch,
                    group after group
    heads           the number of heads that the kernel is laid out for
    concurrent_groups
                    the number of groups, of all heads together, that run side by side
    step_us         the expected time of a step of the batch that the kernel was laid out for
    solution        the values of the variables of the family's model
    """

    family: Family
    ctas: int
    cluster: int = 1
    shape: tuple[int, ...] = ()
    tiles: tuple[tuple[str, int], ...] = ()
    threads: int
    shared_bytes: int
    registers: int
    group_batch: int | None
    multiple: int = 1
    exchange_steps: int | None = None
    relayed: tuple[int, ...] = ()
    launch_batch: int | None
    heads: int
    concurrent_groups: int
    step_us: float
    solution: tuple[int, ...] = ()

    @property
    def symbol(self) -> str:
        """What tells the kernel from others of its program, dtype and head_dim: a part of its name."""
        relayed = ("relayed", *self.relayed) if self.relayed else ()
        return "_".join(map(str, (self.family.name, *self.shape, *relayed)))

    @property
    def relayed_head_dim(self) -> int:
        """The head_dim of the relayed sums that the kernel deals out; 0 where it does not."""
        return next(iter(self.relayed), 0)

    @property
    def scope(self) -> str:
        """What the kernel's CTAs are, for readers: the family's scope by name, but `cta` for a cluster of one CTA."""
        scope = self.family.scope
        return "cta" if scope is Scope.CLUSTER and self.ctas == 1 else scope.value

    def launches(self, batch: int) -> int:
        """The number of launches for a batch; where a launch is a step, the number per step."""
        return 1 if self.launch_batch is None else ceil(batch, self.launch_batch)

    def batch_of_a_launch(self, batch: int) -> int:
        """The batch of each launch but the last, which takes what is left. Each launch has as many groups as run side
        by side, and no group is larger than it must be."""
        return batch if self.launches(batch) == 1 else self._seats * self.group(batch)

    def group(self, batch: int) -> int:
        """The batch of each group but the last. fused_share in cuda/fused/host/index.h has the same
        rule."""
        least = ceil(batch, self._seats * self.launches(batch))
        return min(self.group_batch or batch, ceil(least, self.multiple) * self.multiple)

    @property
    def batch_of_a_pass(self) -> int:
        """The largest batch whose groups all run side by side, where groups have a largest batch."""
        return self._seats * (self.group_batch or 1)

    def passes(self, batch: int) -> int:
        """How many times groups run side by side until all of them have run."""
        if self.family.scope is Scope.CLUSTER:
            return ceil(self.heads * ceil(batch, self.group(batch)), self.concurrent_groups)
        return self.launches(batch)

    @property
    def _seats(self) -> int:
        """The groups of a head that run side by side."""
        return max(1, self.concurrent_groups // self.heads)


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel that may run a batch. `pass_us`: the expected time of a step of the groups that run side by side."""

    kernel: KernelLayout
    pass_us: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of a loop's kernels: which of them run the batches from `batch` on, up to the next row's. The
    first choice is the quickest. Each other one runs calls that those before it cannot run. Where there is none, the
    alternating kernel runs."""

    batch: int
    choices: tuple[Choice, ...] = ()

    @property
    def kernel(self) -> KernelLayout | None:
        """The kernel that runs these batches, if it can."""
        return self.choices[0].kernel if self.choices else None


@dataclass(frozen=True, slots=True)
class Limit:
    """A requirement that rules something out, and why it must hold. `numbers` says what the other requirements leave of
    it (`768 >= 1024`), or is empty."""

    name: str
    reason: str
    numbers: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A family that was not chosen; None stands for all fused families together. Either its kernel takes longer
    (`step_us`), or these limits together rule it out."""

    family: Family | None
    step_us: float | None
    limits: tuple[Limit, ...]

    @property
    def name(self) -> str:
        """The family's name, or `fused`."""
        return "fused" if self.family is None else self.family.name


@dataclass(frozen=True, slots=True)
class LoopKernels:
    """The fused kernels of one loop.

    table      which of them runs which batch; empty where there is none
    step_us    the expected time of a step of the batch that the loop was planned for; None: it is not known, or no
               kernel runs the loop
    rejected   the families that do not run that batch
    nodes      the nodes of the searches for the kernels
    """

    table: tuple[Row, ...]
    step_us: float | None
    rejected: tuple[Rejected, ...]
    nodes: int

    @property
    def kernels(self) -> tuple[KernelLayout, ...]:
        """The kernels of the table."""
        return kernels_of(self.table)

    def kernel_for(self, batch: int) -> KernelLayout | None:
        """The fused kernel that runs a batch, or None: the alternating one does."""
        return next((row.kernel for row in reversed(self.table) if row.batch <= batch), None)

    @property
    def is_impossible(self) -> bool:
        """Whether not even the alternating kernel runs the loop."""
        return any(rejected.family is ALTERNATING and rejected.limits for rejected in self.rejected)


def from_batch(kernel: KernelLayout, batch: int = 1) -> tuple[Row, ...]:
    """The table of a loop that this kernel runs, from a batch on."""
    row = Row(batch, (Choice(kernel, kernel.step_us),))
    return (row,) if batch == 1 else (Row(1), row)


def kernels_of(table: Sequence[Row]) -> tuple[KernelLayout, ...]:
    """The kernels of a table, in the order of the batches that they run."""
    return tuple(dict.fromkeys(choice.kernel for row in table for choice in row.choices))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanShape:
    """The layout of a kernel of a loop without products, on every GPU: ScanShape, WalkShape and NewtonShape in
    templates/include/rnncc/cuda/scan.

    family       the kernel's family
    vector       the units of one batch entry that a lane works on, side by side
    steps        the steps of a *part*, which a warp works on at a time
    warps        warps per CTA
    depth        the parts per warp in shared memory: one is worked on, the others are on their way. 1: the next part
                 comes into registers instead
    registers    registers per thread, as planned
    resident     CTAs per SM, as planned
    shared_bytes, peer_bytes, least_shared_bytes
                 shared memory per CTA of a cluster of n CTAs: `shared_bytes`, for n > 1 also n * `peer_bytes`, and at
                 least `least_shared_bytes`
    least_ctas   the kernel is of use only where so many CTAs can share the steps of every group of channels at once;
                 1: it is of use everywhere
    """

    family: Family
    vector: int
    steps: int
    warps: int
    depth: int
    registers: int
    resident: int
    shared_bytes: int
    peer_bytes: int
    least_shared_bytes: int
    least_ctas: int = 1

    @property
    def arguments(self) -> tuple[int, ...]:
        """The template arguments that follow the step."""
        return tuple(size for _, size in self.tiles)

    @property
    def tiles(self) -> tuple[tuple[str, int], ...]:
        """The same numbers by name."""
        return ("vector", self.vector), ("steps", self.steps), ("warps", self.warps), ("depth", self.depth)

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * self.warps

    def shared_bytes_of(self, ctas: int) -> int:
        """Shared memory per CTA of a cluster of `ctas`. scan_shared_bytes in
        templates/include/rnncc/cuda/scan/share.h has the same rule."""
        return max(self.least_shared_bytes, self.shared_bytes + (ctas if ctas > 1 else 0) * self.peer_bytes)


@dataclass(frozen=True, slots=True)
class ScanLayouts:
    """The kernels of a loop without products, for one size of elements.

    family      scan or walk
    vectorised  for tensors whose rows begin at multiples of 16 bytes: a lane works on several channels side by side, as
                far as registers allow
    tall        for the same tensors, where there are few channels: a lane works on one channel, and on more steps
    narrow      for all tensors
    newton      for the same tensors as `vectorised`: Newton's iterations in place of a walk. None where nobody asked
                for them, or the loop has none
    """

    family: Family
    vectorised: ScanShape
    tall: ScanShape
    narrow: ScanShape
    newton: ScanShape | None = None

    @property
    def forms(self) -> tuple[tuple[str, ScanShape], ...]:
        """The kernels by the names of their forms, which end the names of the kernels."""
        newton = () if self.newton is None else (("newton", self.newton),)
        return ("vectorised", self.vectorised), ("tall", self.tall), ("narrow", self.narrow), *newton


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """The kernels of a loop without products, for a problem on a GPU.

    form          the form that runs the problem
    ctas          the CTAs that share the steps of the same channels, where there are enough steps
    step_us       the time that a step's tensors take through memory; no step is quicker
    newton_ctas   the same as `ctas` for Newton's iterations; 0 where they do not take the problem, or there are none
    takes_newton  whether Newton's iterations run the problem, in a package that has them
    """

    schedule: ScanLayouts
    form: str
    ctas: int
    step_us: float
    newton_ctas: int
    takes_newton: bool

    def ctas_of(self, shape: ScanShape) -> int:
        """How many CTAs share steps in one of the schedule's kernels."""
        return max(self.newton_ctas, 1) if shape is self.schedule.newton else self.ctas


@dataclass(frozen=True, slots=True)
class ScanKernels:
    """The kernels of a program without products.

    program   the program's name
    made_for  the program whose name the kernels have: itself, or one before it whose step is the same but for names
    full      those for float32
    half      those for 16-bit elements
    """

    program: str
    made_for: str
    full: ScanLayouts
    half: ScanLayouts

    @property
    def are_own(self) -> bool:
        """Whether they are made for this program."""
        return self.made_for == self.program


# The sequence length of a call where none is given.
AFTER_STEPS = 1024


@dataclass(frozen=True, slots=True)
class PlannedLoop:
    """Both directions of a segment's loop. `after_us`: the time from the end of the backward loop to the gradients of
    the recurrent matrices, divided by AFTER_STEPS steps; None: it is not known, or there are no such matrices."""

    segment: int
    forward: LoopKernels | PlannedScan
    backward: LoopKernels | PlannedScan
    after_us: float | None


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The kernels of a cell for a problem on a GPU. `solve_ms`: the processor time of the searches for them, without
    the time that their reasons take."""

    cell: str
    problem: Problem
    target: Target
    loops: tuple[PlannedLoop, ...]
    solve_ms: float


@dataclass(frozen=True, slots=True)
class FusedKernels:
    """The fused kernels of a cell, laid out for `heads` heads of `head_dim` on a GPU of that architecture. `dtype` is
    f32, bf16 or f16. `tables` has the name of each program with kernels, and its table. `directions`: of Problem."""

    head_dim: int
    heads: int
    dtype: str
    architecture: str
    tables: tuple[tuple[str, tuple[Row, ...]], ...]
    directions: int = 2

    @property
    def kernels(self) -> tuple[tuple[str, KernelLayout], ...]:
        """All kernels, each with its program's name."""
        return tuple((program, kernel) for program, table in self.tables for kernel in kernels_of(table))
