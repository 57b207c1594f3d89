"""num_heads in the widths of a cell: an input, a state, a matrix, a value and the output have one or two numbers per
head. The layer is compared with the equations in torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, sigmoid, tanh

from tests.packages import float64_package

from .language.loop import heads, joined, mm, wide

TEXT = """
cell Outside
input x, g: num_heads
state h, n: num_heads
output y
weights p: vector
param M: matrix(2*num_heads, H)
local z: 2*num_heads
size = mean(p*(W@x))
z = tanh(M@h[t-1])
z1, z2 = split(z)
top = g*z1 + size
n[t] = 0.5*n[t-1] + top
h[t] = tanh(W@x + R@h[t-1] + b)*z2 - sigmoid(n[t])
y = mean(h[t]*h[t]) - 0.5*top
"""
H, STEPS, BATCH = 6, 5, 3


@cache
def built() -> Any:
    return float64_package(TEXT, "outside")


def step(p: dict[str, Tensor], now: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor], count: int) -> Any:
    """The output and the states of one batch entry."""
    (x, g), (h, n) = now, before
    first, second = tanh(mm(joined(p["M"]), h, 1, 2)).chunk(2)
    top = g * first + heads(p["p_size"] * (p["W_size"] @ x), count).mean(-1)
    n = 0.5 * n + top
    h = tanh(p["W_h"] @ x + mm(p["R_h"], h) + p["b_h"]) * wide(second, H // count) - wide(sigmoid(n), H // count)
    return heads(h * h, count).mean(-1) - 0.5 * top, h, n


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("backend", [None, "reference"])
def test_a_cell_is_its_equations(count: int, backend: str | None) -> None:
    torch.manual_seed(0)
    layer = built().Outside(4, H, num_heads=count, dtype=torch.float64, backend=backend)
    x, g = (torch.randn(STEPS, BATCH, width, dtype=torch.float64, requires_grad=True) for width in (4, count))
    output, (h, n) = layer(x, g=g)
    assert [tuple(each.shape) for each in (output, h, n)] == [(STEPS, BATCH, count), (1, BATCH, H), (1, BATCH, count)]
    parameters = layer.gate_parameters()
    columns = []
    for entry in range(BATCH):
        last = torch.zeros(H, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
        rows = []
        for t in range(STEPS):
            row, *last = step(parameters, (x[t, entry], g[t, entry]), last, count)
            rows.append(row)
        columns.append((torch.stack(rows), *last))
    expected = [torch.stack([column[0] for column in columns], 1)]
    expected += [torch.stack([column[index] for column in columns])[None] for index in (1, 2)]
    found = [output, h, n]
    weights = [torch.randn_like(each) for each in found]
    reached = [x, g, *layer.parameters()]
    gradients = [torch.autograd.grad(each, reached, weights, retain_graph=True) for each in (found, expected)]
    for ours, theirs in zip((*found, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
