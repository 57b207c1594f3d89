"""The logic of benchmarks/gpu_model.py, which needs no GPU: what is measured, and what is printed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return import_module("gpu_model")


def test_words_choose_cases(model: Any) -> None:
    everything = model.select([], quick=False)
    assert len(everything) == 13 and ("cudnn", "compiled") not in everything
    assert model.select([], quick=True) == [("slstm", way) for way in model.WAYS]
    assert model.select(["lstm", "compiled"], quick=True) == [("lstm", "compiled")]
    with pytest.raises(ValueError, match="unknown: gru; mixers are attention"):
        model.select(["gru"], quick=False)


@pytest.mark.parametrize("name", ["attention", "lstm", "mingru"])
def test_the_model_is_a_language_model(name: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal: a later token changes no earlier prediction, and every parameter has a gradient."""
    for attribute, value in {"LAYERS": 2, "WIDTH": 24, "HEADS": 3}.items():
        monkeypatch.setattr(model, attribute, value)
    torch.manual_seed(0)
    made = model.Model(name)
    tokens = torch.randint(256, (6, 2))
    made(tokens).backward()
    assert all(parameter.grad is not None for parameter in made.parameters())
    changed = tokens.clone()
    changed[-1] = (changed[-1] + 1) % 256
    before, after = (made.blocks(made.embedding(given)) for given in (tokens, changed))
    torch.testing.assert_close(before[:-1], after[:-1])
    assert not torch.allclose(before[-1], after[-1])


def test_the_table_compares(model: Any) -> None:
    rows = [
        {"mixer": "lstm", "way": way, "step_ms": ms, "tokens_per_s": 1e5, "first_s": 1.0, "peak_gib": 2.0, "fused": 24,
         "alternating": 0}
        for way, ms in (("warmed", 30.0), ("compiled", 33.0))
    ]  # fmt: skip
    lines = model.table([*rows, {"mixer": "cudnn", "way": "uncompiled", "error": "no cuDNN"}])
    assert lines[1].split()[:3] == ["lstm", "compiled", "33.0"] and lines[3].endswith("no cuDNN")
    assert lines[-1] == "lstm: compiled / warmed 1.100"
