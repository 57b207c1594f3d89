"""Fused kernels in shapes that `schedule` may not choose: those of a size, some of them, their cubins."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path

from rnncc.constrint import Infeasible
from rnncc.ir.family import GATHER, SCATTER, Family
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import FusedKernels, KernelLayout, from_batch
from rnncc.ir.lowered import LoweredCell, fused_programs
from rnncc.ir.problem import INDEX_DTYPES, Problem
from rnncc.ir.target import GPUS
from rnncc.stages.build.nvrtc import find_nvrtc
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.families import MODELS
from rnncc.stages.schedule.stepwise import stepwise, stepwise_takes
from tests.cuda.sources import write_files
from tests.rendering import at_first_use

TARGET = GPUS["h200"]
# The tile sizes that are tried, for each family of clusters.
TILES = {
    GATHER: {"ctas": (1, 2, 4, 8, 16), "k_warps": (1, 2, 4, 8), "unit_tile": (8, 16, 32)},
    SCATTER: {"ctas": (1, 2, 4, 8, 16), "row_warps": (1, 2, 3, 4, 6, 8, 16), "k_warps": (1, 2, 4)},
}


def shapes(loop: FusedLoop, family: Family, head_dim: int) -> Iterator[KernelLayout]:
    """In bfloat16, a kernel for all of TILES that can be, the others being the quickest there."""
    problem, known = Problem(head_dim, 1, "bf16"), cost_of(loop, "bf16")
    for sizes in product(*TILES[family].values()):
        layout_model = MODELS[family](known, problem, TARGET)
        for name, size in zip(TILES[family], sizes, strict=True):
            tile = layout_model.tiles[name]
            assert not isinstance(tile, int)
            layout_model.model.require(tile == size, because="given: by the test")
        with suppress(Infeasible):
            yield layout_model.scheduled(layout_model.best(problem.batch), problem, TARGET)


def varied(found: Iterable[KernelLayout], count: int, also: tuple[int, ...] = ()) -> list[KernelLayout]:
    """Some kernels, each with as many pairs of template arguments as can be that those before it have not; before them
    those whose shape begins with `also`."""

    def pairs(kernel: KernelLayout) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(kernel.shape), 2))

    left = list(found)
    chosen = [kernel for kernel in left if also and kernel.shape[: len(also)] == also]
    seen = {pair for kernel in chosen for pair in pairs(kernel)}
    while len(chosen) < count:
        chosen.append(max((kernel for kernel in left if kernel not in chosen), key=lambda k: len(pairs(k) - seen)))
        seen |= pairs(chosen[-1])
    return chosen


def stepwise_kernels(plan: LoweredCell, head_dim: int, dtype: str, fewest: int = 1) -> FusedKernels:
    """The kernels of all programs that can run by one launch per step, for so many batch entries and more."""
    problem = Problem(head_dim, 1, dtype)
    made = tuple(
        (program, from_batch(stepwise(cost_of(loop, dtype), problem, TARGET), fewest))
        for program, loop in fused_programs(plan)
        if stepwise_takes(loop, problem)
    )
    return FusedKernels(head_dim, 1, INDEX_DTYPES[dtype], TARGET.architecture, made)


def compiled(plan: LoweredCell, kernels: FusedKernels, folder: Path) -> Path:
    """Compiles kernels in a folder; gives the one with the cubins and their index, as a library adds it. Raises
    CalledProcessError where NVRTC fails."""
    nvrtc = find_nvrtc((TARGET.architecture,), required=True)
    assert nvrtc is not None
    bundle = at_first_use(plan, [kernels])
    write_files(bundle.files, folder)
    (folder / "cuda").mkdir(exist_ok=True)
    for unit in bundle.device_units:
        command = nvrtc.command(unit, TARGET.architecture, bundle.include)
        subprocess.run(command.arguments, cwd=folder, check=True)
    return folder / "cuda"
