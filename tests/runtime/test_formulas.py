"""Parameters that start at formulas of sizes and of vectors of numbers; and the S6 cell whose state is a matrix."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from rnncc.language.read import read_request
from tests.packages import float64_package, reference_module

TEXT = """
cell MatrixS6
dim rank = 8, D = 16
state S: matrix(H, D*num_heads)
output y
local low: rank, B: D, C: D
weights U: matrix
param A: matrix(H, D*num_heads), skip: vector = 1
low, B, C = W@x
delta = softplus(U@low + b)
S[t] = exp(-diag(delta)@exp(A))*S[t-1] + (delta*x)@T(heads(B))
y = S[t]@heads(C) + skip*x
init A = log(1 + ones(H)@T(arange(D*num_heads)))
init b = uniform(-6.9, -2.2)

cell Started
const c = 0.5
dim K = H
state h, m: 2*H
param v: vector(2*H), w: vector(num_heads), M: matrix(2*H, H), Z: vector
weights V: matrix
m[t] = tanh(v*(M@h[t-1]) + V@x)
h[t] = tanh(W@x + R@h[t-1] + w*Z + V@m[t] + b)
init v = c*arange(2*H) - 1/sqrt(H)
init w = exp(-arange(num_heads))
init M = ones(2*H)@T(cos(arange(H))) + 0.1*arange(2*H)@T(ones(H))
init V_h = ones(H)@T(arange(2*H))
init Z = 2/H
init b = H**2
"""
INPUT, H = 3, 6


@cache
def package() -> Any:
    return float64_package(TEXT, "formulas")


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_parameters_start_at_formulas(heads: int, dtype: torch.dtype) -> None:
    layer = package().Started(INPUT, H, num_heads=heads, dtype=dtype)
    own = H // heads
    count = torch.arange(own).double().repeat(heads)  # of a vector of H units
    both = torch.cat([(torch.arange(own) + part * own).double().repeat(heads) for part in (0, 1)])
    found = {name: value.detach() for name, value in layer.gate_parameters().items()}

    def same(name: str, value: Tensor) -> None:
        assert torch.equal(found[name].flatten(), value.to(dtype).flatten()), name

    same("v", 0.5 * both - 1 / torch.tensor(H).double().sqrt())
    same("w", torch.exp(-torch.arange(heads).double()))
    same("Z", torch.full((H,), 2 / H, dtype=torch.float64))
    same("b_h", torch.full((H,), float(H**2), dtype=torch.float64))
    # Rows and columns of each head's block count from 0.
    rows, columns = torch.arange(2.0 * own).double(), torch.arange(own).double()
    block = torch.ones(2 * own, 1).double() * columns.cos() + 0.1 * rows[:, None]
    assert found["M"].numel() == heads * block.numel()
    for head in range(heads):
        part = found["M"] if heads == 1 else found["M"][:, head] if found["M"].dim() == 4 else found["M"][head]
        assert torch.equal(part.reshape(block.shape), block.to(dtype))
    whole = torch.ones(own, 1).double() * torch.arange(2.0 * own).double()
    for head in range(heads):
        assert torch.equal(found["V_h"].reshape(heads, own, 2 * own)[head], whole.to(dtype))
    assert count.max() == own - 1
    with torch.no_grad():
        for value in layer.parameters():
            value.fill_(7)
    layer.reset_parameters()
    same("v", 0.5 * both - 1 / torch.tensor(H).double().sqrt())


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_s6_with_a_matrix_is_the_shipped_s6(heads: int, masked: bool) -> None:
    new = package().MatrixS6(H, H, num_heads=heads, dtype=torch.float64)
    old: Any = reference_module(read_request("s6").source, "s6").S6(H, H, num_heads=heads, dtype=torch.float64)
    ours, theirs = new.gate_parameters(), old.gate_parameters()
    # A: [N, H/N, 16], a1 to a16: [H].
    for n in range(16):
        torch.testing.assert_close(ours["A"][..., n].flatten(), theirs[f"a{n + 1}"].flatten(), atol=1e-8, rtol=0)
    with torch.no_grad():
        ours["A"].add_(0.3 * torch.randn_like(ours["A"]))
        for n in range(16):
            theirs[f"a{n + 1}"].copy_(ours["A"][..., n].flatten())
        theirs["D"].copy_(ours["skip"].copy_(torch.randn(H)))
        for name in ("W_low", "W_B", "W_C", "U_delta", "b_delta"):
            assert theirs[name].shape == ours[name].shape
            theirs[name].copy_(ours[name])
    x = torch.randn(9, 3, H, dtype=torch.float64, requires_grad=True)
    extra = {"reset": torch.rand(9, 3) < 0.3, "lengths": [9, 4, 0]} if masked else {}
    (y, last), (y_old, last_old) = new(x, **extra), old(x, **extra)
    torch.testing.assert_close(y, y_old, atol=1e-11, rtol=1e-11)
    states = torch.stack([state[0].reshape(3, heads, -1) for state in last_old], -1)
    torch.testing.assert_close(last[0], states, atol=1e-11, rtol=1e-11)
    one, other = (torch.autograd.grad((out * y_old.detach().sin()).sum(), x)[0] for out in (y, y_old))
    torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)
