"""rnncc/cpu/pairs.h: products of factors rounded to bfloat16, against float64 products of what torch rounds: by the
processor's matrix unit, and by code that stands for it."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
import pytest
import torch

from rnncc.ir.target import INSTRUCTION_SETS
from tests.cpu.host import Array, build, call

EMULATED = [f"emulated {level}" for level in sorted(INSTRUCTION_SETS)]
# Around a tile (16 rows and columns, 32 terms), two of them, a panel, and the terms that are rounded at a time (512).
SHAPES = [
    (1, 1, 1),
    (1, 300, 70),
    (7, 16, 32),
    (16, 64, 128),
    (17, 65, 33),
    (32, 48, 64),
    (33, 130, 512),
    (50, 17, 513),
    (97, 200, 1100),
]


@pytest.fixture(scope="module", params=["processor", *EMULATED])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """tests/cpu/pairs_host.cpp for the processor's own unit, or emulated at one level."""
    kind, _, level = request.param.partition(" ")
    flags = ["-DRNNCC_EMULATE_AMX"] if level else ["-O2"]
    built = build("pairs_host.cpp", level or "v4", tmp_path_factory.mktemp(kind), *flags)
    if not call(built, "ready", restype=ctypes.c_bool):
        pytest.skip("this processor has no matrix unit for bfloat16")
    return built


def _data(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _rounded(array: Array) -> Array:
    return torch.from_numpy(array.copy()).bfloat16().double().numpy()


def _relative(got: Array, exact: Array) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact))


def _packed(library: ctypes.CDLL, weight: Array, piece: int, by_output: bool) -> Array:
    """weight [n, k] in panels, some columns at a time, from the last to the first; the memory starts poisoned."""
    n, k = weight.shape
    packed = np.full(call(library, "elements", n, k, restype=ctypes.c_int64), np.nan, np.float32)
    source = weight if by_output else np.ascontiguousarray(weight.T)
    for begin in reversed(range(0, n, piece)):
        rest = source.ravel()[begin * (k if by_output else 1) :]
        call(library, "pack", packed, n, k, rest, k if by_output else n, begin, min(piece, n - begin), by_output)
    return packed


