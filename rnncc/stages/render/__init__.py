"""`render`: the C++ and CUDA files of a package's kernels.

Input: the KernelPlans of its cells, and whether GPU kernels are wanted. Output: a Bundle: the headers as they are, a
header of tables, one of functions and seven translation units for each cell, and the driver's units, which are the same
for every package; for GPUs a header of device code, a file of kernels for each dtype and a host unit for each cell.
Fails with: InternalError only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from rnncc.ir.artifact import Bundle, DeviceUnit, File, Unit
from rnncc.ir.kernel import KernelPlan
from rnncc.ir.schedule import FusedKernels
from rnncc.paths import templates_dir
from rnncc.stages.render.fused import FusedKernelText, index_lines, kernel_texts, steps_text
from rnncc.stages.render.text import CellText, cell_text

__all__ = ["render"]

ISAS = ("generic", "v3", "v4")
INCLUDE = "src/include"
# Of fused kernels: what there is of them, a line each.
INDEX = "cuda/fused.txt"


@dataclass(frozen=True, slots=True)
class ScalarText:
    """A compute type: its C++ name and what symbols call it."""

    name: str
    suffix: str


SCALARS = (ScalarText("float", "f32"), ScalarText("double", "f64"))
# Of streams and weights on a GPU; arithmetic is float32 throughout.
DEVICE_SCALARS = (
    ScalarText("float", "f32"),
    ScalarText("rnncc::bfloat16", "bf16"),
    ScalarText("rnncc::float16", "f16"),
)


@dataclass(frozen=True, slots=True)
class UnitText:
    """What the template of a translation unit prints."""

    isa: str
    scalar: ScalarText
    cells: tuple[CellText, ...]


@dataclass(frozen=True, slots=True)
class KernelsText:
    """What the template of a file of GPU kernels prints."""

    scalar: ScalarText
    cell: CellText


def render(plans: Sequence[KernelPlan], *, cuda: bool = False, fused: Sequence[Sequence[FusedKernels]] = ()) -> Bundle:
    """The native part of a package, but for its binding. `fused`: of each plan, the fused kernels that are wanted."""
    templates = templates_dir()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([templates / "cpu", templates / "cuda"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def text(template: str, plan: object) -> str:
        return environment.get_template(template).render(plan=plan)

    files = list(_headers(templates, cuda=cuda))
    units: list[Unit] = []
    device_units: list[DeviceUnit] = []

    def unit(path: str, isa: str, content: str, shared: bool = False) -> None:
        files.append(File(path, content))
        units.append(Unit(path, isa, shared))

    for isa in ISAS:
        for scalar in SCALARS:
            plan = UnitText(isa, scalar, ())
            unit(f"src/core_{isa}_{scalar.suffix}.cpp", isa, text("core.cpp.j2", plan), shared=True)
    unit("src/core.cpp", "generic", text("core_dispatch.cpp.j2", UnitText("generic", SCALARS[0], ())), shared=True)
    for kernel in plans:
        cell = cell_text(kernel)
        files.append(File(f"src/{cell.name}_tables.h", text("tables.h.j2", cell)))
        files.append(File(f"src/{cell.name}.h", text("cell.h.j2", cell)))
        unit(f"src/{cell.name}.cpp", "generic", text("cell_dispatch.cpp.j2", cell))
        for isa in ISAS:
            for scalar in SCALARS:
                plan = UnitText(isa, scalar, (cell,))
                unit(f"src/{cell.name}_{isa}_{scalar.suffix}.cpp", isa, text("cell.cpp.j2", plan))
        if cuda:
            files.append(File(f"src/{cell.name}_device.cuh", text("device.cuh.j2", cell)))
            unit(f"src/{cell.name}_cuda.cpp", "binding", text("cell_cuda.cpp.j2", cell))
            for scalar in DEVICE_SCALARS:
                name = f"{cell.name}_{scalar.suffix}"
                files.append(File(f"src/{name}.cu", text("kernels.cu.j2", KernelsText(scalar, cell))))
                device_units.append(DeviceUnit(f"src/{name}.cu", name))
    for kernel, wanted in zip(plans, fused, strict=False):
        fused_files = _fused_files(kernel, wanted, text)
        files += fused_files
        device_units += [
            DeviceUnit(file.path, Path(file.path).stem, clusters=True)
            for file in fused_files
            if file.path.endswith(".cu")
        ]
    lines = [line for wanted in fused for kernels in wanted for line in index_lines(kernels)]
    if lines:
        files.append(File(INDEX, "".join(f"{line}\n" for line in lines)))
    return Bundle(tuple(files), tuple(units), (INCLUDE,), tuple(device_units))


def _fused_files(
    plan: KernelPlan, wanted: Sequence[FusedKernels], text: Callable[[str, object], str]
) -> Sequence[File]:
    """The steps of a cell, and a file for each of its fused kernels, which several sizes may have in common."""
    steps = f"{plan.cell.lower()}_steps.cuh"
    found: dict[str, FusedKernelText] = {}
    for kernels in wanted:
        scalar = next(scalar.name for scalar in DEVICE_SCALARS if scalar.suffix == kernels.dtype)
        found |= {kernel.symbol: kernel for kernel in kernel_texts(plan, kernels, scalar, steps)}
    if not found:
        return ()
    return (
        File(f"src/{steps}", text("step.cuh.j2", steps_text(plan))),
        *(File(f"src/{symbol}.cu", text("fused.cu.j2", kernel)) for symbol, kernel in found.items()),
    )


def _headers(templates: Path, *, cuda: bool) -> Sequence[File]:
    include = templates / "include"
    found = sorted((include / "rnncc").glob("*.h"))
    if cuda:
        found += sorted((include / "rnncc" / "cuda").rglob("*.*h"))
    return [
        File(f"{INCLUDE}/{path.relative_to(include).as_posix()}", path.read_text(encoding="utf-8")) for path in found
    ]
