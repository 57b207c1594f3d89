"""The stages in order, and nothing else: the only module that knows the order.

    text ─parse→ CellDecl ─check→ Cell ─classify→ Recurrence ─┐
                            │                                  ├→ package files
                            └─differentiate→ Adjoint ─lower→ KernelPlan ─render→ Bundle ─build→ folder ─load→ module
                                                               └schedule→ Schedule (of a loop, a size and a GPU)

`mask` makes the second variant of a cell (resets, lengths), `regularise` what layers with zoneout or recurrent dropout
run; both go the same way. Stages are imported where they run, so that a command pays for the ones it needs: a build
found in the cache imports none of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rnncc.built import about, explanation, without_kernels
from rnncc.diagnostics import Diagnostic, RnnccError
from rnncc.paths import locate, package_name, shipped_cell, templates_dir
from rnncc.read import from_text, read_source
from rnncc.runtime.settings import log_level
from rnncc.source import Source
from rnncc.targets import EVERY, architecture_of, architectures, has_clusters, own_instructions, present
from rnncc.version import VERSION

if TYPE_CHECKING:
    from types import ModuleType

    from rnncc.ir.adjoint import Adjoint
    from rnncc.ir.artifact import Bundle
    from rnncc.ir.cell import Cell
    from rnncc.ir.kernel import KernelPlan
    from rnncc.ir.problem import Problem
    from rnncc.ir.recurrence import Recurrence
    from rnncc.ir.schedule import Plan
    from rnncc.ir.target import Target
    from rnncc.stages.build import Nvcc, Product, Toolchain

Shaping = Mapping[str, float | int | str]
Progress = Callable[[str], None]
Problems = Sequence["Problem"]


class Analysis(NamedTuple):
    """What `explain` reads: a cell, and of each of its segments the recurrence class and the reverse program."""

    cell: Cell
    recurrences: tuple[Recurrence, ...]
    adjoints: tuple[Adjoint, ...]


def front(source: Source, shaping: Shaping | None = None) -> tuple[tuple[Cell, tuple[Diagnostic, ...]], ...]:
    """The checked cells of a text, each with its warnings. A constant's value goes to the cells that have it;
    `zoneout__` (states, separated by spaces) and `recurrent_dropout__` (0, 1) are what `regularise` is told.

    Raises:
        RnnccError: every RNN1xx found or, where there are none, every RNN2xx of every cell.
    """
    from rnncc.ir.syntax import ConstDecl
    from rnncc.stages.check import check
    from rnncc.stages.parse import parse

    checked = []
    errors: list[Diagnostic] = []
    declarations = parse(source)
    constants_of = dict(shaping or {})
    zoneout, dropout = str(constants_of.pop("zoneout__", "")), constants_of.pop("recurrent_dropout__", 0)
    constants = [{item.name for item in cell.statements if isinstance(item, ConstDecl)} for cell in declarations]
    known = frozenset[str]().union(*constants)
    for declaration, own in zip(declarations, constants, strict=True):
        # A name that no cell has is every cell's mistake.
        given = {name: value for name, value in constants_of.items() if name in own or name not in known}
        try:
            cell, warnings = check(declaration, given)
            if zoneout or dropout:
                from rnncc.stages.regularise import regularise

                cell = regularise(cell, tuple(zoneout.split()), bool(dropout))
            checked.append((cell, warnings))
        except RnnccError as error:
            errors += error.diagnostics
    if errors:
        raise RnnccError(*errors)
    return tuple(checked)


def analyse(source: Source) -> tuple[Analysis, ...]:
    """The cells of a text with their recurrence classes and reverse programs."""
    from rnncc.stages.classify import classify
    from rnncc.stages.differentiate import differentiate

    return tuple(Analysis(cell, classify(cell), differentiate(cell)) for cell, _ in front(source))


def plan_kernels(cell: Cell, problem: Problem, target: Target) -> Plan:
    """How every loop of a cell is laid out on a GPU, and what rules out the other ways."""
    from rnncc.gpu import planned

    return planned(kernel_plan(cell), problem, target)


def stage_text(source: Source, stage: str, problem: Problem | None = None, target: Target | None = None) -> str:
    """The value of a stage for every cell of the text, as `rnncc show` prints it. A schedule is for a problem and a
    GPU."""
    from rnncc.ir.show import show
    from rnncc.ir.show_schedule import show_kernels

    if stage == "parse":
        from rnncc.stages.parse import parse

        return "\n".join(show(declaration) for declaration in parse(source))
    cells = [cell for cell, _ in front(source)]
    match stage:
        case "check":
            return "\n".join(show(cell) for cell in cells)
        case "classify":
            from rnncc.stages.classify import classify

            return "\n".join(show(recurrence) for cell in cells for recurrence in classify(cell))
        case "differentiate":
            from rnncc.stages.differentiate import differentiate

            return "\n".join(show(adjoint) for cell in cells for adjoint in differentiate(cell))
        case "schedule" if problem and target:
            return "\n".join(show_kernels(plan_kernels(cell, problem, target)) for cell in cells)
        case "schedule":
            from rnncc.gpu import families

            # Work is divided when the sizes are known, at run time.
            return "\n".join(
                f"{cell.name}, segment {loop.segment}: {family}, target {target}, every size at run time"
                for cell in cells
                for loop, on_gpu in families(kernel_plan(cell))
                for family, target in (("sequential", "cpu"), (on_gpu, "any GPU"))
            )
        case "lower":
            return "\n".join(show(kernel_plan(cell)) for cell in cells)
        case "render":
            bundle = _render([kernel_plan(cell) for cell in cells], cuda=True)
            return "\n".join(
                f"// {file.path}\n{file.text}" for file in bundle.files if not file.path.startswith("src/include/")
            )
    raise ValueError(f"no stage is called {stage}")


def build_package(
    path: Path,
    out: Path,
    *,
    target: str = "auto",
    name: str | None = None,
    problems: Problems = (),
    parallel_newton: bool = False,
    shaping: Shaping | None = None,
    progress: Progress | None = None,
) -> Path:
    """Build the cells of the file at `path` into the folder `out/<stem>`, and return that folder. `problems`: for which
    (units of a head, dtype) there shall be fused GPU kernels; `parallel_newton`: whether loops that are walked through
    shall have kernels that iterate, too; `shaping`: as for `front`.

    Raises:
        RnnccError: mistakes in the text; RNN601 without a compiler, RNN602 where it failed, RNN603 to RNN605 where
            the folder cannot be written, RNN606 for an unknown target, RNN608 for a GPU without nvcc, RNN610 for a
            folder that is no cache of the user's.
    """
    from rnncc.stages.build import check_stem, find_nvcc, find_toolchain, install

    nvcc = find_nvcc(architectures(target), required="auto" not in target.split(","))
    if progress is not None and (older := _takes_none(nvcc, target)):
        if problems:
            progress(f"fused kernels need nvcc and a GPU of compute capability 9.0 or more: none for {older}")
        if parallel_newton:
            progress(f"--parallel-newton is for GPUs of compute capability 9.0 or more: of no use for {older}")
    stem = name or path.stem
    check_stem(stem, out)
    source, shaping = read_source(path), shaping or {}
    package = _build(source, stem, shaping, find_toolchain(), nvcc, progress, problems, parallel_newton)
    if progress is not None and _takes_fused(nvcc):
        able = next(name.strip() for name in target.split(",") if any(map(has_clusters, architectures(name))))
        for problem in without_kernels(package, problems):
            progress(f"no fused kernel for this size: {explanation(path, able, problem)} says why")
        if parallel_newton and not about(package)["newton"]:
            progress(f"--parallel-newton changes nothing: {path} has no loop that it is for")
    return install(package, out)


def load_file(name_or_path: str | os.PathLike[str], shaping: Shaping, parallel_newton: bool = False) -> ModuleType:
    """`rnncc.load`."""
    path = locate(os.fspath(name_or_path))
    return _load(read_source(path), package_name(path.stem), shaping, parallel_newton)


def load_text(text: str, name: str, shaping: Shaping, parallel_newton: bool = False) -> ModuleType:
    """`rnncc.compile`."""
    return _load(from_text(f"<{name}>", text), package_name(name), shaping, parallel_newton)


def unpickle(source: Source, stem: str, shaping: Shaping, parallel_newton: bool, class_name: str) -> Any:
    """An empty instance of a layer's class, loaded again from its text: how layers are pickled."""
    from rnncc.stages.load import allow

    layer_class = getattr(_load(source, stem, shaping, parallel_newton), class_name)
    allow(layer_class)
    return layer_class.__new__(layer_class)


