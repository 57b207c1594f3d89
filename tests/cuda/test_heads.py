"""Products of heads over many rows (templates/include/rnncc/cuda/heads.h): whatever is dealt out and copied, the sums
over all rows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.cpu.host import build, call


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build("../cuda/heads.cpp", "generic", tmp_path_factory.mktemp("heads"))


@pytest.mark.parametrize("rows", [5, 1023, 1024, 1039])
@pytest.mark.parametrize(
    ("blocks", "units", "depth", "a_gap", "b_gap"),
    [(3, 4, 4, 36, 0), (2, 8, 5, 0, 3), (40, 2, 2, 7, 0), (3, 4, 4, 0, 0)],
)
def test_every_row_counts_once(
    library: ctypes.CDLL, rows: int, blocks: int, units: int, depth: int, a_gap: int, b_gap: int
) -> None:
    """Few rows and many, also such as no equal parts have; few blocks and many; rows with gaps, results with gaps."""
    random = np.random.default_rng(0)
    a = random.standard_normal((rows, blocks * units + a_gap)).astype(np.float32)
    b = random.standard_normal((rows, blocks * depth + b_gap)).astype(np.float32)
    out = np.full((blocks, units, depth + 2), 7, np.float32)
    failed = call(
        library, "heads", out, depth + 2, a, a.shape[1], b, b.shape[1], blocks, units, depth, rows, restype=ctypes.c_int
    )
    assert failed == 0
    left = a[:, : blocks * units].astype(np.float64).reshape(rows, blocks, units)
    right = b[:, : blocks * depth].astype(np.float64).reshape(rows, blocks, depth)
    np.testing.assert_allclose(out[..., :depth], np.einsum("rbu,rbd->bud", left, right), rtol=0, atol=2e-4)
    assert (out[..., depth:] == 7).all()
