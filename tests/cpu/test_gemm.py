"""rnncc/cpu/gemm.h against float64 products: every shape class, strides, ranges, and nothing written outside."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
import pytest

from tests.cpu.host import Array, Floating, call, suffix

DTYPES: list[Floating] = [np.float32, np.float64]
# Around a register tile (6 rows), a vector, a panel (2 or 4 vectors), a row block (120) and a k block (256 or 128).
SHAPES = [
    (1, 1, 1),
    (1, 300, 70),
    (1, 512, 256),
    (2, 64, 129),
    (3, 17, 5),
    (4, 200, 50),
    (5, 33, 257),
    (7, 65, 300),
    (8, 130, 64),
    (13, 95, 31),
    (16, 512, 128),
    (121, 48, 20),
    (250, 100, 513),
]


def _call(library: ctypes.CDLL, name: str, like: Array, *arguments: Array | int | bool | None) -> int:
    return int(call(library, f"{name}_{suffix(like)}", *arguments, restype=ctypes.c_int64))


def _pack(library: ctypes.CDLL, weight: Array) -> Array:
    """weight [n, k] in panels; the buffer starts poisoned."""
    n, k = weight.shape
    packed = np.full(_call(library, "packed_elements", weight, n, k), np.nan, weight.dtype)
    _call(library, "pack_nk", weight, packed, n, k, weight, k, 0, n)
    return packed


def _data(dtype: Floating, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _bound(dtype: Floating) -> float:
    # Sequential sums of at most 257 terms of order one: far above any rounding, far below any wrong term.
    return 40 * float(np.finfo(dtype).eps)


def _relative(got: Array, exact: Array) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_gemm(library: ctypes.CDLL, shape: tuple[int, int, int], dtype: Floating, accumulate: bool) -> None:
    m, n, k = shape
    a, weight, bias = _data(dtype, m, k + 3), _data(dtype, n, k, seed=1), _data(dtype, n, seed=2)
    packed = _pack(library, weight)
    c = np.full((m, n + 5), 7 if accumulate else np.nan, dtype)
    c[:, n:] = 9
    panels = _call(library, "panel_count", a, n)
    _call(library, "gemm", a, c, n + 5, a, k + 3, packed, n, k, 0, m, 0, panels, bias, accumulate)
    exact = a[:, :k].astype(np.float64) @ weight.T.astype(np.float64) + bias + (7 if accumulate else 0)
    assert _relative(c[:, :n], exact) <= _bound(dtype)
    np.testing.assert_array_equal(c[:, n:], 9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 70), (2, 6, 129), (3, 17, 5), (4, 203, 512)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gemm_direct(library: ctypes.CDLL, shape: tuple[int, int, int], dtype: Floating, accumulate: bool) -> None:
    m, n, k = shape
    a, weight, bias = _data(dtype, m, k + 3), _data(dtype, n, k + 2, seed=1), _data(dtype, n, seed=2)
    a[:, k:] = weight[:, k:] = np.nan
    c = np.full((m, n + 5), 7 if accumulate else np.nan, dtype)
    c[:, n:] = 9
    _call(library, "gemm_direct", a, c, n + 5, a, k + 3, m, weight, k + 2, n, k, bias, accumulate)
    exact = a[:, :k].astype(np.float64) @ weight[:, :k].T.astype(np.float64) + bias + (7 if accumulate else 0)
    assert _relative(c[:, :n], exact) <= _bound(dtype)
    np.testing.assert_array_equal(c[:, n:], 9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 33, 101])
@pytest.mark.parametrize("k", [1, 13, 31, 257, 521])
def test_direct_and_packed_products_are_bitwise_equal(library: ctypes.CDLL, n: int, k: int, dtype: Floating) -> None:
    bias = _data(dtype, n, seed=2)
    for m in (1, 2, 3, 4):
        a, weight, before = _data(dtype, m, k), _data(dtype, n, k, seed=1), _data(dtype, m, n, seed=3)
        packed = _pack(library, weight)
        panels = _call(library, "panel_count", a, n)
        for added, accumulate in ((None, False), (bias, False), (None, True)):
            direct, whole = before.copy(), before.copy()
            _call(library, "gemm_direct", a, direct, n, a, k, m, weight, k, n, k, added, accumulate)
            _call(library, "gemm", a, whole, n, a, k, packed, n, k, 0, m, 0, panels, added, accumulate)
            np.testing.assert_array_equal(direct, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5, 70), (5, 64, 129), (16, 131, 513), (125, 17, 300)])
@pytest.mark.parametrize("by_output", [False, True])
def test_products_taken_once_have_the_bits_of_packed_ones(
    library: ctypes.CDLL, shape: tuple[int, int, int], dtype: Floating, by_output: bool
) -> None:
    m, n, k = shape
    a, weight, bias = _data(dtype, m, k), _data(dtype, n, k, seed=1), _data(dtype, n, seed=2)
    packed, panels = _pack(library, weight), _call(library, "panel_count", a, n)
    # B as it lies has columns after those that are read.
    factor = np.full((n, k + 2) if by_output else (k, n + 2), np.nan, dtype)
    factor[:, :-2] = weight if by_output else weight.T
    scratch = np.full(1 << 15, np.nan, dtype)
    for added, accumulate in ((None, False), (bias, False), (None, True)):
        once, whole = _data(dtype, m, n + 3, seed=3), _data(dtype, m, n + 3, seed=3)
        _call(
            library,
            "gemm_once",
            a,
            once,
            n + 3,
            a,
            k,
            m,
            factor,
            factor.shape[1],
            n,
            k,
            added,
            accumulate,
            scratch,
            by_output,
        )
        _call(library, "gemm", a, whole, n + 3, a, k, packed, n, k, 0, m, 0, panels, added, accumulate)
        np.testing.assert_array_equal(once, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 300, 70), (2, 64, 129), (23, 330, 300), (130, 95, 31)])
def test_every_division_gives_the_same_bits(library: ctypes.CDLL, shape: tuple[int, int, int], dtype: Floating) -> None:
    m, n, k = shape
    a, packed = _data(dtype, m, k), _pack(library, _data(dtype, n, k, seed=1))
    panels = _call(library, "panel_count", a, n)

    def product(rows: list[int], columns: list[int]) -> Array:
        c = np.full((m, n), np.nan, dtype)
        for r0, r1 in pairwise(rows):
            for p0, p1 in pairwise(columns):
                _call(library, "gemm", a, c, n, a, k, packed, n, k, r0, r1, p0, p1, None, False)
        return c

    whole = product([0, m], [0, panels])
    assert np.all(np.isfinite(whole))
    np.testing.assert_array_equal(product(list(range(m + 1)), [0, panels]), whole)
    np.testing.assert_array_equal(product([0, m], list(range(panels + 1))), whole)
    np.testing.assert_array_equal(product([0, m // 3, m], [0, panels // 2, panels]), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 5), (64, 64), (100, 33), (257, 70)])
def test_packing_is_the_same_from_either_layout_and_in_pieces(
    library: ctypes.CDLL, n: int, k: int, dtype: Floating
) -> None:
    weight = _data(dtype, n, k)
    whole = _pack(library, weight)
    assert np.all(np.isfinite(whole)), "padding is zero, every element written"
    transposed = np.ascontiguousarray(weight.T)
    for name, source, stride, step in (("pack_nk", weight, k, k), ("pack_kn", transposed, n, 1)):
        for piece in (n, 7, 16):
            packed = np.full_like(whole, np.nan)
            # Backwards, so that no piece leans on one before it.
            for begin in reversed(range(0, n, piece)):
                rest = source.ravel()[begin * step :]
                _call(library, name, weight, packed, n, k, rest, stride, begin, min(piece, n - begin))
            np.testing.assert_array_equal(packed, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 5, 3), (64, 40, 300), (130, 70, 257), (300, 64, 64)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gemm_tn(library: ctypes.CDLL, m: int, n: int, k: int, dtype: Floating, accumulate: bool) -> None:
    a, x = _data(dtype, k, m + 1), _data(dtype, k, n + 2, seed=1)
    scratch = np.full(_call(library, "gemm_tn_scratch_elements", a, n), np.nan, dtype)

    def product(rows: list[int]) -> Array:
        c = np.full((m, n + 3), 7 if accumulate else np.nan, dtype)
        c[:, n:] = 9
        for r0, r1 in pairwise(rows):
            _call(library, "gemm_tn", a, c, n + 3, a, m + 1, x, n + 2, n, k, r0, r1, accumulate, scratch)
        return c

    whole = product([0, m])
    exact = a[:, :m].astype(np.float64).T @ x[:, :n].astype(np.float64) + (7 if accumulate else 0)
    assert _relative(whole[:, :n], exact) <= _bound(dtype)
    np.testing.assert_array_equal(whole[:, n:], 9)
    np.testing.assert_array_equal(product([0, m // 2, m]), whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_terms(library: ctypes.CDLL, dtype: Floating) -> None:
    bias = _data(dtype, 5)
    c = np.full((3, 5), np.nan, dtype)
    panels = _call(library, "panel_count", c, 5)
    _call(library, "gemm", c, c, 5, bias, 0, np.empty(0, dtype), 5, 0, 0, 3, 0, panels, bias, False)
    np.testing.assert_array_equal(c, np.broadcast_to(bias, (3, 5)))
    scratch = np.full(_call(library, "gemm_tn_scratch_elements", c, 5), np.nan, dtype)
    _call(library, "gemm_tn", c, c, 5, bias, 3, bias, 5, 5, 0, 0, 3, False, scratch)
    np.testing.assert_array_equal(c, 0)


def test_long_sums_are_blocked(library: ctypes.CDLL) -> None:
    """A weight gradient over 200 000 steps keeps float32's accuracy; one running sum would not."""
    k = 200_000
    a = np.random.default_rng(0).uniform(0.5, 1.5, (k, 1)).astype(np.float32)
    x = np.random.default_rng(1).uniform(0.5, 1.5, (k, 1)).astype(np.float32)
    c = np.full((1, 1), np.nan, np.float32)
    scratch = np.empty(_call(library, "gemm_tn_scratch_elements", c, 1), np.float32)
    _call(library, "gemm_tn", c, c, 1, a, 1, x, 1, 1, k, 0, 1, False, scratch)
    exact = float(a[:, 0].astype(np.float64) @ x[:, 0].astype(np.float64))
    assert abs(float(c[0, 0]) - exact) / exact <= 1e-5
