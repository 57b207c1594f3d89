"""Sparse kernels on a GPU: layers with masks against the float64 reference, and masks that change."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.verify import Case, verify
from tests.cuda.harness import DTYPES, Packages, is_for_hopper, kernels_of
from tests.cuda.kernels import BLOCK_LSTM, SPARSE_LSTM
from tests.generated.chain_runs import families_of

pytestmark = pytest.mark.gpu

# Four dense matrices of this size do not fit on chip.
SIZE = 2304
# The cells by their family: the class, and the dtypes of its kernels.
CELLS = {"sparse": ("SparseLSTM", tuple(DTYPES)), "blocks": ("BlockLSTM", ("bf16", "fp16"))}
# The batch that kernels are made for. With one of 4 the forward of blocks is planned as one of single elements.
BATCH = {"sparse": 4, "blocks": 8}


@cache
def request(family: str) -> Request:
    """A cell with sparse matrices, with kernels for its batch."""
    name, dtypes = CELLS[family]
    problems = tuple(Problem(SIZE, 1, dtype, BATCH[family]) for dtype in dtypes)
    text = Path(SPARSE_LSTM if family == "sparse" else BLOCK_LSTM).read_text(encoding="utf-8")
    return Request(Source(f"{name.lower()}.rnn", text), name.lower(), problems=problems)


@pytest.mark.parametrize(
    ("family", "dtype"), [(family, dtype) for family, (_, dtypes) in CELLS.items() for dtype in dtypes]
)
@pytest.mark.parametrize(("batch", "masked", "reverse"), [(4, False, False), (3, True, True), (7, True, False)])
def test_a_layer(family: str, dtype: str, batch: int, masked: bool, reverse: bool, packages: Packages) -> None:
    cell = compile_cells(request(family), "partition").cells[0].cell
    case = Case(6, batch, 1, reverse=reverse, masked=masked, sizes=(("I", 64), ("H", SIZE)))
    made = getattr(packages.of(request(family)), CELLS[family][0])
    report = verify(made, cell, device="cuda", dtypes=(DTYPES[dtype],), cases=(case,))
    assert {row.quantity: row.error for row in report.rows if row.failed} == {}
    assert any(row.judged for row in report.rows), "nothing was compared"


def layer_and_input(packages: Packages, family: str, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer: torch.nn.Module = getattr(packages.of(request(family)), CELLS[family][0])(
        64, SIZE, device="cuda", dtype=dtype
    )
    return layer, torch.randn(5, 4, 64, device="cuda", dtype=dtype)


def ran(family: str, layer: torch.nn.Module, x: torch.Tensor) -> list[str]:
    """The families of the kernels that run forward and backward."""
    return families_of(kernels_of(lambda: layer(x)[0].float().sum().backward()), CELLS[family][0].lower())


@pytest.mark.hopper
@pytest.mark.parametrize("family", CELLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_its_kernels_run_both_ways(family: str, dtype: torch.dtype, packages: Packages) -> None:
    assert ran(family, *layer_and_input(packages, family, dtype)) == [family]


def mask_of(kind: str) -> torch.Tensor:
    """A mask [4 SIZE, SIZE]: of about so many blocks, or with all elements of every twelfth band of 16 rows:
    these are no more than a tenth, but more than a CTA has room for."""
    if kind == "bands":
        return (torch.arange(4 * SIZE, device="cuda") // 16 % 12 == 0)[:, None].expand(-1, SIZE)
    blocks = torch.rand(4 * SIZE // 16, SIZE // 16, device="cuda") < float(kind)
    return blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)


@pytest.mark.filterwarnings("ignore:.*the mask of weight_hh_l0 has")
@pytest.mark.parametrize("family", CELLS)
def test_the_next_call_reads_another_mask(family: str, packages: Packages) -> None:
    """Where it is denser than planned, dense kernels run."""
    layer, x = layer_and_input(packages, family, torch.bfloat16)
    dense = torch.randn(4 * SIZE, SIZE, device="cuda") * 0.02
    for kind in ("0.095", "0.3", "bands", "0.0"):
        mask = mask_of(kind)
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
                assert (found[t] - h).norm() <= 0.02 * h.norm(), kind
        families = ran(family, layer, x)
        assert (family in families) == (kind != "0.3")
        # On a GPU with less shared memory than Hopper's, one direction may have no kernel for zeros.
        if is_for_hopper():
            assert (families == [family]) == (kind != "0.3")
