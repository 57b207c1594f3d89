"""What benchmarks/cpu_matrix.py compares computes the same: our layer, chunks and a loop, with their gradients."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("cpu_matrix")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("cell", "alone"), [("gla", False), ("deltanet", True), ("gla", True), ("deltanet", False)])
def test_all_three_have_the_same_gradients(cell: str, alone: bool, program: Any) -> None:
    made, wanted = program.calls(cell, 16, alone=alone)
    found = {name: torch.autograd.grad(call().sum(), wanted) for name, call in made.items()}
    for other in ("chunks", "loop"):
        for one, gradient in zip(found["rnncc"], found[other], strict=True):
            torch.testing.assert_close(one, gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))
