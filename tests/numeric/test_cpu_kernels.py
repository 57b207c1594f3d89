"""The generated CPU loops, called directly, against the float64 interpreter and torch's autograd."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rnncc.driver import build_package, load_module
from rnncc.ir.cell import Cell
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.machine.paths import cells_dir
from rnncc.machine.targets import instruction_sets
from rnncc.verify import problem_sizes
from tests.compiling import front
from tests.long import runs_all
from tests.numeric.compare import Case, Problem, heads_fit
from tests.numeric.loops import DTYPES, Loop, Tensors, call, loops_of, open_library
from tests.shipped import STEMS

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-11, torch.bfloat16: 2e-2, torch.float16: 3e-3}
BEST = instruction_sets()[-1]


def cells_of(text: str) -> list[Cell]:
    return [cell for cell, _ in front(Source("test.rnn", text))]


@cache
def loops_of_shipped(name: str) -> tuple[Loop, ...]:
    (cell,) = cells_of((cells_dir() / f"{name}.rnn").read_text(encoding="utf-8"))
    return loops_of(cell)


@cache
def library_of(name: str, compute_type: str) -> ctypes.CDLL:
    """Code for this processor's best instructions, in a package that other tests load too."""
    return open_library(Path(load_module(read_request(name), (compute_type, f"{compute_type}_masked")).__path__[0]))


@cache
def library_for(name: str, isa: str) -> ctypes.CDLL:
    """Code of every compute type for one instruction set. Tests of `rnncc build` compile for every one."""
    with tempfile.TemporaryDirectory() as folder:
        return open_library(build_package(replace(read_request(name), instructions=isa), Path(folder), "cpu"))


def shipped(name: str, dtype: torch.dtype, isa: str = BEST) -> tuple[tuple[Loop, ...], ctypes.CDLL]:
    """The loops of a cell, and the code that computes in a dtype."""
    compute_type = "f64" if dtype == torch.float64 else "f32"
    return loops_of_shipped(name), library_of(name, compute_type) if isa == BEST else library_for(name, isa)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compare(loop: Loop, library: ctypes.CDLL, problem: Problem, isa: str = BEST) -> None:
    agree(Case(loop, problem), library, isa)


def agree(case: Case, library: ctypes.CDLL, isa: str = BEST) -> None:
    errors = case.errors(library, isa)
    wrong = {name: error for name, error in errors.items() if not error <= BOUNDS[case.problem.dtype]}
    assert not wrong, (case.loop.name, case.problem, wrong)


def sizes_of(cell: Cell) -> dict[str, int]:
    return {name: size for name, size in problem_sizes(cell).items() if name != "num_heads"}


# One of each class of recurrence.
@pytest.mark.always(stem=("alif", "hgrn", "onlstm"))
@pytest.mark.parametrize("stem", STEMS)
def test_every_shipped_cell(stem: str) -> None:
    # The code for floats has the same source, and test_shapes_and_dtypes runs it.
    for dtype in (torch.float32, torch.float64) if runs_all() else (torch.float64,):
        loops, library = shipped(stem, dtype)
        for loop in loops:
            sizes = sizes_of(loop.cell)
            compare(loop, library, Problem(7, 3, sizes, 1, dtype, reverse=True, partial=True))
            if heads_fit(loop, sizes, 3):
                compare(loop, library, Problem(5, 2, sizes, 3, dtype, batch_first=True))
            if dtype == torch.float64:
                compare(loop, library, Problem(5, 3, sizes, 1, dtype, clip=0.1))


