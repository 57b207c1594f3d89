"""Products of a few rows or terms that one launch makes (templates/include/rnncc/cuda/small_products.cuh), beside those
of torch in float64. The kernel runs here thread by thread."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.emulated.compiled import library_of

ROWS, ACROSS, OUTER = range(3)
GUARD = 64
TYPES = {torch.float32: 0, torch.bfloat16: 2, torch.float16: 3}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).with_name("small_products.cpp")
    return ctypes.CDLL(str(library_of(source, tmp_path_factory.mktemp("small_products"))))


@dataclass(frozen=True, slots=True)
class Case:
    """out [m, n]. Rows of the operands and of out are that much longer. `shift`: elements that stand before a and b.
    `ones`: a has none of its own."""

    form: int
    m: int
    n: int
    k: int
    gaps: tuple[int, int, int] = (0, 0, 0)
    shift: int = 0
    ones: bool = False
    adds: bool = False
    biases: int = 0

    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of a and b."""
        a = (self.k, self.m) if self.form == OUTER else (self.m, self.k)
        return a, (self.n, self.k) if self.form == ROWS else (self.k, self.n)


class Product:
    """A case's memory, and what should come out."""

    def __init__(self, case: Case, dtype: torch.dtype, is_float: bool) -> None:
        self.case = case
        a, b = (self._drawn(shape, gap, dtype) for shape, gap in zip(case.shapes(), case.gaps, strict=False))
        self.a, self.b = torch.ones_like(a) if case.ones else a, b
        self.row = case.n + case.gaps[2]
        self.memory = torch.full((case.m * self.row + 2 * GUARD,), 512.0, dtype=torch.float32 if is_float else dtype)
        self.out = self.memory[GUARD : GUARD + case.m * self.row].view(case.m, self.row)[:, : case.n]
        x, y = self.a.double(), self.b.double()
        self.right = x.T @ y if case.form == OUTER else x @ (y.T if case.form == ROWS else y)
        if case.adds:
            self.right += 512
        self.biases = [torch.randn(case.n).to(dtype) for _ in range(case.biases)]
        for bias in self.biases:
            self.right += bias.double()

    def _drawn(self, shape: tuple[int, int], gap: int, dtype: torch.dtype) -> Tensor:
        """What lies around it is NaN."""
        rows, width = shape
        memory = torch.full((self.case.shift + rows * (width + gap) + 4,), torch.nan, dtype=dtype)
        own = memory[self.case.shift : self.case.shift + rows * (width + gap)].view(rows, width + gap)[:, :width]
        return own.copy_(torch.randn(shape).to(dtype))

    def numbers(self) -> tuple[int, ...]:
        case = self.case
        rows = (0 if case.ones else self.a.stride(0), self.b.stride(0), self.row)
        return case.form, case.m, case.n, case.k, *rows, self.memory.dtype == torch.float32, case.adds

    def places(self) -> tuple[int | None, ...]:
        a = None if self.case.ones else self.a.data_ptr()
        biases = [*(bias.data_ptr() for bias in self.biases), None, None][:2]
        return a, self.b.data_ptr(), self.out.data_ptr(), *biases

    def check(self, dtype: torch.dtype) -> None:
        """A sum of products of random signs is about the root of their number, and is rounded once."""
        eps = torch.finfo(self.memory.dtype).eps
        bound = eps * self.right.abs() + 2e-6 * (1 + self.case.k**0.5)
        assert ((self.out.double() - self.right).abs() <= bound).all()
        rest = self.memory.clone()
        rest[GUARD : GUARD + self.case.m * self.row].view(self.case.m, self.row)[:, : self.case.n] = 512
        assert (rest == 512).all(), "wrote beside the product"


def multiply(library: ctypes.CDLL, products: Sequence[Product], dtype: torch.dtype) -> int:
    """Runs them together. Returns the number of launches."""
    numbers = [int(number) for product in products for number in product.numbers()]
    places = [place for product in products for place in product.places()]
    library.small_products.restype = ctypes.c_int64
    return int(
        library.small_products(
            (ctypes.c_void_p * len(places))(*places), (ctypes.c_int64 * len(numbers))(*numbers),
            ctypes.c_int64(len(products)), ctypes.c_int32(TYPES[dtype]),
        )
    )  # fmt: skip


CASES = [
    *(Case(form, *sizes) for form in (ROWS, ACROSS, OUTER) for sizes in ((1, 32, 8), (4, 64, 36), (16, 33, 300))),
    *(Case(form, *sizes, gaps=(3, 1, 2)) for form in (ROWS, ACROSS, OUTER) for sizes in ((5, 7, 9), (18, 70, 41))),
    *(Case(form, 17, 40, 24, shift=1) for form in (ROWS, ACROSS, OUTER)),
    Case(ROWS, 7, 40, 12, biases=1), Case(ROWS, 7, 39, 13, biases=2),
    Case(ROWS, 3, 5, 0), Case(ACROSS, 3, 5, 0), Case(OUTER, 3, 5, 0), Case(OUTER, 200, 40, 2),
    Case(ACROSS, 1, 50, 21, ones=True), Case(ACROSS, 1, 50, 21, ones=True, adds=True), Case(OUTER, 5, 6, 3, adds=True),
]  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize("is_float", [True, False])
@pytest.mark.parametrize("dtype", list(TYPES), ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one(library: ctypes.CDLL, case: Case, dtype: torch.dtype, is_float: bool) -> None:
    torch.manual_seed(0)
    product = Product(case, dtype, is_float)
    assert multiply(library, [product], dtype) == 1
    product.check(dtype)


def test_several_in_one_launch(library: ctypes.CDLL) -> None:
    torch.manual_seed(1)
    products = [Product(case, torch.float32, True) for case in CASES]
    assert multiply(library, products, torch.float32) == -(-len(CASES) // 16)
    for product in products:
        product.check(torch.float32)


def test_what_is_added_to_another_product_comes_later(library: ctypes.CDLL) -> None:
    torch.manual_seed(2)
    first, second, apart = (Product(Case(ACROSS, 1, 50, 9, ones=True), torch.float32, True) for _ in range(3))
    second.case = Case(ACROSS, 1, 50, 9, ones=True, adds=True)
    second.memory, second.out = first.memory, first.out
    assert multiply(library, [first, apart, second], torch.float32) == 2
    second.right += first.right
    second.check(torch.float32)
    apart.check(torch.float32)


def test_nothing_to_do(library: ctypes.CDLL) -> None:
    """No rows or no columns."""
    assert multiply(library, [Product(Case(ROWS, 0, 5, 3), torch.float32, True)], torch.float32) == 0
    assert multiply(library, [Product(Case(ROWS, 5, 0, 3), torch.float32, True)], torch.float32) == 0
