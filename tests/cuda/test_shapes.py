"""Truth of fused kernels in many shapes, most of which `schedule` chooses at no size that other tests have: nvcc 13.0
compiled some of them wrongly."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rnncc
from rnncc.ir.family import FUSED, SCATTER, Scope
from rnncc.ir.layout import FusedKernels, KernelLayout, from_batch
from rnncc.ir.lowered import fused_programs
from rnncc.machine.paths import locate
from rnncc.runtime.kernels.index import read_index
from tests.cuda.harness import DTYPES, assert_true, draw, kernels_of
from tests.cuda.kernels import plan
from tests.cuda.shapes import TARGET, TILES, compiled, shapes, varied

HEAD_DIMS = (64, 96, 128)
EACH = 9  # shapes of a family
# By the beginning of its shape: what nvcc 13.0 made of blocks of 16 units and two row warps wrote past its memory.
ONCE_WRONG = {(SCATTER, 128): (8, 16, 2)}
# Groups of 8 batch entries in clusters of every size, the last one of 3; and more steps than are read ahead.
HEADS, BATCH, STEPS = 3, 347, 19


def chosen(cell: str, way: str, head_dim: int) -> list[tuple[str, KernelLayout]]:
    """Programs and kernels, those of larger clusters first: they take no fewer passes."""
    program, loop = next(found for found in fused_programs(plan(cell)) if found[0] == f"{cell}_0_{way}")
    kernels = [
        kernel
        for family in TILES
        for kernel in varied(shapes(loop, family, head_dim), EACH, ONCE_WRONG.get((family, head_dim), ()))
    ]
    return [(program, kernel) for kernel in sorted(kernels, key=lambda kernel: -kernel.ctas)]


def pairs_of(cell: str, head_dim: int) -> Iterator[FusedKernels]:
    """A kernel forward and one backward. Those that a package gets last run."""
    for kernels in zip(chosen(cell, "forward", head_dim), chosen(cell, "backward", head_dim), strict=True):
        tables = tuple((program, from_batch(kernel)) for program, kernel in kernels)
        yield FusedKernels(head_dim, 1, "bf16", TARGET.architecture, tables)


def test_there_are_shapes_for_every_family_of_clusters() -> None:
    assert set(TILES) == {family for family in FUSED if family.scope is Scope.CLUSTER}


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_shapes_differ(way: str) -> None:
    kernels = [kernel for _, kernel in chosen("lstm", way, 128)]
    assert len({(kernel.family, kernel.shape) for kernel in kernels}) == len(kernels) == len(TILES) * EACH
    tiles = [dict(kernel.tiles) for kernel in kernels if kernel.family is SCATTER]
    assert {1, 2, 4, 8, 16} == {found["ctas"] for found in tiles} == {kernel.ctas for kernel in kernels}
    assert {2, 4, 8} <= {found["row_warps"] for found in tiles} and {1, 2} <= {found["k_warps"] for found in tiles}
    assert any(found["unit_tile"] == 24 for found in tiles)
    assert any(kernel.shape[:3] == (8, 16, 2) for kernel in kernels)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_shape(cell: str, head_dim: int, tmp_path: Path) -> None:
    wanted = list(pairs_of(cell, head_dim))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        folders = list(pool.map(lambda i: compiled(plan(cell), wanted[i], tmp_path / str(i)), range(len(wanted))))
    # A package of its own: what is added to its library stays there.
    module = rnncc.compile(locate(cell).read_text(encoding="utf-8"), f"{cell}_shapes")
    library = importlib.import_module(f"{module.__name__}._runtime.kernels.fused").STATE.library
    call = draw(module, cell, head_dim, HEADS, BATCH, STEPS, DTYPES["bf16"])
    for folder in folders:
        assert library.rnncc_add_kernels(str(folder).encode()) == 2
        names = {kernel.name for table in read_index(folder / "fused.txt") for kernel in table.kernels}
        used = kernels_of(call.run)
        assert names == {name for name in used if f"_bf16_{head_dim}_" in name}
        assert_true(call, DTYPES["bf16"])
