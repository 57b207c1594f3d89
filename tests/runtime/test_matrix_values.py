"""Matrices that change and are no states: of parameters and numbers, and of a vector's units. Beside plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from tests.compiling import cell_of
from tests.packages import float64_package

MIXED = """cell Mixed
state h
param M1: matrix, M2: matrix
local s: num_heads
s = sigmoid(W@x + b)
A = normalize(s*M1 + (1 - s)*tanh(M2 - 0.5*s), axis=columns)
h[t] = tanh(A@h[t-1] + (2*s*M1)@h[t-1] + W@x)
"""
INLINE = """cell Inline
dim K = H
state h
local k: K
k = W@x
Q = softmax(unflatten(W@x + R@h[t-1] + b, H, K), axis=columns)
h[t] = tanh(Q@k + W@x)
"""
NAMED = (
    INLINE.replace("Inline", "Named")
    .replace(
        "k = W@x\nQ = softmax(unflatten(W@x + R@h[t-1] + b, H, K)",
        "k = W@x\nQ = W@x + R@h[t-1] + b\nM = softmax(unflatten(Q, H, K)",
    )
    .replace("Q@k", "M@k")
    .replace("local k: K", "local k: K, Q: H*K//num_heads")
)


@pytest.mark.long
@pytest.mark.parametrize("text", [MIXED, INLINE, NAMED], ids=["mixed", "inline", "named"])
def test_all_forms_agree(text: str) -> None:
    name = text.split(maxsplit=2)[1]
    report = verify.verify(getattr(rnncc.compile(text, name.lower()), name), cell_of(text))
    assert report.rows
    assert report.passed, [row for row in report.rows if not row.passed]


def blocks(vector: Tensor, heads: int) -> Tensor:
    """A batch of vectors by heads."""
    return vector.reshape(*vector.shape[:-1], heads, -1)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_number_of_each_head_mixes_matrices(heads: int) -> None:
    torch.manual_seed(0)
    layer = float64_package(MIXED, "mixed").Mixed(3, 8, num_heads=heads, dtype=torch.float64)
    p = {name: value.detach() for name, value in layer.gate_parameters().items()}
    assert p["M1"].shape == (heads, 8 // heads, 8 // heads)
    x, h = torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    output, _ = layer(x, h[None])
    for at in range(5):
        s = torch.sigmoid(x[at] @ p["W_s"].T + p["b_s"])[:, :, None, None]
        mixed = s * p["M1"] + (1 - s) * torch.tanh(p["M2"] - 0.5 * s)
        mixed = torch.nn.functional.normalize(mixed, dim=-2) + 2 * s * p["M1"]
        product = (mixed @ blocks(h, heads)[..., None])[..., 0].reshape(2, 8)
        h = torch.tanh(product + x[at] @ p["W_h"].T)
        torch.testing.assert_close(output[at], h)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("text", [INLINE, NAMED], ids=["inline", "named"])
def test_a_vectors_units_make_a_matrix_head_by_head(text: str, heads: int) -> None:
    torch.manual_seed(0)
    name = text.split(maxsplit=2)[1]
    layer = getattr(float64_package(text, name.lower()), name)(3, 8, K=4, num_heads=heads, dtype=torch.float64)
    p = {key: value.detach() for key, value in layer.gate_parameters().items()}
    assert p["W_Q"].shape == (32 // heads, 3)
    assert p["R_Q"].shape == (heads, 32 // heads**2, 8 // heads)
    x, h = torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    output, _ = layer(x, h[None])
    for at in range(5):
        recurrent = torch.einsum("noi,bni->bno", p["R_Q"], blocks(h, heads)).flatten(1)
        units = x[at] @ p["W_Q"].T + recurrent + p["b_Q"]
        matrix = units.reshape(2, heads, 8 // heads, 4 // heads).softmax(-2)
        product = (matrix @ blocks(x[at] @ p["W_k"].T, heads)[..., None])[..., 0].reshape(2, 8)
        h = torch.tanh(product + x[at] @ p["W_h"].T)
        torch.testing.assert_close(output[at], h)
