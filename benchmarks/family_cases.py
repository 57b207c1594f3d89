"""What benchmarks/gpu_families.py measures: the cases in which the planner chooses a family, the kernels that run them
with it and without it, and the packages that have both."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sparse_cases import CROSSOVER, DENSITIES, EQUATIONS, Shape
from sparse_packages import alternating_file, install_with, table_of

from rnncc.constrint import Infeasible
from rnncc.ir.family import ALTERNATING, Family
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import FusedKernels, KernelLayout
from rnncc.ir.lowered import LoweredCell, NoForm, loop_name
from rnncc.ir.problem import INDEX_DTYPES, Problem
from rnncc.ir.request import Request
from rnncc.ir.target import Target
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.machine.paths import shipped_cells
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.expect import step_us
from rnncc.stages.schedule.families import MODELS, families_for

RUNS = ("forward", "backward")
# Head_dims and heads.
SIZES = (*((head_dim, 1) for head_dim in (64, 128, 256, 512, 768, 1024, 2048)), (64, 12))
BATCHES = (1, 16, 64, 256)
DTYPES = ("bf16", "fp32")
# Where matrices are mostly zeros: hidden sizes, and the sizes of blocks.
ZERO_SIZES = tuple(dict.fromkeys((hidden, 1) for sizes in CROSSOVER.values() for hidden in sizes))
BLOCK_SIZES = (16, 32)
# A package has the cell twice: with the kernels of all families, and with those of all but one.
CHOSEN, WITHOUT = PARTIES = ("Chosen", "Without")


@dataclass(frozen=True, slots=True)
class Cell:
    """A shipped cell, or where `density` is less than 1, one of EQUATIONS whose matrix has that density, in blocks of
    `block` by `block`."""

    name: str
    density: float = 1.0
    block: int = 1

    @property
    def package(self) -> str:
        """The package that has it."""
        zeros = f"_{self.density}_{self.block}" if self.density < 1 else ""
        return re.sub(r"\W", "_", f"families_{self.name}{zeros}")

    def text(self, name: str) -> str:
        """The cell's text. The cell is called `name` there."""
        if self.density < 1:
            return Shape(self.name, 0, 0, self.density, self.block).text(name)
        return re.sub(r"^cell \w+", f"cell {name}", read_request(self.name).source.text, count=1, flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a cell's loop, forward (as training runs it) or backward, at a size for which the planner chooses
    `family`."""

    family: str
    cell: str
    density: float
    block: int
    head_dim: int
    heads: int
    batch: int
    dtype: str
    run: str

    @property
    def of(self) -> Cell:
        """The cell."""
        return Cell(self.cell, self.density, self.block)

    @property
    def problem(self) -> Problem:
        """What its kernels are laid out for, as packages have them: the usual batch."""
        return Problem(self.head_dim, self.heads, self.dtype)

    def __str__(self) -> str:
        zeros = f" {self.density} in {self.block}x{self.block}" if self.density < 1 else ""
        return f"{self.cell}{zeros} {self.head_dim}x{self.heads} B={self.batch} {self.dtype} {self.run}"


@dataclass(frozen=True, slots=True)
class Expected:
    """The families that run a case with all families and without its own, and the times of a step by which they are
    chosen, in microseconds."""

    chosen: str
    without: str
    chosen_us: float
    without_us: float


def family_named(name: str) -> Family:
    """A family that has a model. Raises ValueError for another name."""
    found = next((family for family in MODELS if family.name == name), None)
    if found is None:
        raise ValueError(f"no family is called {name}: there are {', '.join(family.name for family in MODELS)}")
    return found


def cells_for(family: Family) -> list[Cell]:
    """The cells in which the family is looked for. Families for blocks have no cells without."""
    if not family.for_zeros:
        return [Cell(path.stem) for path in shipped_cells()]
    return [Cell(name, density, block) for name in EQUATIONS for density in DENSITIES for block in (1, *BLOCK_SIZES)]


def chosen_cases(name: str, cell: Cell, target: Target) -> list[Case]:
    """The cases of a cell in which the planner chooses the family of that name. Cells of several loops have none."""
    family, (plan,) = family_named(name), _plans(cell.text(CHOSEN))
    loops = list(plan.plain_loops())
    if len(loops) > 1 or isinstance(loops[0].fused, NoForm):
        return []
    found = []
    for head_dim, heads in ZERO_SIZES if family.for_zeros else SIZES:
        if heads > 1 and plan.single_head_because:
            continue
        for dtype in DTYPES:
            for run, loop in zip(RUNS, loops[0].fused, strict=True):
                if not _fits(family, loop, Problem(head_dim, heads, dtype, min(BATCHES)), target):
                    continue
                kernels = schedule(loop, Problem(head_dim, heads, dtype), target)
                for batch in BATCHES:
                    kernel = kernels.kernel_for(batch)
                    if kernel is not None and kernel.family is family:
                        case = Case(name, cell.name, cell.density, cell.block, head_dim, heads, batch, dtype, run)
                        found.append(case)
    return found


def _fits(family: Family, loop: FusedLoop, problem: Problem, target: Target) -> bool:
    """Whether the family has a kernel for a loop at all: no larger batch has one where the smallest has none."""
    known = cost_of(loop, problem.dtype)
    if family not in families_for(known):
        return False
    layout_model = MODELS[family](known, problem, target)
    try:
        layout_model.best(problem.batch)
    except Infeasible:
        return False
    return True


def spread(cases: Sequence[Case], most: int) -> list[Case]:
    """At most so many of the cases, evenly from small sizes to large ones."""
    in_order = sorted(cases, key=lambda c: (c.head_dim * c.heads, c.heads, c.dtype, c.run, c.batch, c.density, c.cell))
    count = min(most, len(in_order))
    return [in_order[(2 * place + 1) * len(in_order) // (2 * count)] for place in range(count)]


@contextmanager
def left_out(family: Family) -> Iterator[None]:
    """The planner does not know the family."""
    known = dict(MODELS)
    del MODELS[family]
    try:
        yield
    finally:
        MODELS.clear()
        MODELS.update(known)


def build_package(cell: Cell, cases: Sequence[Case], folder: Path, target: Target, jobs: int) -> dict[Case, Expected]:
    """Builds the package of a cell, with the kernels that run its cases, and says which these are. `jobs`: compilers at
    a time. Raises RnnccError."""
    os.environ["MAX_JOBS"] = str(jobs)
    text = "\n".join(cell.text(party) for party in PARTIES)
    request = Request(
        Source(f"{cell.package}.rnn", text), cell.package, architectures=(target.architecture,), instructions="generic"
    )
    plans = {plan.cell: plan for plan in _plans(text)}
    kernels: dict[str, dict[Problem, dict[str, dict[int, KernelLayout]]]] = {party: {} for party in PARTIES}
    alternating: set[str] = set()
    expected = {}
    for case in cases:
        named: dict[str, tuple[str, float]] = {}
        for party in PARTIES:
            for run, program, loop in _programs(plans[party], case.run):
                kernel = kernel_of(case, party, loop, target)
                if kernel is None:
                    alternating.add(alternating_file(program, case.dtype))
                else:
                    kernels[party].setdefault(case.problem, {}).setdefault(program, {})[case.batch] = kernel
                if run == case.run:
                    named[party] = _planned(case, loop, kernel, target)
        (chosen, chosen_us), (without, without_us) = named[CHOSEN], named[WITHOUT]
        expected[case] = Expected(chosen, without, chosen_us, without_us)
    fused = {
        party: tuple(
            FusedKernels(
                p.head_dim,
                p.heads,
                INDEX_DTYPES[p.dtype],
                target.architecture,
                tuple((program, table_of(by_batch)) for program, by_batch in found.items()),
            )
            for p, found in kernels[party].items()
        )
        for party in PARTIES
    }
    install_with(request, fused, sorted(alternating), folder)
    return expected


def kernel_of(case: Case, party: str, loop: FusedLoop, target: Target) -> KernelLayout | None:
    """The fused kernel that runs the batch of a case, or None: the alternating one does."""
    if party == CHOSEN:
        return schedule(loop, case.problem, target).kernel_for(case.batch)
    with left_out(family_named(case.family)):
        return schedule(loop, case.problem, target).kernel_for(case.batch)


def _programs(plan: LoweredCell, run: str) -> Iterator[tuple[str, str, FusedLoop]]:
    """The programs that a case needs, each with its pass, its name and its loop: a backward has a forward before it."""
    (loop,) = plan.plain_loops()
    assert not isinstance(loop.fused, NoForm)
    for each, fused in zip(RUNS[: 1 + RUNS.index(run)], loop.fused, strict=False):
        yield each, f"{loop_name(plan, loop)}_{each}", fused


def _planned(case: Case, loop: FusedLoop, kernel: KernelLayout | None, target: Target) -> tuple[str, float]:
    """The family of what runs a case, and its expected time."""
    known, problem = cost_of(loop, case.dtype), replace(case.problem, batch=case.batch)
    if kernel is None:
        return ALTERNATING.name, alternating_us(known, problem, target)
    return kernel.family.name, step_us(known, kernel, problem, target)


@cache
def _plans(text: str) -> tuple[LoweredCell, ...]:
    return tuple(made.plan for made in compile_cells(Request(Source("cell.rnn", text), "cell"), "lower").cells)