@pytest.mark.one_in(7, "dtype")
@pytest.mark.parametrize("name", ["lstm", "gru", "gruv3", "slstm", "layernormlstm", "mogrifierlstm", "taugru"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_shapes_and_dtypes(name: str, dtype: torch.dtype) -> None:
    loops, library = shipped(name, dtype)
    for loop in loops:
        sizes = sizes_of(loop.cell)
        for steps, batch in ((1, 1), (33, 16), (3, 41)):
            case = Case(loop, Problem(steps, batch, sizes, 1, dtype))
            # What the layout does not change is computed once.
            expected = case.reference
            for batch_first in (False, True):
                again = case.laid_out(batch_first=batch_first)
                assert again.reference is expected
                agree(again, library)


@pytest.mark.always(isa=[BEST])
@pytest.mark.parametrize("isa", instruction_sets())
def test_every_instruction_set(isa: str) -> None:
    for dtype in BOUNDS:
        loops, library = shipped("lstm", dtype, isa)
        for loop in loops:
            compare(loop, library, Problem(9, 5, {"I": 4, "H": 37}, 1, dtype), isa)
            compare(loop, library, Problem(1, 4, {"I": 4, "H": 37}, 1, dtype), isa)


@pytest.mark.parametrize("hidden", [1, 2, 15, 16, 17, 70, 131])
@pytest.mark.parametrize("name", ["lstm", "layernormlstm"])
def test_odd_widths(name: str, hidden: int) -> None:
    loops, library = shipped(name, torch.float64)
    # A norm over one or two units cancels.
    for loop in loops if name == "lstm" or hidden > 2 else ():
        compare(loop, library, Problem(6, 3, {"I": 4, "H": hidden}, 1, torch.float64))
        compare(loop, library, Problem(2, 2, {"I": 4, "H": hidden}, 1, torch.float64))


@pytest.mark.long
@pytest.mark.parametrize("heads", [2, 4])
def test_heads_that_fill_tiles(heads: int) -> None:
    for name in ("lstm", "gruv3", "layernormgru", "lstmp"):
        loops, library = shipped(name, torch.float64)
        sizes = {**sizes_of(loops[0].cell), "I": 8, "H": 160}
        for loop in loops:
            if heads_fit(loop, sizes, heads):
                compare(loop, library, Problem(5, 7, sizes, heads, torch.float64))
                # So short a call takes products of matrices as they lie.
                compare(loop, library, Problem(1, 3, sizes, heads, torch.float64))


@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (4, 0), (0, 0)])
def test_empty_problems(steps: int, batch: int) -> None:
    for name in ("lstm", "gru"):
        loops, library = shipped(name, torch.float32)
        for loop in loops:
            compare(loop, library, Problem(steps, batch, {"I": 4, "H": 12}))


def same_with_threads(case: Case, library: ctypes.CDLL, counts: Sequence[int]) -> None:
    """With so many threads a loop gives what it gives with one."""
    results = []
    for count in (1, *counts):
        torch.set_num_threads(count)
        found = case.kernel(library, BEST)
        results.append([tensor for group in found for tensor in group if tensor is not None])
    for result in results[1:]:
        for ours, alone in zip(result, results[0], strict=True):
            assert torch.equal(ours, alone)


@pytest.mark.one_in(12)
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["lstm", "gru", "gruv3", "layernormlstm", "indrnn", "timeawarelstm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_do_not_change_results(name: str, dtype: torch.dtype) -> None:
    loops, library = shipped(name, dtype)
    for loop in loops:
        sizes = {**sizes_of(loop.cell), "I": 150, "H": 150}
        # One batch entry: threads divide units; more blocks of steps than one for three threads alone, since they meet
        # at every step. Forty: they divide rows; and there are more threads than blocks of matrices. Four rows in all:
        # products of matrices as they lie.
        for steps, batch, counts in ((600, 1, (3,)), (20, 1, (2, 5)), (20, 40, (2, 5, 14)), (2, 2, (2, 3, 5))):
            same_with_threads(Case(loop, Problem(steps, batch, sizes, 3, dtype)), library, counts)


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["lstm", "gru", "layernormlstm", "timeawarelstm"])
def test_groups_of_threads_do_not_change_results(name: str) -> None:
    """tests/cpu/test_sharing.py: some threads divide the units of some entries."""
    loops, library = shipped(name, torch.float32)
    for loop in loops:
        sizes = {**sizes_of(loop.cell), "I": 256, "H": 256}
        same_with_threads(Case(loop, Problem(6, 16, sizes, 1, torch.float32)), library, (6, 8))


