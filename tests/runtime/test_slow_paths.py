"""A call that goes through the eager fallback, though nobody asked for that, says so once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import rnncc

REASON = "this package has no kernels for the device mps"
SAID = f"LSTM: the eager fallback runs, which is many times slower: {REASON} \\(RNNCC_LOG=error hides"


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The LSTM's `choice`, as if all tensors were on a device without kernels."""
    module = sys.modules[f"{rnncc.load('lstm').LSTM.__module__.rpartition('.')[0]}._runtime.kernels.choice"]
    choose = module.choose_kernels
    device = SimpleNamespace(is_cpu=False, is_cuda=False, is_meta=False, device=SimpleNamespace(type="mps"))
    monkeypatch.delenv("RNNCC_LOG", raising=False)
    monkeypatch.setattr(module, "choose_kernels", lambda kernels, x, *rest: choose(kernels, device, *rest))
    # The op of a whole layer does not ask: it takes tensors on the CPU alone.
    monkeypatch.setattr(
        sys.modules[module.__name__.replace("kernels.choice", "modules.base")], "run_whole", lambda *_: None
    )
    module._TOLD.clear()
    yield module
    module._TOLD.clear()
    torch._dynamo.reset()


def calls(layer: torch.nn.Module) -> list[Any]:
    cells = rnncc.load("lstm")
    functional = lambda x: cells.lstm(torch.zeros(len(x), 2, 32), torch.zeros(32, 8), hidden_size=8)  # noqa: E731
    return [layer, torch.compile(layer, backend="eager", fullgraph=True), functional]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [0, 1, 2], ids=["eager", "compiled", "functional"])
def test_a_long_call_through_the_reference_is_one_warning(
    how: int, choice: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 32
    if how == 1:  # a compiler takes seconds for so many steps
        steps = 3
        package = sys.modules[choice.__name__.replace("kernels.choice", "package")]
        kernels, missing = package.kernels()
        monkeypatch.setattr(package, "kernels", lambda: (replace(kernels, long_call_steps=steps), missing))
    call = calls(rnncc.load("lstm").LSTM(4, 8))[how]
    with warnings.catch_warnings(action="error"):
        call(torch.zeros(steps - 1, 2, 4))
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match=SAID) as caught:
        call(torch.zeros(steps, 2, 4))
    assert len(caught) == 1
    with warnings.catch_warnings(action="error"):
        call(torch.zeros(steps + 1, 2, 4))


def test_who_asked_for_it_hears_nothing(choice: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(action="error"):
        rnncc.load("lstm").LSTM(4, 8, backend="reference")(torch.zeros(32, 2, 4))
        monkeypatch.setenv("RNNCC_LOG", "error")
        rnncc.load("lstm").LSTM(4, 8)(torch.zeros(32, 2, 4))


def test_transforms_hear_nothing() -> None:
    layer = rnncc.load("lstm").LSTM(4, 8)
    with warnings.catch_warnings(action="error"):
        torch.func.vmap(lambda x: layer(x)[0])(torch.zeros(2, 32, 2, 4))
