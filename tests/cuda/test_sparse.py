"""Sparse kernels on a GPU: layers with masks against the float64 reference, and masks that change."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rnncc.driver import load_module
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.verify import Case, verify
from tests.cuda.harness import DTYPES, kernels_of
from tests.cuda.kernels import SPARSE_LSTM
from tests.generated.chain_runs import families_of

pytestmark = pytest.mark.gpu

# Four dense matrices of this size do not fit on chip.
SIZE = 2304


@cache
def request() -> Request:
    """The cell with sparse matrices, with kernels for a batch of 4."""
    problems = tuple(Problem(SIZE, 1, dtype, 4) for dtype in DTYPES)
    text = Path(SPARSE_LSTM).read_text(encoding="utf-8")
    return Request(Source("sparselstm.rnn", text), "sparselstm", problems=problems)


@cache
def module() -> ModuleType:
    """The package of the cell."""
    return load_module(request())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "masked", "reverse"), [(4, False, False), (3, True, True), (7, True, False)])
def test_a_layer(dtype: str, batch: int, masked: bool, reverse: bool) -> None:
    (cell,) = compile_cells(request(), "partition").cells
    case = Case(6, batch, 1, reverse=reverse, masked=masked, sizes=(("I", 64), ("H", SIZE)))
    report = verify(module().SparseLSTM, cell, device="cuda", dtypes=(DTYPES[dtype],), cases=(case,))
    wrong = {row.quantity: row.error for row in report.rows if row.judged and not row.error <= row.bound}
    assert wrong == {}


def layer_and_input(dtype: torch.dtype, batch: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer: torch.nn.Module = module().SparseLSTM(64, SIZE, device="cuda", dtype=dtype)
    return layer, torch.randn(5, batch, 64, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_sparse_kernel_runs_both_ways(dtype: torch.dtype) -> None:
    layer, x = layer_and_input(dtype, 4)
    ran = kernels_of(lambda: layer(x)[0].float().sum().backward())
    assert families_of(ran, "sparselstm") == ["sparse"]


def test_the_next_call_reads_another_mask() -> None:
    """Also where the matrices have more elements than there is room for, and none at all."""
    layer, x = layer_and_input(torch.bfloat16, 4)
    dense = torch.randn(4 * SIZE, SIZE, device="cuda") * 0.02
    for density in (0.1, 0.3, 0.0):
        mask = torch.rand(4 * SIZE, SIZE, device="cuda") < density
        layer.set_mask("R", mask)  # type: ignore[operator]
        with torch.no_grad():
            layer.weight_hh_l0.copy_(dense * mask)  # type: ignore[operator]
            found = layer(x)[0].float()
            h = c = torch.zeros(4, SIZE, device="cuda")
            pre = x.float() @ layer.weight_ih_l0.float().t() + layer.bias_ih_l0.float()  # type: ignore[operator]
            for t, row in enumerate(pre):
                i, f, o, g = (row + h @ layer.weight_hh_l0.float().t()).chunk(4, 1)  # type: ignore[operator]
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                assert (found[t] - h).norm() <= 0.02 * h.norm()
