"""xlstm's sLSTM: the layer, states handed on, a whole language model with blocks of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.clients.page import close, example

pytestmark = pytest.mark.clients
xlstm = pytest.importorskip("xlstm")


def drawn(model: Any) -> Any:
    """The model with random values in the parameters that begin at zero."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "slstm_cell" in name:
                value.normal_(0, 0.4)
    return model


@pytest.fixture(scope="module")
def page() -> Any:
    return example("xlstm")


@pytest.mark.parametrize(("heads", "kernel"), [(1, 0), (2, 4), (4, 4)])
def test_the_layer_and_its_gradients(page: Any, heads: int, kernel: int) -> None:
    config = page.sLSTMLayerConfig(embedding_dim=16, num_heads=heads, conv1d_kernel_size=kernel, backend="vanilla")
    theirs = drawn(page.sLSTMLayer(config))
    ours = copy.deepcopy(theirs)
    ours.slstm_cell.__class__ = page.Cell
    x = torch.randn(3, 9, 16)
    weights = torch.randn(3, 9, 16)
    found = []
    for layer in (ours, theirs):
        y, state = layer(x, return_last_state=True)
        ((y * weights).sum() + state["slstm_state"].square().sum()).backward()
        found.append([y, state["slstm_state"], *(value.grad for value in layer.parameters())])
    for own, other in zip(*found, strict=True):
        close(own, other, 2e-5)
    theirs.load_state_dict(ours.state_dict())


def test_chunks_and_steps_hand_on_the_state(page: Any) -> None:
    """Without the convolution, whose state after a sequence is not the one that the package's step takes."""
    config = page.sLSTMLayerConfig(embedding_dim=16, num_heads=2, conv1d_kernel_size=0, backend="vanilla")
    model = drawn(page.sLSTMLayer(config))
    model.slstm_cell.__class__ = page.Cell
    x = torch.randn(2, 7, 16)
    whole, last = model(x, return_last_state=True)
    y, state = model(x[:, :4], return_last_state=True)
    parts = [y]
    for t in range(4, 7):
        y, state = model.step(x[:, t : t + 1], **state)
        parts.append(y)
    close(torch.cat(parts, 1), whole)
    close(state["slstm_state"], last["slstm_state"])


def test_a_language_model_trains_as_before(page: Any) -> None:
    config = xlstm.xLSTMLMModelConfig(
        vocab_size=11, embedding_dim=16, num_blocks=2, context_length=12, slstm_at="all",
        slstm_block=xlstm.sLSTMBlockConfig(slstm=page.sLSTMLayerConfig(backend="vanilla", num_heads=2)),
    )  # fmt: skip
    theirs = drawn(xlstm.xLSTMLMModel(config))
    ours = copy.deepcopy(theirs)
    for module in ours.modules():
        if isinstance(module, page.sLSTMCell_vanilla):
            module.__class__ = page.Cell
    tokens = (torch.arange(4)[:, None] + 3 * torch.arange(13)) % 11
    curves = []
    for model in (ours, theirs):
        optimiser, losses = torch.optim.SGD(model.parameters(), 0.1), []
        for _ in range(4):
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
        curves.append(losses)
    close(torch.tensor(curves[0]), torch.tensor(curves[1]), 1e-4)
    assert curves[0][-1] < curves[0][0]
