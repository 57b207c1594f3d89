"""Kernels compile as planned: registers, spills, instructions. Needs nvcc, no GPU; `make kernels` does all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.paths import shipped_cells
from rnncc.stages.build.nvcc import nvcc_release
from tests.cuda import kernels

pytestmark = pytest.mark.skipif(nvcc_release() is None, reason="no nvcc")

MAIN = ("lstm", "gru")


@pytest.mark.parametrize("case", kernels.cases(MAIN), ids=str)
def test_every_family_dtype_and_architecture(case: kernels.Case, tmp_path: Path) -> None:
    assert kernels.check(case, tmp_path) == ()


@pytest.mark.parametrize("cell", [path.stem for path in shipped_cells() if path.stem not in MAIN])
def test_every_cell_once_each_way(cell: str, tmp_path: Path) -> None:
    assert kernels.check(kernels.once(cell), tmp_path) == ()
