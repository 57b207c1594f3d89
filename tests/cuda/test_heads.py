"""Products of heads over many rows (templates/include/rnncc/cuda/heads.h) are the sums over all rows: by torch, however
the rows are dealt out and copied, and by the package's own kernel, which runs here thread by thread."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rnncc
from rnncc.verify import BOUNDS, relative_error
from tests.cpu.host import build, call
from tests.cuda.harness import DTYPES, Packages, assert_true, draw, launches_of
from tests.emulated.compiled import library_of


@dataclass(frozen=True, slots=True)
class Shape:
    """a is [rows, parts, heads, head_dim], and b is [rows, terms, heads, depth]; their rows have gaps."""

    rows: int
    heads: int
    parts: int
    head_dim: int
    terms: int
    depth: int
    a_gap: int = 0
    b_gap: int = 0

    def widths(self) -> tuple[int, int]:
        return self.parts * self.heads * self.head_dim, self.terms * self.heads * self.depth

    def numbers(self) -> tuple[int, ...]:
        return self.rows, self.heads, self.parts, self.head_dim, self.terms, self.depth

    def right(self, a: Any, b: Any) -> Any:
        """The products in float64: [parts, heads, head_dim, terms, depth]."""
        left, right = (np.asarray(t, np.float64)[:, :width] for t, width in zip((a, b), self.widths(), strict=True))
        left = left.reshape(self.rows, self.parts, self.heads, self.head_dim)
        return np.einsum("rpni,rqnj->pniqj", left, right.reshape(self.rows, self.terms, self.heads, self.depth))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build("../cuda/heads.cpp", "generic", tmp_path_factory.mktemp("heads"))


@pytest.mark.parametrize("rows", [5, 1023, 1024, 1039])
@pytest.mark.parametrize(
    "rest",
    [
        (3, 1, 4, 1, 4, 36, 0),
        (2, 2, 8, 1, 5, 0, 3),
        (40, 1, 2, 2, 2, 7, 0),
        (3, 1, 4, 1, 4, 0, 0),
        (2, 2, 3, 3, 2, 1, 0),
    ],
    ids=str,
)
def test_every_row_counts_once(library: ctypes.CDLL, rows: int, rest: tuple[int, ...]) -> None:
    """Few rows and many, also such as no equal parts have; few heads and many; rows with gaps."""
    random, shape = np.random.default_rng(0), Shape(rows, *rest)
    widths = shape.widths()
    a = random.standard_normal((rows, widths[0] + shape.a_gap)).astype(np.float32)
    b = random.standard_normal((rows, widths[1] + shape.b_gap)).astype(np.float32)
    right = shape.right(a, b)
    out = np.full_like(right, np.nan, np.float32)
    failed = call(library, "sums_of_heads", out, a, a.shape[1], b, b.shape[1], *shape.numbers(), restype=ctypes.c_int)
    assert failed == 0
    np.testing.assert_allclose(out, right, rtol=0, atol=2e-4)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).with_name("head_products.cpp")
    return ctypes.CDLL(str(library_of(source, tmp_path_factory.mktemp("head_products"))))


def multiplied(
    library: ctypes.CDLL, shape: Shape, dtype: torch.dtype, ctas_at_once: int, seed: int = 1
) -> tuple[int, int, bool]:
    """Checks the products of random operands by the emulated kernel. Returns the number of slices, the rows of each,
    and whether the kernel would be taken on a GPU."""
    torch.manual_seed(seed)
    # Beside the operands lie NaNs.
    widths = shape.widths()
    a, b = (
        torch.full((shape.rows + 1, width + gap), torch.nan, dtype=dtype)
        for width, gap in zip(widths, (shape.a_gap, shape.b_gap), strict=True)
    )
    for t, width in ((a, widths[0]), (b, widths[1])):
        t[: shape.rows, :width] = torch.randn(shape.rows, width)
    right = torch.from_numpy(shape.right(a[: shape.rows].float(), b[: shape.rows].float()))
    guard, count = 64, right.numel()
    out = torch.full((count + 2 * guard,), 512.0, dtype=dtype)
    numbers = (ctypes.c_int64 * 10)(a.shape[1], b.shape[1], *shape.numbers(), ctas_at_once, seed)
    shared = (ctypes.c_int64 * 3)()
    library.head_products.restype = ctypes.c_char_p
    place = ctypes.c_void_p(out.data_ptr() + guard * out.itemsize)
    pointers = (ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()), place)
    problem = library.head_products(*pointers, numbers, ctypes.c_int32(dtype == torch.bfloat16), shared)
    assert problem is None, problem.decode()
    own = out[guard : guard + count].view_as(right)
    assert (out[:guard] == 512).all() and (out[guard + count :] == 512).all()
    # A sum of products of random signs is about the root of the number of rows; it is rounded once.
    rounding = torch.finfo(dtype).eps * right.abs() + 1e-5 * shape.rows**0.5
    assert ((own.double() - right).abs() <= rounding).all()
    return shared[0], shared[1], bool(shared[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "ctas", "slices"),
    [
        (Shape(70, 3, 4, 16, 1, 16), 1, 1),
        (Shape(300, 2, 4, 64, 1, 64, a_gap=64), 4, 2),
        (Shape(33, 2, 1, 8, 1, 8, b_gap=8), 100, 1),
        (Shape(600, 2, 3, 24, 2, 40), 9, 3),
        (Shape(40, 2, 4, 96, 1, 96), 1, 1),
        (Shape(1, 2, 1, 200, 1, 136), 1, 1),
        (Shape(0, 2, 1, 8, 1, 8), 1, 1),
    ],
    ids=str,
)
def test_emulated(emulated: ctypes.CDLL, shape: Shape, ctas: int, slices: int, dtype: torch.dtype) -> None:
    """Tiles that are full or not, one and several of them; slices with a rest; rows that no stage is full of."""
    assert multiplied(emulated, shape, dtype, ctas)[::2] == (slices, True)


def test_which_products_the_kernel_takes(emulated: ctypes.CDLL) -> None:
    def taken(*shape: int) -> bool:
        return multiplied(emulated, Shape(*shape), torch.bfloat16, 1)[2]

    assert not taken(1, 2, 1, 12, 1, 8) and not taken(1, 2, 1, 8, 1, 8, 4)  # not 16 bytes at a time
    assert taken(1, 40, 1, 8, 1, 8) and taken(1, 15, 1, 136, 1, 8) and not taken(1, 16, 1, 136, 1, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("cell", ["lstm", "layernormlstm", "lstmp"])
def test_gradients_of_heads(cell: str, dtype: str, packages: Packages) -> None:
    """One step and many, both orders of steps; parts of several gates, and operands of several widths."""
    module = packages(cell, fused=False)
    shapes = (
        (2, 8, 5, 7),
        (12, 16, 40, 60),
        (3, 24, 33, 41),
        (2, 72, 300, 9),
        (3, 136, 9, 50),
        (2, 256, 64, 70),
        (4, 64, 7, 1),
    )
    for heads, head_dim, batch, steps in shapes:
        if cell == "lstmp" and head_dim % 64:
            continue  # its P has no multiple of 8 units per head
        for reverse in (False, True):
            run = draw(module, cell, head_dim, heads, batch, steps, DTYPES[dtype], reverse=reverse)
            assert_true(run, DTYPES[dtype])
        names = launches_of(run.run)
        assert any(name.startswith(f"head_products_{dtype.replace('fp', 'f')}") for name in names)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 3])
def test_gradients_without_states(heads: int) -> None:
    torch.manual_seed(3)
    layer = partial(rnncc.load("lstm").LSTM, 8, 192, num_heads=heads, bidirectional=True)
    exact, own = layer(dtype=torch.float64, backend="reference"), layer(dtype=torch.float16, device="cuda")
    own.load_state_dict(exact.state_dict())
    exact.load_state_dict({name: value.double() for name, value in own.state_dict().items()})
    x = torch.randn(20, 30, 8, dtype=torch.float16)
    # A NaN in the gradient of the first step's output meets no state but the initial zeros.
    weights = torch.ones(2, 20, 1, 1)
    weights[1, 0] = torch.nan
    for weight in weights:
        exact.zero_grad()
        own.zero_grad()
        for each, given in ((exact, x.double()), (own, x.cuda())):
            output = each(given)[0][..., :192].float()
            (output.square() * weight.to(output.device)).sum().backward()
        for (name, right), other in zip(exact.named_parameters(), own.parameters(), strict=True):
            if right.grad is not None and right.grad.any():
                ours, finite = other.grad.double().cpu(), right.grad.isfinite()
                assert torch.equal(ours.isfinite(), finite), name
                assert relative_error(ours[finite], right.grad[finite]) <= BOUNDS[torch.float16], name