def test_diagonal_blocks_steps_against_the_reference() -> None:
    # Several blocks; products and sums over all of them; a kept value that is no stream's gradient (bR's).
    loops, library = shipped("gru", torch.float64)
    for batch in (1, 3):
        compare(loops[0], library, Problem(700, batch, {"I": 4, "H": 20}, 1, torch.float64))


def test_wrong_dtype_is_refused() -> None:
    wide = torch.float64
    tables: list[Tensors] = [
        [torch.zeros(2, 3, 16, dtype=wide)],
        [torch.zeros(16, 4, dtype=wide)],
        [torch.zeros(3, 4, dtype=wide)] * 2,
        [None] * 2,
        [None] * 2,
        [None] * 6,
    ]
    for compute_type, status in (("f64", 0), ("f32", 2)):
        library = library_of("lstm", compute_type)
        assert call(library[f"lstm_0_forward_{BEST}_{compute_type}"], (2, 3, 1), (5, 4), (), False, tables) == status


class _Matrix(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("row", ctypes.c_int64), ("dtype", ctypes.c_int32))


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs")),
        *((name, _Matrix) for name in ("x", "weight", "bias", "y")),
        ("packed", ctypes.c_void_p),
    )


class _LinearBackward(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs")),
        *((name, _Matrix) for name in ("x", "weight", "d_y", "d_x", "d_weight", "d_bias")),
    )


def _matrix(tensor: Tensor | None) -> _Matrix:
    if tensor is None:
        return _Matrix(None, 0, 0)
    return _Matrix(tensor.data_ptr(), tensor.stride(0) if tensor.dim() == 2 else 0, DTYPES[tensor.dtype])


@pytest.mark.always(isa=[BEST])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 33), (700, 70, 131), (130, 600, 65), (0, 3, 4)])
@pytest.mark.parametrize("isa", instruction_sets())
def test_linear(dtype: torch.dtype, shape: tuple[int, int, int], isa: str) -> None:
    _, library = shipped("lstm", dtype, isa)
    rows, inputs, outputs = shape
    suffix = "f64" if dtype == torch.float64 else "f32"
    torch.manual_seed(1)
    x, weight, bias, d_y = (
        torch.randn(*size).to(dtype) for size in ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    )
    # Rows that are not side by side.
    x = torch.cat([x, torch.full((rows, 3), float("nan"), dtype=dtype)], 1)[:, :inputs]
    y, d_x, d_weight, d_bias = (torch.full_like(tensor, float("nan")) for tensor in (d_y, x, weight, bias))
    exact = [tensor.double() for tensor in (x, weight, bias, d_y)]
    for given in (bias, None):
        forward = _Linear(*shape, *(_matrix(tensor) for tensor in (x, weight, given, y)))
        assert library[f"rnncc_linear_forward_{isa}_{suffix}"](ctypes.byref(forward)) == 0
        expected = exact[0] @ exact[1].T + (exact[2] if given is not None else 0)
        assert float((y.double() - expected).norm()) <= BOUNDS[dtype] * float(expected.norm())
    backward = _LinearBackward(*shape, *(_matrix(tensor) for tensor in (x, weight, d_y, d_x, d_weight, d_bias)))
    assert library[f"rnncc_linear_backward_{isa}_{suffix}"](ctypes.byref(backward)) == 0
    for ours, expected in ((d_x, exact[3] @ exact[1]), (d_weight, exact[3].T @ exact[0]), (d_bias, exact[3].sum(0))):
        assert float((ours.double() - expected).norm()) <= BOUNDS[dtype] * float(expected.norm())
