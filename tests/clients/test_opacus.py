"""opacus: the gradients of each sequence, and training with noise."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.clients.page import close, example

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
opacus = pytest.importorskip("opacus")


@pytest.fixture(scope="module")
def page() -> Any:
    return example("opacus")


def test_the_gradients_of_each_sequence(page: Any) -> None:
    torch.manual_seed(0)
    model, x = page.Classifier(), torch.randn(3, 5, 4)
    alone = copy.deepcopy(model)
    private = opacus.GradSampleModule(model, loss_reduction="sum")
    private(x).square().sum().backward()
    for entry in range(3):
        alone.zero_grad()
        alone(x[entry : entry + 1]).square().sum().backward()
        for name, parameter in alone.named_parameters():
            close(model.get_parameter(name).grad_sample[entry], parameter.grad)


def test_dplstm_s_dictionary_loads(page: Any) -> None:
    theirs = opacus.layers.DPLSTM(4, 16, batch_first=True)
    ours, x = page.PrivateLSTM(4, 16, batch_first=True), torch.randn(3, 5, 4)
    ours.load_state_dict(theirs.state_dict())
    close(ours(x), theirs(x)[0])


def test_training_with_noise(page: Any) -> None:
    torch.manual_seed(0)
    model = page.Classifier()
    x = torch.randn(32, 6, 4)
    data = DataLoader(TensorDataset(x, (x.mean((1, 2)) > 0).long()), batch_size=16)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    engine = opacus.PrivacyEngine()
    private, optimiser, data = engine.make_private(
        module=model, optimizer=optimiser, data_loader=data, noise_multiplier=0.5, max_grad_norm=1.0
    )
    for given, target in data:
        optimiser.zero_grad()
        nn.functional.cross_entropy(private(given), target).backward()
        optimiser.step()
    assert engine.get_epsilon(1e-3) > 0
    assert not any(map(torch.equal, before, model.parameters()))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
