"""`render`: the files of a package.

Input: the cells as the stages before left them, and the request, which says what kernels are wanted. Output: the
package's own files (its Python, and the registration of its ops), and the Bundle of its kernels.

    python/   `__init__.py`, `_reference.py`, and a module for each cell
    cpp/      the ops' registration; tables of each cell's loops, their functions for a CPU, and a unit for each
              instruction set and compute type
    cuda/     for each cell a unit of the host side; a header of device code and a file of kernels for each dtype, both
              for its loops with products and for those without; and files of fused kernels, where there are any

The headers in templates/include are copied as they are.
Fails with: InternalError only.

The name of a cell's file is the cell's name in lower case and an ending. No ending is empty or the end of another, so
the files of two cells never have the same name, whatever the cells' names (`A`, `A_CUDA`). Other files begin with `_`
or have no such ending.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnncc.ir.artifact import Bundle, File
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.request import Request
from rnncc.machine.paths import templates_dir
from rnncc.stages.render.cpp import cpu_kernels
from rnncc.stages.render.cpp.binding import binding_file
from rnncc.stages.render.cuda import gpu_kernels, shared_gpu_kernels
from rnncc.stages.render.python import python_files

__all__ = ["kernels", "render", "shared_kernels"]

INCLUDE = "src/include"


def render(request: Request, cells: Sequence[CompiledCell]) -> tuple[tuple[File, ...], Bundle]:
    """The package's own files, and its kernels. All paths are relative to the package."""
    return (*python_files(request, cells), *binding_file(request, cells)), kernels(request, cells)


def kernels(request: Request, cells: Sequence[CompiledCell]) -> Bundle:
    """The kernels that the request asks for, of these cells and of every package. If it asks for none, the bundle is
    empty."""
    return _together(cpu_kernels(request, cells), gpu_kernels(request, cells))


def shared_kernels(request: Request) -> Bundle:
    """The kernels that are the same for every cell, of all packages for these processors and kinds of devices."""
    return _together(cpu_kernels(request, ()), shared_gpu_kernels() if request.is_for_gpus else Bundle((), (), ()))


def _together(on_cpu: Bundle, on_gpu: Bundle) -> Bundle:
    files = (*_headers(on_cpu, on_gpu), *on_cpu.files, *on_gpu.files)
    return Bundle(files, on_cpu.units + on_gpu.units, (INCLUDE,), on_gpu.device_units)


def _headers(on_cpu: Bundle, on_gpu: Bundle) -> Iterator[File]:
    """The headers that these files include."""
    include = templates_dir() / "include"
    folders: tuple[str, ...] = ("core", "cpu", "torch") if on_cpu.files or on_gpu.files else ()
    if on_gpu.files:
        folders += ("cuda",)
    for folder in folders:
        for path in sorted((include / "rnncc" / folder).rglob("*.*h")):
            yield File(f"{INCLUDE}/{path.relative_to(include).as_posix()}", path.read_text(encoding="utf-8"))
