"""`render`: the C++ and CUDA files of a package's kernels.

Input: the KernelPlans of its cells, and whether GPU kernels are wanted. Output: a Bundle: the headers as they are, a
header of tables and one of functions for each cell, a translation unit of it for each set of instructions and compute
type and one that chooses among them, and the driver's units, which are the same for every package; for GPUs a host unit
and a file of kernels of the same kind, a host unit for each cell, and for its loops with products and for those without
a header of device code and a file of kernels for each dtype.
Fails with: InternalError only.

A file of a cell is called by its name in lower case and an ending. No ending is empty or the end of another, so that
files of two cells never meet, whatever their names (`A`, `A_CUDA`); other files begin with `_` or have no such ending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from rnncc.ir.artifact import Bundle, DeviceUnit, File, Unit
from rnncc.ir.plan import KernelPlan
from rnncc.ir.schedule import FusedKernels, ScanKernels
from rnncc.ir.target import EVERY, INSTRUCTION_SETS
from rnncc.machine.paths import templates_dir
from rnncc.stages.render.fused import FusedKernelText, index_lines, kernel_texts, steps_text
from rnncc.stages.render.scan import scan_file_text, scan_steps_text
from rnncc.stages.render.text import CellText, cell_text

__all__ = ["render", "render_fused"]

INCLUDE = "src/include"
# Of fused kernels: what there is of them, a line each.
INDEX = "cuda/fused.txt"
# text(template, what it prints)
Text = Callable[[str, object], str]


@dataclass(frozen=True, slots=True)
class ScalarText:
    """A compute type: its C++ name, what symbols call it, its bytes."""

    name: str
    suffix: str
    bytes: int


SCALARS = (ScalarText("float", "f32", 4), ScalarText("double", "f64", 8))
# Of streams and weights on a GPU; arithmetic is float32 throughout.
DEVICE_SCALARS = (
    ScalarText("float", "f32", 4),
    ScalarText("rnncc::bfloat16", "bf16", 2),
    ScalarText("rnncc::float16", "f16", 2),
)


@dataclass(frozen=True, slots=True)
class UnitText:
    """What the template of a translation unit prints."""

    isa: str
    scalar: ScalarText
    cells: tuple[CellText, ...]


@dataclass(frozen=True, slots=True)
class DispatchText:
    """What the templates of units print that choose the code for a processor; `instructions` as `render` takes it."""

    instructions: str
    cell: CellText | None = None


@dataclass(frozen=True, slots=True)
class KernelsText:
    """What the template of a file of GPU kernels prints."""

    scalar: ScalarText
    cell: CellText


def render(
    plans: Sequence[KernelPlan],
    scans: Sequence[Sequence[ScanKernels]] | None = None,
    fused: Sequence[Sequence[FusedKernels]] = (),
    instructions: str = EVERY,
) -> Bundle:
    """The native part of a package, but for its binding. Of each plan, `scans`: the kernels of its loops without
    products, None where no GPU kernels are wanted; `fused`: the fused kernels that are wanted. `instructions`: the one
    set of INSTRUCTION_SETS that CPU code is made for, or EVERY."""
    isas = tuple(INSTRUCTION_SETS) if instructions == EVERY else (instructions,)
    cuda = scans is not None
    text = _texts()
    files = list(_headers(cuda=cuda))
    units: list[Unit] = []
    device_units: list[DeviceUnit] = []

    def unit(path: str, isa: str, content: str, shared: bool = False) -> None:
        files.append(File(path, content))
        units.append(Unit(path, isa, shared))

    for isa in isas:
        for scalar in SCALARS:
            plan = UnitText(isa, scalar, ())
            unit(f"src/_core_{isa}_{scalar.suffix}.cpp", isa, text("core.cpp.j2", plan), shared=True)
    unit("src/_core.cpp", "generic", text("core_dispatch.cpp.j2", DispatchText(instructions)), shared=True)
    unit(
        "src/_core_binding.cpp",
        "binding",
        text("core_binding.cpp.j2", UnitText("binding", SCALARS[0], ())),
        shared=True,
    )
    if cuda:
        unit("src/_core_cuda.cpp", "binding", text("core_cuda.cpp.j2", None), shared=True)
        files.append(File("src/_core.cu", text("core.cu.j2", None)))
        device_units.append(DeviceUnit("src/_core.cu", "_core"))
    for kernel, own_scans in zip(plans, [()] * len(plans) if scans is None else scans, strict=True):
        cell = cell_text(kernel, own_scans)
        files.append(File(f"src/{cell.name}_tables.h", text("tables.h.j2", cell)))
        files.append(File(f"src/{cell.name}_functions.h", text("cell.h.j2", cell)))
        unit(f"src/{cell.name}_dispatch.cpp", "generic", text("cell_dispatch.cpp.j2", DispatchText(instructions, cell)))
        for isa in isas:
            for scalar in SCALARS:
                plan = UnitText(isa, scalar, (cell,))
                unit(f"src/{cell.name}_{isa}_{scalar.suffix}.cpp", isa, text("cell.cpp.j2", plan))
        if cuda:
            unit(f"src/{cell.name}_cuda.cpp", "binding", text("cell_cuda.cpp.j2", cell))
            kernel_files = (*_alternating_files(cell, text), *_scan_files(kernel, own_scans, text))
            files += kernel_files
            device_units += (
                DeviceUnit(file.path, Path(file.path).stem) for file in kernel_files if file.path.endswith(".cu")
            )
    added = _fused_files(plans, fused, text)
    files += added
    return Bundle(tuple(files), tuple(units), (INCLUDE,), (*device_units, *_fused_units(added)))


def render_fused(plan: KernelPlan, wanted: Sequence[FusedKernels]) -> Bundle:
    """Fused kernels of a cell alone, for a package that has the rest; no files where there is none."""
    files = _fused_files([plan], [wanted], _texts())
    return Bundle((*_headers(cuda=True), *files) if files else (), (), (INCLUDE,), _fused_units(files))


@cache
def _texts() -> Text:
    templates = templates_dir()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([templates / "cpu", templates / "cuda"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return lambda template, plan: environment.get_template(template).render(plan=plan)


def _alternating_files(cell: CellText, text: Text) -> Iterator[File]:
    if not cell.alternating:
        return
    yield File(f"src/{cell.name}_device.cuh", text("device.cuh.j2", cell))
    for scalar in DEVICE_SCALARS:
        yield File(f"src/{cell.name}_{scalar.suffix}.cu", text("kernels.cu.j2", KernelsText(scalar, cell)))


def _scan_files(plan: KernelPlan, scans: Sequence[ScanKernels], text: Text) -> Iterator[File]:
    if not scans:
        return
    name = plan.cell.lower()
    steps = f"{name}_scans.cuh"
    yield File(f"src/{steps}", text("step.cuh.j2", scan_steps_text(plan, scans)))
    for scalar in DEVICE_SCALARS:
        kernels = scan_file_text(plan, scans, scalar.name, scalar.bytes, steps)
        yield File(f"src/{name}_{scalar.suffix}_scans.cu", text("scans.cu.j2", kernels))


def _fused_files(plans: Sequence[KernelPlan], fused: Sequence[Sequence[FusedKernels]], text: Text) -> tuple[File, ...]:
    """The steps of each cell, a file for each of its fused kernels, which several sizes may have in common, and the
    index of them all."""
    files: list[File] = []
    lines: list[str] = []
    for plan, wanted in zip(plans, fused, strict=False):
        steps = f"{plan.cell.lower()}_steps.cuh"
        found: dict[str, FusedKernelText] = {}
        for kernels in wanted:
            scalar = next(scalar.name for scalar in DEVICE_SCALARS if scalar.suffix == kernels.dtype)
            found |= {kernel.symbol: kernel for kernel in kernel_texts(plan, kernels, scalar, steps)}
            lines += index_lines(kernels)
        if found:
            files.append(File(f"src/{steps}", text("step.cuh.j2", steps_text(plan))))
            files += (File(f"src/{symbol}.cu", text("fused.cu.j2", kernel)) for symbol, kernel in found.items())
    if lines:
        files.append(File(INDEX, "".join(f"{line}\n" for line in lines)))
    return tuple(files)


def _fused_units(files: Sequence[File]) -> tuple[DeviceUnit, ...]:
    return tuple(
        DeviceUnit(file.path, Path(file.path).stem, clusters=True) for file in files if file.path.endswith(".cu")
    )


def _headers(*, cuda: bool) -> Sequence[File]:
    include = templates_dir() / "include"
    folders = ("core", "cpu", "torch", "cuda") if cuda else ("core", "cpu", "torch")
    found = [path for folder in folders for path in sorted((include / "rnncc" / folder).rglob("*.*h"))]
    return [
        File(f"{INCLUDE}/{path.relative_to(include).as_posix()}", path.read_text(encoding="utf-8")) for path in found
    ]
