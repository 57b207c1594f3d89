"""What the generated torch code does across the units of a row, against torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rnncc.compat import haste
from rnncc.runtime.eager import rows

ROWS, H = 16384, 64


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [1, 4])
def test_layer_norm_sums_many_rows_in_16_bits(dtype: torch.dtype, heads: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    given, d_result = (drawn(ROWS, H), drawn(H), drawn(H)), drawn(ROWS, H).detach() + 0.2
    result = rows.layer_norm(given[0], heads, 1, 1e-5, given[1], given[2])
    assert result.dtype == dtype
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    split = F.layer_norm(exact[0].reshape(ROWS, heads, H // heads), (H // heads,))
    expected = split.reshape(ROWS, H) * exact[1] + exact[2]
    found = torch.autograd.grad(result, given, d_result)
    wanted = torch.autograd.grad(expected, exact, d_result.double())
    errors = [relative_error(a, b) for a, b in zip((result, *found), (expected, *wanted), strict=True)]
    # A few roundings of a number: torch's own sums in 16 bits are off by a tenth and more.
    assert all(error < 2 * torch.finfo(dtype).eps for error in errors), errors


def test_haste_takes_that_layer_norm() -> None:
    layer = haste.LayerNormIndRNN(H, H).bfloat16()
    x = torch.randn(ROWS, H, generator=torch.Generator().manual_seed(1)).bfloat16()
    gain = layer.gamma[0].detach().clone().requires_grad_()
    exact = gain.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(layer._norm(x, gain).sum(), gain)
    (expected,) = torch.autograd.grad(F.layer_norm(x.double(), (H,), exact).sum(), exact)
    assert float((found.double() - expected).abs().max()) < 0.02 * ROWS**0.5


@pytest.mark.parametrize(("heads", "k", "result_k"), [(1, 1, 2), (2, 1, 2), (3, 2, 4), (2, 2, 1)])
def test_repeat_stays_within_a_head(heads: int, k: int, result_k: int) -> None:
    """Each unit of a head twice in a row, whatever the layout of the result."""
    value = torch.arange(5 * k * heads * 4.0).reshape(5, -1)
    found = rows.split_heads(rows.row_repeat(value, 2, heads, k, result_k), heads, result_k)
    assert torch.equal(found, rows.split_heads(value, heads, k).repeat_interleave(2, -1))
