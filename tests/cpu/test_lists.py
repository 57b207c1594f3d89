"""rnncc/cpu/lists.h against float64 products: every width of vectors, ragged lists, and nothing written outside."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.cpu.host import Array, Floating, call, suffix

DTYPES: list[Floating] = [np.float32, np.float64]


def _lists(matrix: Array) -> tuple[Array, Array, Array]:
    """begin [units + 1], rows and values of the elements that are not zero."""
    begin = np.concatenate([[0], np.cumsum((matrix != 0).sum(1))]).astype(np.int64)
    return begin, np.nonzero(matrix)[1].astype(np.uint16), matrix[matrix != 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("units", "k"), [(1, 1), (5, 3), (16, 40), (37, 130), (70, 65)])
def test_lists(library: ctypes.CDLL, units: int, k: int, accumulate: bool, dtype: Floating) -> None:
    """Sums of two terms, for every number of entries. Rows of no elements, of all, and of any number of them."""
    random = np.random.default_rng(0)
    like = np.zeros(1, dtype)
    most = int(call(library, f"list_entries_{suffix(like)}", restype=ctypes.c_int64))
    matrix = random.standard_normal((units + 1, k)) * (random.random((units + 1, k)) < random.random((units + 1, 1)))
    matrix[::7], matrix[3::7] = 0, 1.5
    matrix = matrix.astype(dtype)
    begin, rows, values = _lists(matrix)
    first = units // 3
    both = (matrix[:-1] + matrix[1:])[first:].astype(np.float64)
    for entries in range(1, most + 1):
        a = random.standard_normal((entries, k + 2)).astype(dtype)
        a[:, k:] = np.nan
        width = int(call(library, f"spread_width_{suffix(like)}", like, entries, restype=ctypes.c_int64))
        assert entries <= width <= most
        room = np.full(k * width + 1, np.nan, dtype)
        c = np.full((entries + 1, units + 3), 7, dtype)
        c[:, units - first :] = 9
        call(
            library, f"lists_{suffix(like)}", c, units + 3, a, k + 2, entries, begin, rows, values, k, first, units,
            accumulate, room,
        )  # fmt: skip
        exact = a[:, :k].astype(np.float64) @ both.T + (7 if accumulate else 0)
        assert np.abs(c[:-1, : units - first] - exact).max() <= 200 * np.finfo(dtype).eps * max(1, np.abs(exact).max())
        np.testing.assert_array_equal(c[:, units - first :], 9)
        np.testing.assert_array_equal(c[-1, : units - first], 7)
        assert np.isnan(room[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_which_lanes_are_not_zero(library: ctypes.CDLL, dtype: Floating) -> None:
    x = np.array([0.0, 1e-44 if dtype is np.float32 else 5e-324, -0.0, np.nan], dtype)
    lanes = 16 // x.itemsize
    name = f"nonzero_bits_{suffix(x)}"
    assert call(library, name, x, lanes, restype=ctypes.c_uint32) == 0b1010 & ((1 << lanes) - 1)
    assert call(library, name, x[2:], 2, restype=ctypes.c_uint32) == 0b10
    assert call(library, name, x, 1, restype=ctypes.c_uint32) == 0
