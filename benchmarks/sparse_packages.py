"""The packages of benchmarks/gpu_sparse.py: one for the cells of a batch size, in which each cell has the kernels of
one party. They can be built on a machine without a GPU.

A package has no more than is measured: kernels of bfloat16 without lengths and resets, each for one batch size, and the
alternating kernel where a loop has no other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpu_cases import PASSES, read_case
from sparse_cases import Shape, SparseCase

from rnncc.constrint import Infeasible
from rnncc.driver import make_product
from rnncc.ir.artifact import DeviceUnit
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import Choice, FusedKernels, KernelLayout, Row
from rnncc.ir.lowered import LoweredCell, LoweredLoop, NoForm, loop_name
from rnncc.ir.problem import INDEX_DTYPES, Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.machine.cache import Cache, default_root, digest
from rnncc.machine.targets import architectures
from rnncc.pipeline import compile_cells
from rnncc.progress import Progress
from rnncc.show.schedule import show_rejected
from rnncc.stages.build import Job, Product, build, find_nvrtc, find_toolchain, first_key, install
from rnncc.stages.render import render
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.families import MODELS, families_for

GPU, DTYPE = "h200", "bf16"
# The pass that runs each program of a loop.
PROGRAMS = {"inference": PASSES[0], "forward": PASSES[1], "backward": PASSES[1]}
# Which cases have no kernel, and why: a file beside the packages.
IMPOSSIBLE = "impossible.json"
# Smaller batches that kernels for zeros are looked for at, where none takes the whole batch in a launch.
PARTS = (8, 4)


def package_name(shape: Shape) -> str:
    """The package that has a shape's cells."""
    return f"sparse_bench_{shape.cell}_{shape.batch}"


def cell_name(case: SparseCase) -> str:
    """The cell that runs a case: `Forced_sparse_density_0_05`."""
    return re.sub(r"\W+", "_", f"{case.who.capitalize()} {case.shape.weights}").strip("_")


@dataclass(frozen=True, slots=True)
class Planned:
    """The kernels of a case's loop, by program, for the pass that runs them; `impossible`: why it has none.
    `alternating`: the files of alternating kernels, of programs that have no other."""

    kernels: tuple[tuple[str, KernelLayout], ...]
    alternating: tuple[str, ...] = ()
    impossible: str = ""


def plan_case(case: SparseCase, plan: LoweredCell) -> Planned:
    """The kernels that run a case."""
    problem = Problem(case.hidden, 1, DTYPE, case.batch)
    (loop,) = plan.plain_loops()
    found, alternating = [], []
    for program, fused in programs_of(plan, loop, case.run):
        if case.who != "forced":
            kernel = schedule(fused, problem, GPUS[GPU]).kernel_for(case.batch)
        else:
            kernel = forced(fused, problem)
            if kernel is None:
                return Planned((), impossible=f"{program.rpartition('_')[2]}: {why_impossible(fused, problem)}")
        if kernel is not None:
            found.append((program, kernel))
        else:
            alternating.append(alternating_file(program))
    return Planned(tuple(found), tuple(alternating))


def alternating_file(program: str, dtype: str = DTYPE) -> str:
    """The file with the alternating kernels of a program. Inference has those of the forward."""
    loop, _, kind = program.rpartition("_")
    return f"{loop}_{'forward' if kind == 'inference' else kind}_{INDEX_DTYPES[dtype]}"


def programs_of(plan: LoweredCell, loop: LoweredLoop, run: str) -> Iterator[tuple[str, FusedLoop]]:
    """The names of the programs that a pass runs, each with its loop."""
    assert not isinstance(loop.fused, NoForm)
    ahead, back = loop.fused
    for kind, wanted in PROGRAMS.items():
        if wanted == run:
            yield f"{loop_name(plan, loop)}_{kind}", back if kind == "backward" else ahead


def forced(loop: FusedLoop, problem: Problem) -> KernelLayout | None:
    """The quickest kernel for matrices that are mostly zeros, whether or not a dense one is quicker. Where none takes
    the batch in one launch, it is one that takes a part of it. None where there is none at all."""
    known, target = cost_of(loop, problem.dtype), GPUS[GPU]
    families = [family for family in families_for(known) if family.for_zeros]
    for batch in (problem.batch, *(part for part in PARTS if part < problem.batch)):
        found = []
        for family in families:
            part = replace(problem, batch=batch)
            layout_model = MODELS[family](known, part, target)
            try:
                solution = layout_model.best(batch)
            except Infeasible:
                continue
            found.append(layout_model.scheduled(solution, part, target))
        if found:
            return min(found, key=lambda kernel: kernel.step_us)
    return None


def why_impossible(loop: FusedLoop, problem: Problem) -> str:
    """Why there is no kernel for zeros, in the scheduler's words."""
    rejected = schedule(loop, problem, GPUS[GPU], reasons=True).rejected
    return "; ".join(
        show_rejected(entry, problem.batch)
        for entry in rejected
        if entry.family is not None and entry.family.for_zeros and entry.limits
    )


