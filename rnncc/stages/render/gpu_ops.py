"""The ops of a package that take tensors of GPUs alone. They are the same for every cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rnncc.ir.compilation import CompiledCell
from rnncc.ir.request import Request
from rnncc.stages.render.python.functions import norms_heads


@dataclass(frozen=True, slots=True)
class GpuOps:
    """Ops that a package has together or not at all. templates/cuda/<unit>.cu.j2 has their kernels, and
    <unit>_host.cpp.j2 launches these."""

    unit: str
    names: tuple[str, ...]


CORE = GpuOps("core", ("permute_rows",))
HEAD_NORM = GpuOps("head_norm", ("head_norm", "head_norm_backward"))


# All of them.
GPU_OPS = (CORE, HEAD_NORM)


def gpu_ops(request: Request, cells: Sequence[CompiledCell]) -> Iterator[GpuOps]:
    """The ops that a package's layers call."""
    if request.is_for_gpus:
        yield CORE
        if any(norms_heads(compiled.cell) for compiled in cells):
            yield HEAD_NORM