@pytest.mark.parametrize("shape", SHAPES)
def test_product(library: ctypes.CDLL, shape: tuple[int, int, int]) -> None:
    """Right with a bias, with what was there before and without; nothing is written beside."""
    m, n, k = shape
    a, weight, bias = _data(m, k + 3), _data(n, k, seed=1), _data(n, seed=2)
    a[:, k:] = np.nan
    packed, panels = _packed(library, weight, n, True), call(library, "panels", n, restype=ctypes.c_int64)
    exact = _rounded(a[:, :k]) @ _rounded(weight).T
    for added, before in ((None, None), (bias, None), (None, 7.0), (bias, 7.0)):
        c = np.full((m, n + 5), np.nan if before is None else before, np.float32)
        c[:, n:] = 9
        call(library, "multiply", c, n + 5, a, k + 3, packed, n, k, 0, m, 0, panels, added, before is not None)
        wanted = exact + (0 if added is None else added) + (before or 0)
        assert _relative(c[:, :n], wanted) <= 40 * np.finfo(np.float32).eps
        np.testing.assert_array_equal(c[:, n:], 9)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_division_gives_the_same_bits(library: ctypes.CDLL, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, packed = _data(m, k), _packed(library, _data(n, k, seed=1), n, True)
    panels = call(library, "panels", n, restype=ctypes.c_int64)

    def product(rows: list[int], columns: list[int]) -> Array:
        c = np.full((m, n), np.nan, np.float32)
        for r0, r1 in pairwise(rows):
            for p0, p1 in pairwise(columns):
                call(library, "multiply", c, n, a, k, packed, n, k, r0, r1, p0, p1, None, False)
        return c

    whole = product([0, m], [0, panels])
    assert np.all(np.isfinite(whole))
    np.testing.assert_array_equal(product(list(range(m + 1)), [0, panels]), whole)
    np.testing.assert_array_equal(product([0, m], list(range(panels + 1))), whole)
    np.testing.assert_array_equal(product([0, m // 3, m], [0, panels // 2, panels]), whole)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 32), (33, 130, 512), (50, 17, 640), (97, 200, 1088)])
def test_rows_of_bfloat16_numbers_are_multiplied_where_they_lie(library: ctypes.CDLL, m: int, n: int, k: int) -> None:
    """With the bits of the same numbers as floats."""
    a, weight, bias = _rounded(_data(m, k + 8)).astype(np.float32), _data(n, k, seed=1), _data(n, seed=2)
    lying = np.ascontiguousarray(a.view(np.uint32) >> 16).astype(np.uint16)
    packed, panels = _packed(library, weight, n, True), call(library, "panels", n, restype=ctypes.c_int64)
    for added in (None, bias):
        expected, c = np.full((m, n), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
        call(library, "multiply", expected, n, a, k + 8, packed, n, k, 0, m, 0, panels, added, False)
        for first, last in ((0, panels // 2), (panels // 2, panels)):
            call(library, "multiply_as_they_lie", c, n, lying, k + 8, packed, n, k, m, first, last, added)
        assert np.all(np.isfinite(c))
        np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("m", [3, 16, 40])
def test_shapes_are_kept_from_product_to_product_and_then_released(library: ctypes.CDLL, m: int) -> None:
    k, widths = 70, (33, 130)
    a = _data(m, k)
    weights = [_data(n, k, seed=n) for n in widths]
    packed = [_packed(library, weight, n, True) for weight, n in zip(weights, widths, strict=True)]
    sums = [np.full((m, n), np.nan, np.float32) for n in widths]
    assert call(
        library, "multiply_twice", sums[0], a, packed[0], widths[0], k, m, sums[1], packed[1], widths[1],
        restype=ctypes.c_bool,
    )  # fmt: skip
    for found, weight in zip(sums, weights, strict=True):
        assert _relative(found, _rounded(a) @ _rounded(weight).T) <= 40 * np.finfo(np.float32).eps


@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 5), (64, 64), (100, 33), (257, 70)])
def test_packing_is_the_same_from_either_layout_and_in_pieces(library: ctypes.CDLL, n: int, k: int) -> None:
    weight = _data(n, k)
    whole = _packed(library, weight, n, True).view(np.uint32)
    for by_output in (True, False):
        for piece in (n, 7, 16):
            np.testing.assert_array_equal(_packed(library, weight, piece, by_output).view(np.uint32), whole)


def test_numbers_that_are_not_finite_stay_what_they_are(library: ctypes.CDLL) -> None:
    """Infinity and NaN come through a product, and 3.4e38 is rounded to infinity, as torch rounds it."""
    special = np.array([np.inf, -np.inf, np.nan, 3.4e38, 1.0], np.float32)
    a, weight = np.zeros((5, 40), np.float32), np.ones((3, 40), np.float32)
    a[:, 1] = special
    c = np.zeros((5, 3), np.float32)
    call(library, "multiply", c, 3, a, 40, _packed(library, weight, 3, True), 3, 40, 0, 5, 0, 1, None, False)
    np.testing.assert_array_equal(c, np.repeat(_rounded(special)[:, None], 3, 1))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 5, 3), (64, 40, 300), (130, 70, 257), (50, 64, 1100)])
def test_gradient_of_a_weight(library: ctypes.CDLL, m: int, n: int, k: int) -> None:
    a, x = _data(k, m + 1), _data(k, n + 2, seed=1)
    scratch = np.full(call(library, "scratch_elements", n, restype=ctypes.c_int64), np.nan, np.float32)
    exact = _rounded(a[:, :m]).T @ _rounded(x[:, :n])

    def product(rows: list[int], before: float | None) -> Array:
        c = np.full((m, n + 3), np.nan if before is None else before, np.float32)
        c[:, n:] = 9
        for r0, r1 in pairwise(rows):
            call(library, "outer", c, n + 3, a, m + 1, x, n + 2, n, k, r0, r1, before is not None, scratch)
        np.testing.assert_array_equal(c[:, n:], 9)
        return c[:, :n]

    for before in (None, 7.0):
        whole = product([0, m], before)
        assert _relative(whole, exact + (before or 0)) <= 40 * np.finfo(np.float32).eps
        np.testing.assert_array_equal(product([0, m // 2, m], before), whole)
