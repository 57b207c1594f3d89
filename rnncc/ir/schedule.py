"""The layout of a loop's kernels on a GPU: fused kernels for one size and dtype, with the reasons against others, and
scans and walks."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.problem import Problem
from rnncc.ir.target import Target

# The family that runs one launch per step.
STEPWISE = "stepwise"


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class FusedSchedule:
    """One kernel of one loop. A column is one sequence of the batch. Times are in microseconds.

    family        `gather`, `scatter`, `grid` or `stepwise`
    blocks        the CTAs for a head and group of columns: of a cluster, or of the grid
    shape         the template arguments of the family's shape after the step and the units, in the template's order
    tiles         the same numbers, and those that follow from them, by name
    threads       per CTA
    shared_bytes  per CTA
    registers     per thread, as planned
    columns       the largest number of columns in a group; for stepwise the smallest batch that it runs
    capacity      the largest number of columns in a launch; None where it takes any number, group after group
    heads         the number of heads that it is for
    places        how many groups, of all heads together, run side by side
    pass_us       the expected time of a step of all groups that run side by side
    step_us       the expected time of a step of the batch that it was laid out for
    solution      the values of the variables of the family's model
    launch_us     the expected time of a step of a launch with `capacity` columns; None where larger batches do not
                  run in several launches
    """

    family: str
    blocks: int
    shape: tuple[int, ...]
    tiles: tuple[tuple[str, int], ...]
    threads: int
    shared_bytes: int
    registers: int
    columns: int
    capacity: int | None
    heads: int
    places: int
    pass_us: float
    step_us: float
    solution: tuple[int, ...] = ()
    launch_us: float | None = None

    @property
    def scope(self) -> str:
        """`block` (one CTA), `cluster` or `grid`: how far the units of a head are spread."""
        if self.family in ("grid", STEPWISE):
            return "grid"
        return "cluster" if self.blocks > 1 else "block"

    @property
    def fewest_columns(self) -> int:
        """The smallest batch of a call."""
        return self.columns if self.family == STEPWISE else 1

    @property
    def most_columns(self) -> int | None:
        """The largest batch of a call; None: any batch."""
        return self.capacity if self.launch_us is None else None

    def launches(self, columns: int) -> int:
        """How many launches a batch of `columns` takes; for stepwise how many per step. 0 where the kernel does not
        take it."""
        if self.family == STEPWISE:
            return int(columns >= self.fewest_columns)
        if self.capacity is None or columns <= self.capacity:
            return 1
        return 0 if self.launch_us is None else _ceil(columns, self.capacity)

    def launch_columns(self, columns: int) -> int:
        """Of the launches of a call, batch columns of each but the last: as many groups as run side by side, no wider
        than they must be. fused_share in templates/include/rnncc/cuda/fused/index.h does the same."""
        launches = self.launches(columns)
        if launches < 2:
            return columns
        seats = self.places // self.heads
        return seats * _ceil(columns, seats * launches)

    def planned_us(self, columns: int) -> float | None:
        """By what kernels are chosen for a call of so many batch columns, as fused_choices in
        templates/include/rnncc/cuda/fused/run.h has it; None: it does not take them."""
        launches = self.launches(columns)
        if not launches:
            return None
        if self.family == STEPWISE:
            return self.pass_us
        if launches > 1 and self.launch_us is not None:
            return launches * self.launch_us
        group = min(self.columns, _ceil(columns, max(1, self.places // self.heads)))
        return _ceil(self.heads * _ceil(columns, group), self.places) * self.pass_us


@dataclass(frozen=True, slots=True)
class Limit:
    """A requirement that rules something out, why it must hold, and what the other requirements leave of it (or empty):
    `768 >= 1024`."""

    name: str
    reason: str
    numbers: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A family that was not chosen: it takes longer (`step_us`), or these limits together rule it out."""

    family: str
    step_us: float | None
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The kernels of one loop, each for more batch columns at once than the one before, a stepwise one last; the
    alternating kernel, which takes all sizes, does the rest.

    step_us    what a step of the columns hinted at is expected to take; None: not known, or `is_impossible`
    rejected   the families that do not run them
    nodes      of the searches for them
    """

    kernels: tuple[FusedSchedule, ...]
    step_us: float | None
    rejected: tuple[Rejected, ...]
    nodes: int

    def kernel_for(self, columns: int) -> FusedSchedule | None:
        """The fused kernel that runs so many batch columns: of those that take them the stepwise one, or else the one
        planned to be quickest, the first of equals. None: the alternating one."""
        planned = ((kernel.planned_us(columns), kernel) for kernel in self.kernels)
        taking = ((kernel.family != STEPWISE, us, kernel) for us, kernel in planned if us is not None)
        return min(taking, key=lambda choice: choice[:2], default=(True, 0.0, None))[2]

    @property
    def is_impossible(self) -> bool:
        """Whether not even the alternating kernel runs the loop."""
        return any(rejected.family == "alternating" and rejected.limits for rejected in self.rejected)


@dataclass(frozen=True, slots=True)
class ScanShape:
    """How a kernel of a loop without products is laid out, whatever the GPU: ScanShape and WalkShape in
    templates/include/rnncc/cuda/scan.

    vector     units of a batch column, side by side in a lane
    steps      of a part: what a warp works on at a time
    warps      of a thread block
    depth      parts that are held at once: the others are on their way; 1: the next one is, in registers
    registers  of a thread, as planned
    resident   thread blocks of a multiprocessor, as planned
    shared_bytes, peer_bytes, least_shared_bytes
               of each of n blocks of a cluster: the least, or shared_bytes + (n if n > 1 else 0) * peer_bytes
    least_blocks
               that must share steps, of all groups of channels at once; 1: it is of use anywhere
    """

    vector: int
    steps: int
    warps: int
    depth: int
    registers: int
    resident: int
    shared_bytes: int
    peer_bytes: int
    least_shared_bytes: int
    least_blocks: int = 1

    @property
    def arguments(self) -> tuple[int, ...]:
        """The template arguments after the step."""
        return tuple(size for _, size in self.tiles)

    @property
    def tiles(self) -> tuple[tuple[str, int], ...]:
        """By name."""
        return ("vector", self.vector), ("steps", self.steps), ("warps", self.warps), ("depth", self.depth)

    @property
    def threads(self) -> int:
        """Of a thread block."""
        return 32 * self.warps

    def shared_bytes_of(self, blocks: int) -> int:
        """Of each thread block of a cluster."""
        return max(self.least_shared_bytes, self.shared_bytes + (blocks if blocks > 1 else 0) * self.peer_bytes)


@dataclass(frozen=True, slots=True)
class ScanSchedule:
    """The kernels of a loop without products, for elements of a size. `family`: scan or walk; `wide` for tensors whose
    rows begin at multiples of 16 bytes, `tall` for the same where there are few channels, `narrow` for all. `newton`:
    of a walk, where it was asked for, for tensors as of `wide`, where that many thread blocks share steps."""

    family: str
    wide: ScanShape
    tall: ScanShape
    narrow: ScanShape
    newton: ScanShape | None = None

    @property
    def forms(self) -> tuple[tuple[str, ScanShape], ...]:
        """By name; kernels are called so."""
        newton = () if self.newton is None else (("newton", self.newton),)
        return ("wide", self.wide), ("tall", self.tall), ("narrow", self.narrow), *newton

    def family_of(self, form: str) -> str:
        """Which function of templates/include/rnncc/cuda/scan a form's kernel is."""
        return "newton" if form == "newton" else self.family


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The same for a problem on a GPU: the `form` that runs it, and that `blocks` thread blocks share the steps of the
    same channels, where there are enough steps. step_us: what a step's tensors take through memory; no step takes
    less. newton_blocks: how many would share them in Newton's iterations; 0: their kernel does not take the problem, or
    there is none. takes_newton: whether they run it, in a package that has them."""

    schedule: ScanSchedule
    form: str
    blocks: int
    step_us: float
    newton_blocks: int
    takes_newton: bool

    def blocks_of(self, form: str) -> int:
        """How many blocks share steps in a form."""
        return max(self.newton_blocks, 1) if form == "newton" else self.blocks


@dataclass(frozen=True, slots=True)
class ScanKernels:
    """Of a program without products: its name, and how its kernels are laid out for float32 and for 16-bit elements."""

    program: str
    full: ScanSchedule
    half: ScanSchedule


# A sequence's length where there is none.
AFTER_STEPS = 1024


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """Both directions of a segment's loop. `after_us`: what comes after the backward loop, to the gradients of the
    recurrent matrices: a step's share of AFTER_STEPS; None: not known."""

    segment: int
    forward: Schedule | ScanPlan
    backward: Schedule | ScanPlan
    after_us: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The kernels of a cell for a problem on a GPU; `solve_ms`: processor time to find them, the reasons apart."""

    cell: str
    problem: Problem
    target: Target
    loops: tuple[LoopSchedule, ...]
    solve_ms: float


@dataclass(frozen=True, slots=True)
class FusedKernels:
    """The fused kernels of a cell, laid out for `heads` heads of `units` units; `dtype` is f32, bf16 or f16. `kernels`:
    the program's name and how it is laid out; of several of one program, those for few batch columns stand first."""

    units: int
    heads: int
    dtype: str
    kernels: tuple[tuple[str, FusedSchedule], ...]
