"""Products of heads over many rows (templates/include/rnncc/cuda/heads.h) are the sums over all rows, however
the rows are dealt out and copied."""

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
    ("heads", "head_dim", "depth", "a_gap", "b_gap"),
    [(3, 4, 4, 36, 0), (2, 8, 5, 0, 3), (40, 2, 2, 7, 0), (3, 4, 4, 0, 0)],
)
def test_every_row_counts_once(
    library: ctypes.CDLL, rows: int, heads: int, head_dim: int, depth: int, a_gap: int, b_gap: int
) -> None:
    """Few rows and many, also such as no equal parts have; few heads and many; rows with gaps, results with gaps."""
    random = np.random.default_rng(0)
    a = random.standard_normal((rows, heads * head_dim + a_gap)).astype(np.float32)
    b = random.standard_normal((rows, heads * depth + b_gap)).astype(np.float32)
    out = np.full((heads, head_dim, depth + 2), 7, np.float32)
    sizes = (heads, head_dim, depth, rows)
    failed = call(library, "sums_of_heads", out, depth + 2, a, a.shape[1], b, b.shape[1], *sizes, restype=ctypes.c_int)
    assert failed == 0
    left = a[:, : heads * head_dim].astype(np.float64).reshape(rows, heads, head_dim)
    right = b[:, : heads * depth].astype(np.float64).reshape(rows, heads, depth)
    np.testing.assert_allclose(out[..., :depth], np.einsum("rbu,rbd->bud", left, right), rtol=0, atol=2e-4)
    assert (out[..., depth:] == 7).all()