def build_packages(cases: Sequence[SparseCase], folder: Path, jobs: int | None) -> None:
    """Builds the packages of the cases, and a file of those that have no kernel. `jobs`: compilers at a time. Raises
    RnnccError."""
    if jobs is not None:
        os.environ["MAX_JOBS"] = str(jobs)
    groups: dict[str, list[SparseCase]] = {}
    for case in cases:
        if case.who != "csr":
            groups.setdefault(package_name(case.shape), []).append(case)
    impossible: list[dict[str, object]] = []
    for name, own in groups.items():
        impossible += [asdict(case) | {"reason": why} for case, why in build_one(name, own, folder).items()]
    (folder / IMPOSSIBLE).write_text(json.dumps(impossible, indent=1) + "\n", encoding="utf-8")


def impossible_cases(folder: Path) -> dict[SparseCase, str]:
    """The cases that have no kernel, and why. Raises OSError where the folder has no packages of this program."""
    rows = json.loads((folder / IMPOSSIBLE).read_text(encoding="utf-8"))
    return {read_case(SparseCase, row): row["reason"] for row in rows}


def build_one(name: str, cases: Sequence[SparseCase], folder: Path) -> dict[SparseCase, str]:
    """Builds the package of these cases, and returns those that have no kernel with the reason. Raises RnnccError."""
    texts = {cell_name(case): case.shape.text(cell_name(case)) for case in cases}
    source = Source(f"{name}.rnn", "\n".join(texts.values()))
    request = Request(source, name, architectures=architectures(GPU), instructions="generic")
    plans = {made.name: made.plan for made in compile_cells(request, "lower").cells}
    planned = {case: plan_case(case, plans[cell_name(case)]) for case in cases}
    kernels = {cell: fused_of({c: p for c, p in planned.items() if cell_name(c) == cell}) for cell in texts}
    alternating = sorted({name for found in planned.values() for name in found.alternating})
    install_with(request, kernels, alternating, folder, print)
    return {case: found.impossible for case, found in planned.items() if found.impossible}


def install_with(
    request: Request,
    kernels: Mapping[str, tuple[FusedKernels, ...]],
    alternating: Sequence[str],
    folder: Path,
    progress: Progress | None = None,
) -> None:
    """Builds the package of a request with these fused kernels, by cell, and these files of alternating ones, and no
    other kernels for sizes. It goes to the folder. Raises RnnccError."""

    def produce() -> Product:
        cells = compile_cells(request, "schedule").cells
        files, bundle = render(request, [replace(made, fused=kernels[made.name]) for made in cells])
        units = units_of(bundle.device_units, alternating)
        return replace(make_product(request), files=files, bundle=replace(bundle, device_units=units))

    nvrtc, compiler = find_nvrtc(request.architectures, required=True), find_toolchain()
    key = digest(first_key(request, nvrtc, compiler), repr(kernels), repr(alternating))[:32]
    folder.mkdir(parents=True, exist_ok=True)
    install(build(Job(key, request.name, Cache(default_root()), compiler, nvrtc, progress), produce), folder)


def fused_of(planned: dict[SparseCase, Planned]) -> tuple[FusedKernels, ...]:
    """A cell's kernels for each hidden size. Each case's kernels run its batch, and others up to the next case's."""
    by_size: dict[int, dict[str, dict[int, KernelLayout]]] = {}
    for case, found in planned.items():
        for program, kernel in found.kernels:
            by_size.setdefault(case.hidden, {}).setdefault(program, {})[case.batch] = kernel
    return tuple(
        FusedKernels(
            size,
            1,
            INDEX_DTYPES[DTYPE],
            GPUS[GPU].architecture,
            tuple((program, table_of(kernels)) for program, kernels in programs.items()),
        )
        for size, programs in by_size.items()
    )


def table_of(kernels: dict[int, KernelLayout]) -> tuple[Row, ...]:
    """The table by which each of these batches has its kernel."""
    batches = sorted(kernels)
    rows = (Row(batch, (Choice(kernels[batch], kernels[batch].step_us),)) for batch in batches)
    return tuple(replace(row, batch=1) if row.batch == batches[0] else row for row in rows)


def units_of(units: Sequence[DeviceUnit], alternating: Sequence[str]) -> tuple[DeviceUnit, ...]:
    """Which of a package's files of kernels its cases run: all for a size, what all cells share, and these with
    alternating kernels. Raises ValueError where the package lacks one."""
    names = {"_core", *alternating}
    if lacking := names - {unit.name for unit in units}:
        raise ValueError(f"no kernels are called {', '.join(sorted(lacking))}")
    return tuple(unit for unit in units if unit.architectures or unit.name in names)
