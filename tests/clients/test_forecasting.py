"""pytorch-forecasting: its flexible LSTM and GRU, and networks with them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from rnncc.compat.nn import replace, survey
from tests.clients.page import close, example, is_rnncc

pytestmark = pytest.mark.clients
forecasting = pytest.importorskip("pytorch_forecasting")
pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def page() -> Any:
    return example("pytorch-forecasting")


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_ragged_batches_with_encoders_of_no_steps(page: Any, kind: str, batch_first: bool) -> None:
    theirs = getattr(page, kind)(3, 5, num_layers=2, batch_first=batch_first)
    ours: Any = page.accelerate(torch.nn.Sequential(copy.deepcopy(theirs)))[0]
    assert isinstance(ours, type(theirs)) and "nn_" in type(ours).__qualname__
    for lengths in ([4, 0, 2], [0, 0, 0], [1, 3, 3]):
        x, given = torch.randn(3, 4, 3), torch.tensor(lengths)
        x = x if batch_first else x.transpose(0, 1).contiguous()
        for layer in (ours, pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
            close(layer(x, lengths=given, enforce_sorted=False), theirs(x, lengths=given, enforce_sorted=False))
    state = ours.init_hidden_state(x)
    close(ours.repeat_interleave(state, 2), theirs.repeat_interleave(state, 2))


def data() -> Any:
    """Two series of 30 steps."""
    steps = [{"series": name, "t": t, "y": float((t % (5 + i)) - 2)} for i, name in enumerate("ab") for t in range(30)]
    normalizer = forecasting.data.GroupNormalizer(groups=["series"])
    return forecasting.TimeSeriesDataSet(
        pandas.DataFrame(steps), time_idx="t", target="y", group_ids=["series"], min_encoder_length=2,
        max_encoder_length=8, max_prediction_length=3, time_varying_unknown_reals=["y"], target_normalizer=normalizer,
    )  # fmt: skip


@pytest.mark.parametrize("network", ["RecurrentNetwork", "DeepAR", "TemporalFusionTransformer"])
def test_a_network_predicts_and_trains_as_before(page: Any, network: str) -> None:
    series = data()
    torch.manual_seed(0)
    theirs = getattr(forecasting, network).from_dataset(series, hidden_size=8, dropout=0.0)
    ours = page.accelerate(copy.deepcopy(theirs))
    assert not survey(ours) and sum("nn_" in type(module).__qualname__ for module in ours.modules()) >= 1
    x, target = next(iter(series.to_dataloader(train=True, batch_size=6, num_workers=0, shuffle=False)))
    curves = []
    for model in (ours, theirs):
        model.train()
        optimiser, losses = torch.optim.SGD(model.parameters(), 0.01), []
        for _ in range(3):
            loss = model.loss(model(x)["prediction"], target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        curves.append(losses)
    close(torch.tensor(curves[0]), torch.tensor(curves[1]), 1e-4)
    assert curves[0][-1] < curves[0][0]
    theirs.load_state_dict(ours.state_dict())
    for model in (ours, theirs):
        model.eval()
        torch.manual_seed(1)  # DeepAR draws paths
        model.found = model(x)["prediction"]
    close(ours.found, theirs.found, 1e-4)


def test_without_as_nn_their_class_is_refused(page: Any) -> None:
    with pytest.raises(ValueError, match=r"it derives from nn\.LSTM: give its class in subclasses= and as_nn=True"):
        replace(torch.nn.Sequential(page.LSTM(3, 5)))
    assert is_rnncc(replace(torch.nn.LSTM(3, 5)))
