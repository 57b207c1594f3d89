"""snntorch: a linear layer and Leaky as one cell, with its surrogate gradient; LeakyParallel's nn.RNN."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from rnncc.compat.nn import replace
from tests.clients.page import close, example, is_rnncc

pytestmark = pytest.mark.clients
snn = pytest.importorskip("snntorch")
surrogate = pytest.importorskip("snntorch.surrogate")


@pytest.fixture(scope="module")
def page() -> Any:
    return example("snntorch")


def test_spikes_potentials_and_surrogate_gradients(page: Any) -> None:
    torch.manual_seed(0)
    ours = page.cells.Leaky(4, 16, beta=0.8)
    linear = nn.Linear(4, 16)
    neuron = snn.Leaky(beta=0.8, reset_mechanism="zero", spike_grad=surrogate.fast_sigmoid(25))
    own = ours.gate_parameters()
    with torch.no_grad():
        linear.weight.mul_(4)
        own["W_v"].copy_(linear.weight), own["b_v"].copy_(linear.bias)
    x = torch.randn(12, 3, 4)
    spikes, v = ours(x)
    potential, theirs = torch.zeros(3, 16), []
    for step in x:
        spike, potential = neuron(linear(step), potential)
        theirs.append(spike)
    expected = torch.stack(theirs)
    assert 0.05 < expected.mean() < 0.9 and torch.equal(spikes, expected)
    close(v[0], potential)
    weights = torch.randn_like(spikes)
    (spikes * weights).sum().backward()
    (expected * weights).sum().backward()  # type: ignore[no-untyped-call]
    slopes = ours.gate_parameters(grad=True)
    close(slopes["W_v"], linear.weight.grad, 1e-4)
    close(slopes["b_v"], linear.bias.grad, 1e-4)


@pytest.mark.parametrize("learn_beta", [False, True])
def test_leaky_parallel(learn_beta: bool) -> None:
    """Its hook keeps the gradient of the recurrent matrix diagonal; it goes along with the parameter."""
    torch.manual_seed(0)
    theirs = snn.LeakyParallel(4, 8, beta=0.7, learn_beta=learn_beta)
    ours: Any = copy.deepcopy(theirs)
    if learn_beta:  # a copy of a parameter has no hooks
        ours.rnn.weight_hh_l0.register_hook(ours.grad_hook)
    replace(ours, as_nn=True)
    assert is_rnncc(ours.rnn) and ours.rnn.weight_hh_l0.requires_grad == learn_beta
    x = torch.randn(9, 3, 4) * 3
    for model in (ours, theirs):
        model.spikes = model(x)
        model.spikes.sum().backward()
    assert torch.equal(ours.spikes, theirs.spikes) and theirs.spikes.mean() > 0.02
    for (name, own), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None), name
        if own.grad is not None:
            close(own.grad, other.grad)
    theirs.load_state_dict(ours.state_dict())
