"""`gate_parameters()`: views of every matrix, vector and buffer by name, and the order of their rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from rnncc.language.source import Source
from tests.packages import float64_package, reference_module, text_of

IN, H, T, B = 3, 8, 5, 4
TEXT = """
cell Wide
state h
local v: 2*H
v = W@x + R@h[t-1] + b
a, q = split(v)
h[t] = tanh(a)*sigmoid(q)

cell Blocks
state h
local v: 2*H
weights R: blockdiag(2)
v = W@x + R@h[t-1] + b
a, q = split(v)
h[t] = tanh(a)*sigmoid(q)

cell Masked
state h
local v: 2*H
weights R: sparse(density=0.5)
v = W@x + R@h[t-1] + b
a, q = split(v)
h[t] = tanh(a)*sigmoid(q)

cell Thin
state h
local v: 2*H
weights R: lowrank(2)
v = W@x + R@h[t-1] + b
a, q = split(v)
h[t] = tanh(a)*sigmoid(q)

cell Sections
state h
local v: 3*H
param M: matrix(3*H, H), s: scalar
buffer K: matrix(2*H, H)
local u: 2*H
v = W@x + M@h[t-1] + b
u = K@h[t-1]
a, q, r = split(v)
c, d = split(u)
h[t] = tanh(a + s*c)*sigmoid(q) + sigmoid(r)*d
"""


@cache
def package() -> Any:
    """Without kernels: these are few calls."""
    return reference_module(Source("wide", TEXT), "wide")


def every_view(layer: Any) -> list[tuple[str, Tensor]]:
    return [*layer.gate_parameters().items(), *(layer.gate_parameters(1, reverse=True)).items()]


OF_HEADS = [(name, heads) for name in ("Wide", "Masked", "Thin", "Sections") for heads in (1, 2, 4)]


@pytest.mark.parametrize(("name", "heads"), [("Blocks", 1), *OF_HEADS])
def test_every_view_is_one(name: str, heads: int) -> None:
    """What is written into it is in the module's own tensors, and nowhere else."""
    layer = getattr(package(), name)(IN, H, num_layers=2, bidirectional=True, num_heads=heads)
    own = dict(layer.named_parameters()) | dict(layer.named_buffers())
    with torch.no_grad():
        for tensor in own.values():
            tensor.zero_()
        for number, (_, view) in enumerate(every_view(layer), 1):
            view.fill_(number)
    written = sum(view.numel() for _, view in every_view(layer))
    places = {tensor.untyped_storage().data_ptr() for tensor in own.values()}
    assert all(view.untyped_storage().data_ptr() in places for _, view in every_view(layer))
    suffixes = ("_l0", "_l1_reverse")
    there = [tensor for key, tensor in own.items() if key.endswith(suffixes) and tensor.dtype != torch.bool]
    assert sum(int(tensor.count_nonzero()) for tensor in there) == written


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_rows_of_all_groups_have_one_order(heads: int) -> None:
    """Section by section, in each head by head: a matrix that is written by its views computes what the docs say."""
    torch.manual_seed(heads)
    layer = float64_package(text_of("Wide", TEXT), "wide").Wide(IN, H, num_heads=heads, dtype=torch.float64)
    head_dim = H // heads
    views = layer.gate_parameters()
    assert views["R_v"].shape == (2, heads, head_dim, head_dim)
    assert views["W_v"].shape == (2 * H, IN) and views["b_v"].shape == (2 * H,)
    x, h = torch.randn(T, B, IN, dtype=torch.float64), torch.zeros(B, heads, head_dim, dtype=torch.float64)
    with torch.no_grad():
        views["R_v"].copy_(torch.randn(2, heads, head_dim, head_dim, dtype=torch.float64))
        weight, bias = views["W_v"].view(2, heads, head_dim, IN), views["b_v"].view(2, heads, head_dim)
        expected = []
        for now in x:
            recurrent = torch.einsum("knoi,bni->kbno", views["R_v"], h)
            a, q = torch.einsum("knoi,bi->kbno", weight, now) + recurrent + bias.unsqueeze(1)
            h = torch.tanh(a) * torch.sigmoid(q)
            expected.append(h.reshape(B, H))
        torch.testing.assert_close(layer(x)[0], torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_gradients_are_views_too() -> None:
    layer = package().Wide(IN, H, num_heads=2)
    layer(torch.randn(T, B, IN))[0].sum().backward()
    layer.gate_parameters(grad=True)["R_v"].fill_(3)
    assert layer.weight_hh_l0.grad.eq(3).all()


def test_a_single_step_has_the_same_views() -> None:
    step = package().WideCell(IN, H, num_heads=2)
    with torch.no_grad():
        step.gate_parameters()["R_v"][1, 0] = 7
    assert step.weight_hh.view(2, 2, 4, 4)[1, 0].eq(7).all() and step.weight_hh.eq(7).sum() == 16


COMPUTED: dict[str, Callable[[nn.Module], object]] = {
    "weight_norm": lambda layer: parametrizations.weight_norm(layer, "weight_hh_l0"),
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer, "weight_hh_l0"),
    "orthogonal": lambda layer: parametrizations.orthogonal(layer, "weight_hh_l0"),
    "prune": lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", 0.5),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("how", COMPUTED)
def test_there_are_no_views_of_what_is_computed(how: str) -> None:
    """What would be written into these would be lost."""
    layer = package().Wide(IN, H)
    COMPUTED[how](layer)
    for grad in (False, True):
        with pytest.raises(RuntimeError, match="weight_hh_l0 is computed from other tensors"):
            layer.gate_parameters(grad=grad)


@pytest.mark.parametrize("how", COMPUTED)
def test_what_is_computed_is_given_initial_values(how: str) -> None:
    """As torch.nn's layers do, `reset_parameters` reaches what the matrix is computed from."""
    torch.manual_seed(0)
    layer = package().Wide(IN, H).eval()  # in training, spectral_norm gives other values at every access
    COMPUTED[how](layer)
    x = torch.randn(1, B, IN)
    layer(x)
    before = layer.weight_hh_l0.detach().clone()
    layer.reset_parameters()
    layer(x)  # pruning computes the matrix in a call
    assert not torch.allclose(layer.weight_hh_l0, before)
