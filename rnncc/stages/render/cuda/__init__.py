"""The CUDA of a package: kernels of all sizes and their host side, and fused kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rnncc.ir.artifact import Bundle, DeviceUnit, File, Unit
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.request import Request
from rnncc.stages.render.cuda.device import alternating_files
from rnncc.stages.render.cuda.fused import fused_architectures, fused_files
from rnncc.stages.render.cuda.host import host_text
from rnncc.stages.render.cuda.scalars import HALVES, SCALARS, DeviceScalar
from rnncc.stages.render.cuda.scan import scan_files
from rnncc.stages.render.gpu_ops import GPU_OPS, GpuOps, gpu_ops
from rnncc.stages.render.templates import text


def gpu_kernels(request: Request, cells: Sequence[CompiledCell]) -> Bundle:
    """Returns the files that a package for GPUs has besides. Its kernels that take all sizes belong to a cell, or to an
    op that is the same for every cell. Both kinds have a source file of the host side, and files of kernels. Fused
    kernels are added to them, where there are any."""
    shared = shared_gpu_kernels(tuple(gpu_ops(request, cells))) if request.is_for_gpus else Bundle((), (), ())
    hosts = [_host(f"{cell.plan.cell.lower()}_cuda", host_text(cell)) for cell in cells if request.is_for_gpus]
    own = tuple(_kernels(cells)) if request.is_for_gpus else ()
    with_fused = [cell for cell in cells if cell.fused]
    fused = tuple(fused_files(with_fused))
    device_units = (*_device_units(own, {}), *_device_units(fused, fused_architectures(with_fused)))
    files = (*shared.files, *(file for file, _ in hosts), *own, *fused)
    units = (*shared.units, *(unit for _, unit in hosts))
    return Bundle(files, units, (), (*shared.device_units, *device_units))


def shared_gpu_kernels(ops: Sequence[GpuOps] = GPU_OPS) -> Bundle:
    """Those that are the same for every cell: of ops, and of packages that call these ops."""
    hosts = [_host(f"_{each.unit}_cuda", text(f"cuda/{each.unit}_host.cpp.j2"), shared=True) for each in ops]
    hosts.append(_host("_loops_cuda", text("cuda/loops_host.cpp.j2"), shared=True))
    kernels = (
        *(File(f"src/_{each.unit}.cu", text(f"cuda/{each.unit}.cu.j2")) for each in ops),
        *_by_dtype("heads", HALVES),
        *_by_dtype("small", SCALARS),
    )
    device_units = tuple(replace(unit, shared=True) for unit in _device_units(kernels, {}))
    return Bundle((*(file for file, _ in hosts), *kernels), tuple(unit for _, unit in hosts), (), device_units)


def _host(name: str, content: str, shared: bool = False) -> tuple[File, Unit]:
    path = f"src/{name}.cpp"
    return File(path, content), Unit(path, "binding", shared)


def _by_dtype(name: str, scalars: Sequence[DeviceScalar]) -> Iterator[File]:
    for scalar in scalars:
        yield File(f"src/_{name}_{scalar.suffix}.cu", text(f"cuda/{name}.cu.j2", scalar=scalar))


def _kernels(cells: Sequence[CompiledCell]) -> Iterator[File]:
    for cell in cells:
        yield from alternating_files(cell.plan)
        yield from scan_files(cell)


def _device_units(files: tuple[File, ...], architectures: Mapping[str, tuple[str, ...]]) -> Iterator[DeviceUnit]:
    """`architectures`: of those units, by name, that are for some architectures alone."""
    for file in files:
        if file.path.endswith(".cu"):
            name = Path(file.path).stem
            yield DeviceUnit(file.path, name, architectures.get(name, ()))