def _load(source: Source, stem: str, shaping: Shaping, parallel_newton: bool) -> ModuleType:
    from rnncc.stages.build import find_nvcc, find_toolchain
    from rnncc.stages.load import load

    toolchain: Toolchain | None = None
    try:
        toolchain = find_toolchain()
    except RnnccError as error:
        say(f"{error.diagnostics[0].message}: {stem} runs its eager reference, which is many times slower")
    nvcc = find_nvcc(present(), required=False) if toolchain is not None else None
    # What stays on this machine needs no code for others, which takes three times as long to compile.
    package = _build(source, stem, shaping, toolchain, nvcc, say, (), parallel_newton, own_instructions())
    if parallel_newton and _takes_fused(nvcc) and not about(package)["newton"]:
        say(f"parallel_newton changes nothing: {stem} has no loop that it is for")
    return load(package, origin=(unpickle, (source, stem, dict(shaping), parallel_newton)))


def compile_fused(
    text: str,
    stem: str,
    shaping: Shaping,
    cell: str,
    sizes: Sequence[tuple[int, int, str]],
    capability: tuple[int, int],
    code: str,
) -> tuple[Path | None, str]:
    """Fused kernels of one cell of a text for `sizes`, (units of a head, heads, dtype) and alike but in heads, on a
    GPU of that compute capability: the folder with `fused.txt` and cubins, or None and why there is none. Found in the
    cache, or compiled now. A package in use calls it (rnncc/runtime/fused.py); `code` is that of the rnncc which built
    it, since kernels must take what its library gives.

    Raises:
        RnnccError: RNN602 where nvcc failed, RNN605 for a cache that cannot be written, RNN607, RNN608 without nvcc,
            RNN609 for a package of another rnncc, RNN610 for a folder that is no cache of the user's.
    """
    from rnncc.cache import Cache, default_root
    from rnncc.ir.problem import Problem
    from rnncc.ir.target import gpu
    from rnncc.stages.build import build_kernels, find_nvcc, first_key, own_code

    if code != own_code():
        help = "build the package again"
        raise RnnccError(Diagnostic("RNN609", f"another rnncc than this one ({VERSION}) built the package", help=help))
    problems, architecture = tuple(Problem(*size) for size in sizes), architecture_of(*capability)
    target = gpu(architecture)
    if target is None:
        return None, f"no kernels are planned for GPUs of {architecture}"
    nvcc = find_nvcc((architecture,), required=True)
    assert nvcc is not None
    source = Source(f"<{stem}>", text)

    def produce() -> Bundle:
        from rnncc.gpu import fused_kernels
        from rnncc.stages.render import render_fused

        plan = next(kernel_plan(checked) for checked, _ in front(source, shaping) if checked.name == cell)
        return render_fused(plan, fused_kernels(plan, problems, target))

    problem, most = problems[0], problems[-1].heads
    numbers = " and ".join(str(problem.heads) for problem in problems)
    heads = f"{numbers} head{'s' if most > 1 else ''} of {problem.units} units"
    folder = build_kernels(
        first_key(text.encode(), f"{stem}.{cell}", nvcc, None, shaping, problems),
        cell.lower(),
        f"{cell} for {heads}, {problem.dtype}, {architecture}",
        produce,
        nvcc,
        Cache(default_root()),
        say,
    )
    if (folder / "cuda").is_dir():
        return folder / "cuda", ""
    known = stem if shipped_cell(stem) else "FILE"  # the package does not say where its file lies
    return None, f"no fused kernel for {heads} fits ({explanation(known, architecture, problem)})"


