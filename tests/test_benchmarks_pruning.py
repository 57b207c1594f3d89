"""The logic of benchmarks/sparse_training.py at tiny sizes on a CPU: how a model is pruned, and what is printed."""

from __future__ import annotations

import argparse
import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc

H, IN = 32, 64


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return import_module("sparse_training")


@pytest.fixture
def text(training: Any) -> Any:
    return training.Text(torch.device("cpu"))


def options(training: Any, **changes: Any) -> argparse.Namespace:
    small = {"hidden": H, "steps": 60, "batch": 8, "length": 24, "lr": 1e-2, "validation": 4000, "seeds": 1}
    return argparse.Namespace(**training.DEFAULTS | small | changes)


def run_of(training: Any, text: Any, given: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    model = training.Model(len(text.characters), given.hidden)
    starts = torch.randint(len(text.train) - given.length, (given.steps, given.batch))
    return training.Run(model, torch.optim.Adam(model.parameters()), starts, given)


@pytest.mark.long
def test_the_text_is_large_and_every_tenth_file_is_held_out(text: Any) -> None:
    parts = (text.train, text.validation)
    assert len(text.train) > 5_000_000 and 0.04 < len(text.validation) / len(text.train) < 0.25
    assert max(int(part.max()) for part in parts) == len(text.characters) - 1 < 127
    # The file of that class is in one part, as a text.
    found = ["class Thread:\n" in "".join(text.characters[i] for i in part.tolist()) for part in parts]
    assert found.count(True) == 1


def test_the_largest_elements_are_kept(training: Any) -> None:
    weight = torch.randn(4 * H, H)
    for density, kept in ((1, 4 * H * H), (0.5, 2 * H * H), (0.1, 410)):
        mask = training.largest(weight, density)
        assert mask.shape == weight.shape and mask.sum() == kept
        assert density == 1 or weight[mask].abs().min() > weight[~mask].abs().max()


def test_elements_leave_fast_and_then_slowly(training: Any) -> None:
    assert [training.density(progress, 0.1) for progress in (0, 0.5, 1)] == pytest.approx([1, 0.1 + 0.9 / 8, 0.1])


@pytest.mark.long
def test_a_model_is_pruned_while_it_trains(training: Any, text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(training)
    dense = run_of(training, text, given)
    untrained = training.validation_nats(dense.model, text, given)
    dense.train(text, 20)
    sparse = dense.fork()
    before = copy.deepcopy(dense.model.state_dict())
    own = sparse.model.recurrent.weight_hh_l0
    shares: list[float] = []
    largest = training.largest

    def noted(weight: torch.Tensor, share: float) -> torch.Tensor:
        shares.append(share)
        mask: torch.Tensor = largest(weight, share)
        return mask

    monkeypatch.setattr(training, "largest", noted)
    sparse.train_and_prune(text, 40)
    layer = sparse.model.recurrent
    assert shares == [training.density(progress, 0.1) for progress in (1 / 20, 11 / 20, 1)]
    sparse.train(text, 60)
    assert layer.weight_hh_l0 is own and sparse.done == 60
    assert layer.weight_hh_mask_l0.sum() == 410  # of 4096
    assert "planned for 10.0%" in layer.explain()

    # It computes what a dense layer with zeros computes, and has no gradients beside its mask.
    zeros: Any = rnncc.load("lstm").LSTM(IN, H)
    values = layer.state_dict()
    kept = values.pop("weight_hh_mask_l0")
    zeros.load_state_dict(values | {"weight_hh_l0": values["weight_hh_l0"] * kept})
    x = torch.randn(9, 2, IN)
    torch.testing.assert_close(layer(x)[0], zeros(x)[0])
    sparse.optimiser.zero_grad()
    layer(x)[0].square().sum().backward()
    assert not layer.weight_hh_l0.grad[~kept].any() and layer.weight_hh_l0.grad.any()

    # Training it has left the dense model alone, which goes on by itself.
    assert all(torch.equal(before[name], value) for name, value in dense.model.state_dict().items())
    dense.train(text, 60)
    losses = [training.validation_nats(run.model, text, given) for run in (dense, sparse)]
    assert all(loss < untrained - 1 for loss in losses) and dense.done == 60


def test_learning_rates(training: Any, text: Any) -> None:
    run = run_of(training, text, options(training, steps=1000))
    rates = []
    for run.done in range(1000):
        rates.append(run.rate())
    top = rates.index(max(rates))
    assert 45 <= top <= 50 and max(rates) == pytest.approx(1e-2, rel=0.01) and rates[-1] == pytest.approx(1e-4)
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)


def test_a_row_and_the_table(training: Any, text: Any) -> None:
    row = training.measure(3, text, options(training, steps=12, validation=1000))
    assert row["density"] == pytest.approx(410 / 4096) and row["dense_ms"] > 0 and row["sparse_ms"] > 0
    assert row["dense_nats"] != row["sparse_nats"] and row["seed"] == 3
    made = [row | {"seed": seed, "dense_nats": 1.5, "sparse_nats": 1.5 + seed / 100} for seed in (0, 1)]
    longer = made[0] | {"steps": 99, "sparse_nats": 9.0}
    lines = training.table([longer, *made])
    assert lines[3].split()[:7] == ["12", "x", str(row["B"]), "1", "1.5000", "1.5100", "+0.0100"]
    assert lines[-1] == "the pruned models lose +0.0050 nats a character in the mean of 2 seeds"
