"""Kernels that give each head of a batch entry to a CTA, thread by thread on a CPU. They need no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.analysis.by_head import HEAD_TILES
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from tests.cuda.kernels import plan
from tests.emulated.by_head import HeadCase, build
from tests.emulated.fused import DTYPES
from tests.emulated.test_fused import BOUNDS
from tests.numeric.compare import Problem
from tests.numeric.loops import loops_of

# Sums along rows and columns, two matrices, a state beside the matrix, a largest element, sums of all elements.
CELLS = ("gateddeltanet", "titans", "mlstm", "gsa", "rwkv7", "ttt_linear")
# Heads of gsa have 64 columns, which the smallest tile has no room for.
CASES = [(cell, tile) for cell in CELLS for tile in range(cell == "gsa", len(HEAD_TILES))]


@pytest.mark.always(cell=("gateddeltanet",), tile=(0,), dtype=("f32",))
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("cell", "tile"), CASES)
def test_loops_equal_the_interpreter(cell: str, tile: int, dtype: str, tmp_path: Path) -> None:
    """Forward and backward, plain and masked, two heads whose matrices fill no tile."""
    kernels = build(plan(cell), HEAD_TILES[tile], dtype, tmp_path)
    for loop in loops_of(compile_cells(read_request(cell), "partition").cells[0].cell):
        if f"{loop.name}_forward" in kernels:
            problem = Problem(steps=4, batch=2, sizes={"I": 3, "H": 14}, heads=2, dtype=DTYPES[dtype])
            errors = HeadCase(loop, problem, kernels, seed=2).measured()
            assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}
