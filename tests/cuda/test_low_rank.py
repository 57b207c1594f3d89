"""Matrices of low rank on a GPU: layers against the float64 reference, by kernels whose CTAs share what is between the
factors."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest
import torch

from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.verify import Case, verify
from tests.cuda.harness import DTYPES, Packages, kernels_of
from tests.cuda.kernels import LOW_RANK_LSTM
from tests.generated.chain_runs import families_of

pytestmark = pytest.mark.gpu

# Eight dense matrices of this size do not fit on chip.
SIZE = 2048


@cache
def request(heads: int = 1) -> Request:
    """The cell, with kernels of one size in every dtype."""
    problems = tuple(Problem(SIZE // heads, heads, dtype) for dtype in DTYPES)
    text = Path(LOW_RANK_LSTM).read_text(encoding="utf-8")
    return Request(Source("lowranklstm.rnn", text), f"lowranklstm_{heads}", problems=problems)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("steps", "batch", "heads", "masked", "reverse"),
    [
        (6, 16, 1, False, False),
        (1, 1, 1, False, False),
        (5, 3, 1, True, True),
        (4, 37, 1, True, False),
        (5, 11, 2, True, False),
        (5, 16, 2, False, True),
    ],
)
def test_a_layer(
    dtype: str, steps: int, batch: int, heads: int, masked: bool, reverse: bool, packages: Packages
) -> None:
    cell = compile_cells(request(heads), "partition").cells[0].cell
    case = Case(steps, batch, heads, reverse=reverse, masked=masked, sizes=(("I", 64), ("H", SIZE)))
    report = verify(
        packages.of(request(heads)).LowRankLSTM, cell, device="cuda", dtypes=(DTYPES[dtype],), cases=(case,)
    )
    assert {row.quantity: row.error for row in report.rows if row.failed} == {}
    assert any(row.judged for row in report.rows), "nothing was compared"


@pytest.mark.hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_grid_runs_both_ways(dtype: torch.dtype, packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a layer of both directions, whose kernels are made at its first call."""
    monkeypatch.setenv("RNNCC_COMPILE", "1")
    torch.manual_seed(0)
    x = torch.randn(5, 4, 64, device="cuda", dtype=dtype)
    for bidirectional in (False, True):
        layer = packages.of(request()).LowRankLSTM(64, SIZE, bidirectional=bidirectional, device="cuda", dtype=dtype)
        ran = kernels_of(partial(both_ways, layer, x))
        assert families_of(ran, "lowranklstm") == ["grid"]
        assert all("_relayed_128" in name for name in ran if "_grid_" in name)


def both_ways(layer: torch.nn.Module, x: torch.Tensor) -> None:
    layer(x)[0].float().sum().backward()