def say(message: str) -> None:
    """One line of progress on stderr, unless RNNCC_LOG asks for less."""
    if log_level() == "info":
        print(f"rnncc: {message}", file=sys.stderr, flush=True)


def _build(
    source: Source,
    stem: str,
    shaping: Shaping,
    toolchain: Toolchain | None,
    nvcc: Nvcc | None,
    progress: Progress | None,
    problems: Problems = (),
    parallel_newton: bool = False,
    instructions: str = EVERY,
) -> Path:
    from rnncc.cache import Cache, default_root
    from rnncc.stages.build import build, first_key

    newton = parallel_newton and _takes_fused(nvcc)

    def produce() -> Product:
        return _produce(source, stem, shaping, toolchain, nvcc, problems, newton, instructions, progress)

    key = first_key(source.text.encode(), stem, nvcc, toolchain, shaping, problems, newton, instructions)
    return build(key, stem, produce, toolchain, Cache(default_root()), progress, nvcc)


def _produce(
    source: Source,
    stem: str,
    shaping: Shaping,
    toolchain: Toolchain | None,
    nvcc: Nvcc | None,
    problems: Problems,
    newton: bool = False,
    instructions: str = EVERY,
    progress: Progress | None = None,
) -> Product:
    from rnncc.gpu import newton_loops, scan_families, unfused
    from rnncc.ir.cell import declared_names
    from rnncc.ir.package import CompiledCell
    from rnncc.stages.build import Product
    from rnncc.stages.classify import classify
    from rnncc.stages.differentiate import differentiate
    from rnncc.stages.mask import mask
    from rnncc.stages.render.python import plan_package, render_package

    checked = front(source, shaping)
    cells = [cell for cell, _ in checked]
    for cell, warnings in checked:
        for warning in warnings:
            # The others are `check`'s: the work that begins here may take minutes.
            if warning.code == "RNN264" and toolchain is not None and progress is not None:
                progress(f"{warning.code}: {cell.name}: {warning.message}")
    compiled: list[CompiledCell] = []
    plans: list[KernelPlan] = []
    for cell in cells:
        masked = mask(cell)
        adjoints, masked_adjoints = (differentiate(cell), differentiate(masked)) if toolchain else ((), ())
        classes = tuple(
            (", ".join(declared_names(cell, segment)), recurrence.kind.value, recurrence.form, recurrence.why)
            for segment, recurrence in zip(cell.segments, classify(cell), strict=True)
        )
        compiled.append(CompiledCell(cell, masked, classes, adjoints, masked_adjoints))
        if toolchain:
            plans.append(kernel_plan(cell))
    cuda = nvcc is not None
    files = render_package(plan_package(stem, VERSION, compiled, cuda=cuda), templates_dir())
    return Product(
        files,
        _render(plans, cuda, problems if _takes_fused(nvcc) else (), newton, instructions) if plans else None,
        tuple(cell.name for cell in cells),
        missing="" if toolchain else "no C++ compiler was found when it was built",
        about={
            "rnncc": VERSION,
            "source": source.text,
            "fused": unfused(plans) if cuda else {},
            "scans": scan_families(plans) if cuda else {},
            "newton": newton_loops(plans) if newton else [],
        },
    )


def _takes_fused(nvcc: Nvcc | None) -> bool:
    return nvcc is not None and any(map(has_clusters, nvcc.architectures))


def _takes_none(nvcc: Nvcc | None, target: str) -> str:
    """What of a target has no use for kernels with clusters, or nothing."""
    if nvcc is None or not _takes_fused(nvcc):
        return f"--target {target}"
    return ", ".join(name for name in nvcc.architectures if not has_clusters(name))


def _render(
    plans: list[KernelPlan], cuda: bool, problems: Problems = (), newton: bool = False, instructions: str = EVERY
) -> Bundle:
    from rnncc.gpu import fused_kernels, scan_kernels
    from rnncc.stages.render import render

    scans = [scan_kernels(plan, newton=newton) for plan in plans] if cuda else None
    return render(plans, scans, [fused_kernels(plan, problems) for plan in plans], instructions)


def kernel_plan(cell: Cell) -> KernelPlan:
    """All loops of a cell, as kernels run them."""
    from rnncc.stages.differentiate import differentiate
    from rnncc.stages.lower import lower
    from rnncc.stages.mask import mask

    masked = mask(cell)
    return lower(cell, differentiate(cell), masked, differentiate(masked))
