"""`heads` and `roll` against torch: groups, layouts, what a constructor refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.packages import float64_package

# The product with the counting vector tells the places of units apart.
TEXT = """
cell Groups
dim D = 3, g = 1
state h: D*num_heads
local k: g*D
k = W@x
h[t] = 0.5*h[t-1] + heads(k, g)*(1 + arange(D*num_heads))

cell Parts
dim g = 1
state h: 4*num_heads
local k: 4*g
k = W@x
h[t] = 0.5*h[t-1] + heads(k, g)*(1 + arange(4*num_heads))*(1 + arange(num_heads))

cell Pairs
state h: 4*num_heads
param u: vector(8)
local k: 2
k = W@x
h[t] = 0.5*h[t-1] + heads(u, 2) + sum(heads(k))

cell Rolled
const n = 1
state h, v: 2*H
h[t] = W@x + roll(h[t-1], 3) + 0.1*roll(h[t-1], 40) + roll(h[t-1], -2, fill=-n)
v[t] = W@x + roll(v[t-1], 5) + roll(v[t-1], 40, fill=1.5) + roll(v[t-1], -1, fill=0)
"""
STEPS, BATCH, INPUT = 4, 2, 5


def package() -> Any:
    return float64_package(TEXT, "groups")


def inputs() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64, requires_grad=True)


def copies(k: Tensor, heads: int, groups: int) -> Tensor:
    """[..., groups*D] as [..., heads, D]."""
    each = torch.split(k, k.shape[-1] // groups, -1)
    return torch.stack([each[head // (heads // groups)] for head in range(heads)], -2)


def compare(layer: Any, x: Tensor, expected: Tensor) -> None:
    """Values, and gradients of x and of every parameter."""
    found = layer(x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    weights = torch.randn_like(found)
    sources = [x, *layer.parameters()]
    for own, wanted in zip(
        torch.autograd.grad((found * weights).sum(), sources),
        torch.autograd.grad((expected * weights).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(own, wanted, rtol=1e-10, atol=1e-10)


def summed(added: Tensor) -> Tensor:
    """h[t] = 0.5*h[t-1] + what is added."""
    h, out = torch.zeros_like(added[0]), []
    for each in added:
        h = 0.5 * h + each
        out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (2, 1), (2, 2), (4, 2), (6, 3), (4, 4)])
def test_each_head_reads_its_group(backend: str, heads: int, groups: int) -> None:
    x = inputs()
    options = {"num_heads": heads, "backend": backend, "dtype": torch.float64}
    layer = package().Groups(INPUT, heads, D=3, g=groups, **options)
    k = copies(x @ layer.gate_parameters()["W_k"].T, heads, groups)
    # [N, 3]: each head's three units lie together.
    compare(layer, x, summed((k * torch.arange(1.0, 4)).flatten(-2)))
    layer = package().Parts(INPUT, heads, g=groups, **options)
    k = copies(x @ layer.gate_parameters()["W_k"].T, heads, groups)
    # [4, N, 1]: the first units of all heads lie together.
    numbers = torch.arange(1.0, 5) * torch.arange(1.0, heads + 1)[:, None]
    compare(layer, x, summed((k * numbers).transpose(-1, -2).flatten(-2)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_groups_of_a_parameter(backend: str) -> None:
    x = inputs()
    layer = package().Pairs(INPUT, 4, num_heads=4, backend=backend, dtype=torch.float64)
    own = layer.gate_parameters()
    u = copies(own["u"], 4, 2).transpose(-1, -2).flatten()
    compare(layer, x, summed(u + (x @ own["W_k"].T).sum(-1, keepdim=True)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_units_move_within_heads(backend: str, heads: int) -> None:
    def roll(value: Tensor, places: int, parts: int, fill: float | None = None) -> Tensor:
        rows = value.reshape(BATCH, parts, heads, -1).transpose(1, 2).reshape(BATCH, heads, -1)
        moved = torch.roll(rows, places, -1)
        if fill is not None:
            comes = torch.arange(rows.shape[-1]) - places
            moved = moved.masked_fill((comes < 0) | (comes >= rows.shape[-1]), fill)
        return moved.reshape(BATCH, heads, parts, -1).transpose(1, 2).reshape(value.shape)

    x = inputs()
    layer = package().Rolled(
        INPUT, 6, num_heads=heads, backend=backend, dtype=torch.float64, return_sequences_of=("h", "v")
    )
    own = layer.gate_parameters()
    h, v, out = x.new_zeros(BATCH, 6), x.new_zeros(BATCH, 12), []
    for each in x:
        h = each @ own["W_h"].T + roll(h, 3, 1) + 0.1 * roll(h, 40, 1) + roll(h, -2, 1, -1.0)
        v = each @ own["W_v"].T + roll(v, 5, 2) + roll(v, 40, 2, 1.5) + roll(v, -1, 2, 0.0)
        out.append(torch.cat((h, v), -1))
    *_, found = layer(x)
    both, expected = torch.cat((found["h"], found["v"]), -1), torch.stack(out)
    torch.testing.assert_close(both, expected, rtol=1e-10, atol=1e-10)
    sources, weights = [x, *layer.parameters()], torch.randn_like(both)
    wanted = torch.autograd.grad((expected * weights).sum(), sources)
    gradients = torch.autograd.grad((both * weights).sum(), sources)
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-10)


def test_groups_must_divide_heads() -> None:
    with pytest.raises(ValueError, match=r"num_heads must be a multiple of g .*got 4, 3"):
        package().Groups(INPUT, 4, num_heads=4, g=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_places_are_exact_in_every_dtype(dtype: torch.dtype) -> None:
    """Which units are filled does not depend on how large a number the dtype counts to."""
    text = "cell Far\nstate h\nh[t] = 1 + roll(h[t-1], 300, fill=2) + 0*(W@x)"
    layer = float64_package(text, "far").Far(1, 600, dtype=dtype)
    with torch.no_grad():
        output = layer(torch.zeros(2, 1, 1, dtype=dtype))[0]
    assert output[:, 0].tolist() == [[3.0] * 300 + [1.0] * 300, [3.0] * 300 + [4.0] * 300]
