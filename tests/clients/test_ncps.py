"""ncps' CfC: times between steps, states, both layouts, training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.clients.page import close, example

pytestmark = pytest.mark.clients
ncps = pytest.importorskip("ncps.torch")


@pytest.fixture(scope="module")
def page() -> Any:
    return example("ncps")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("timed", [True, False])
def test_values_states_and_gradients(page: Any, batch_first: bool, timed: bool) -> None:
    torch.manual_seed(0)
    theirs = ncps.CfC(4, 8, backbone_units=12, batch_first=batch_first)
    ours = page.cfc(theirs)
    x, state = torch.randn(3, 6, 4, requires_grad=True), torch.randn(3, 8)
    times = torch.rand(3, 6, 1) if timed else None

    def across(value: Tensor) -> Tensor:
        return value if batch_first else value.transpose(0, 1)

    given = {"ts": across(times)} if times is not None else {}
    y, last = ours(across(x), state[None], **given)
    # ncps squeezes a step's times to [B], and multiplies [B, H] by them: they have to be [B, H] wide.
    spans = None if times is None else across(times.expand(3, 6, 8))
    expected, their_last = theirs(across(x), state, spans)
    close(y, expected)
    close(last[0], their_last)
    (slope,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    (their_slope,) = torch.autograd.grad(expected.square().sum(), x, retain_graph=True)
    close(slope, their_slope)
    y.square().sum().backward()
    expected.square().sum().backward()
    own, cell = ours.gate_parameters(grad=True), theirs.rnn_cell
    close(own["W_z"], cell.backbone[0].weight.grad[:, :4])
    close(own["R_z"][0], cell.backbone[0].weight.grad[:, 4:])
    for name, linear in {"f": cell.ff1, "g": cell.ff2, "a": cell.time_a, "c": cell.time_b}.items():
        close(own[f"M_{name}"][0], linear.weight.grad)
        close(own[f"b_{name}"], linear.bias.grad)


def test_chunks_and_training(page: Any) -> None:
    theirs = ncps.CfC(2, 8)
    ours = page.cfc(theirs)
    x = torch.randn(3, 10, 2)
    y, state = ours(x[:, :4])
    rest, last = ours(x[:, 4:], state)
    expected, their_last = theirs(x)
    close(torch.cat([y, rest], 1), expected)
    close(last[0], their_last)
    curves = []
    for layer in (ours, theirs):
        optimiser, losses = torch.optim.SGD(layer.parameters(), 0.05), []
        for _ in range(5):
            loss = (layer(x)[0].sum(-1) - x.sum(-1)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        curves.append(losses)
    close(torch.tensor(curves[0]), torch.tensor(curves[1]), 1e-4)
    assert curves[0][-1] < curves[0][0]
