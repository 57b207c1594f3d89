"""Buffers: what a layer keeps, moves and saves, and does not train."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import pytest
import torch

import rnncc
from rnncc.language.source import Source
from rnncc.runtime.modules.parameters import rescale
from tests.compiling import front, kernel_plan
from tests.packages import float64_package

TEXT = """
cell Echo
state h
const leak = 0.3
buffer A: matrix = spectral(0.9), In: matrix = uniform(-1, 1)
buffer s: vector = 0.5, e: scalar = 2
h[t] = (1 - leak)*h[t-1] + leak*tanh(In@x + e*(A@h[t-1]) + s*h[t-1] + b)

cell Sparse
state h
buffer A: sparse(density=0.25) = spectral(1.5)
h[t] = tanh(W@x + A@h[t-1])

cell Fixed
state h
buffer A: matrix = orthogonal, s: vector = 1
Q = A@diag(s)
h[t] = tanh(W@x + Q@h[t-1])

cell Start
state h
weights R: matrix
init R = spectral(0.5)
i, f = R@h[t-1] + W@x
h[t] = tanh(i*f)
"""


@cache
def package() -> Any:
    return float64_package(TEXT, "buffers")


def radius(matrix: torch.Tensor) -> torch.Tensor:
    """The spectral radius of each matrix."""
    largest: torch.Tensor = torch.linalg.eigvals(matrix.double()).abs().amax(-1)
    return largest


@pytest.mark.usefixtures("float64_first")
def test_a_buffer_is_saved_and_moved_and_no_parameter() -> None:
    layer = package().Echo(3, 8, num_layers=2, bidirectional=True)
    assert [name for name, _ in layer.named_parameters()] == [
        f"bias_ih_l{number}{reverse}" for number in range(2) for reverse in ("", "_reverse")
    ]
    buffers = {name: tuple(tensor.shape) for name, tensor in layer.named_buffers()}
    own = {"A_l1_reverse": (8, 8), "In_l1_reverse": (8, 16), "s_l1_reverse": (8,), "e_l1_reverse": (1,)}
    assert own.items() <= buffers.items()
    assert set(buffers) < set(layer.state_dict())
    assert set(layer.gate_parameters(1, reverse=True)) == {"A", "In", "s", "e", "b_h"}
    assert layer.double().A_l0.dtype == torch.float64

    x = torch.randn(5, 2, 3, dtype=torch.float64)
    again = package().Echo(3, 8, num_layers=2, bidirectional=True, dtype=torch.float64)
    again.load_state_dict(layer.state_dict())
    for other in (again, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], layer(x)[0])
    (single,) = [package().EchoCell(3, 8, dtype=torch.float64)]
    assert set(single.state_dict()) == {"A", "In", "s", "e", "bias_ih"}


@pytest.mark.parametrize("backend", [None, "reference"])
def test_no_gradient_of_a_buffer_is_computed(backend: str | None) -> None:
    """Not even where a caller asks for one: what trains is a param."""
    layer = package().Echo(3, 8, backend=backend, dtype=torch.float64)
    layer.A_l0.requires_grad_(True)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    layer(x)[0].sum().backward()
    assert layer.A_l0.grad is None and layer.bias_ih_l0.grad is not None and x.grad is not None
    assert layer.gate_parameters(grad=True)["A"] is None
    given = torch.randn(5, 2, 8, dtype=torch.float64)
    weights = [layer.A_l0, layer.e_l0, layer.s_l0]
    assert not package().echo(given, weights, hidden_size=8, backend=backend)[0].requires_grad


def test_the_backward_holds_no_product_for_a_buffer() -> None:
    """Nor for a matrix that is made of buffers alone."""
    outers = {}
    for cell, _ in front(Source("buffers.rnn", TEXT)):
        outers[cell.name] = [len(loop.backward.step.outers) for loop in kernel_plan(cell).loops]
    assert outers == {"Echo": [0, 0], "Sparse": [0, 0], "Fixed": [0, 0], "Start": [2, 2]}


@pytest.mark.parametrize("heads", [1, 2])
def test_spectral_is_the_radius_of_each_gate_and_head(heads: int) -> None:
    layer = package().Echo(3, 8, num_heads=heads, num_layers=2, dtype=torch.float64)
    for number in range(2):
        found = radius(layer.gate_parameters(number)["A"])
        torch.testing.assert_close(found, torch.full_like(found, 0.9))
        assert found.numel() == heads
    start = package().Start(3, 8, num_heads=heads, dtype=torch.float64).gate_parameters()
    for gate in ("R_i", "R_f"):
        found = radius(start[gate])
        torch.testing.assert_close(found, torch.full_like(found, 0.5))


def test_spectral_draws_normal_numbers() -> None:
    torch.manual_seed(3)
    matrix = package().Echo(3, 8).A_l0
    torch.manual_seed(3)
    torch.empty(8).uniform_()  # the bias is drawn first
    drawn = torch.empty(8, 8).normal_()
    torch.testing.assert_close(matrix, (drawn * (0.9 / radius(drawn))).float())


def test_the_radius_is_that_of_what_a_mask_leaves() -> None:
    """Of a matrix without eigenvalues but 0 nothing can be said: it stays."""
    torch.manual_seed(0)
    layer = package().Sparse(3, 16)
    assert layer.A_mask_l0.sum() == 4 * 16 and not layer.A_l0[~layer.A_mask_l0].any()
    torch.testing.assert_close(radius(layer.A_l0), torch.tensor(1.5).double())
    one = package().Sparse(3, 4)
    one.A_mask_l0.fill_(False)
    one.A_mask_l0[0, 1] = True
    (parameter,) = (p for p in one.spec.parameters if p.name == "A")
    with torch.no_grad():
        one.A_l0.copy_(torch.eye(4).roll(1, 1).triu(1))
    before = one.A_l0.clone()
    rescale(parameter, one._sizes[0], one.A_l0)
    assert torch.equal(one.A_l0, before)


def test_layers_on_other_devices_and_in_16_bits() -> None:
    assert package().Echo(3, 8, device="meta").A_l0.is_meta
    layer = package().Echo(3, 64, dtype=torch.bfloat16)
    torch.testing.assert_close(radius(layer.A_l0), torch.tensor(0.9).double(), atol=0.02, rtol=0)


def test_a_value_may_be_called_buffer() -> None:
    text = "cell Named\nstate h\nbuffer = W@x\nh[t] = tanh(buffer + R@h[t-1])\n"
    module = rnncc.compile(text, "named")
    assert module.Named(3, 4)(torch.randn(2, 1, 3))[0].shape == (2, 1, 4)
    kept = rnncc.compile("cell Kept\nstate buffer\nbuffer[t] = tanh(W@x + R@buffer[t-1])\n", "kept")
    assert kept.Kept(3, 4)(torch.randn(2, 1, 3))[0].shape == (2, 1, 4)
