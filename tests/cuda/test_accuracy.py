"""Errors over 1024 steps are at most 1.1 times those of cuDNN in the same dtype, both against float64."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cuda.harness import DEVICE, DTYPES, FUSED, Packages


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return import_module("gpu_accuracy")


def test_both_ways_are_the_same_calls(accuracy: Any, packages: Packages) -> None:
    """In float64, where nothing is rounded to speak of: the comparison itself, which needs no GPU."""
    for cell in ("lstm", "gru"):
        for part in accuracy.PARTS:
            sample = accuracy.draw(cell, 8, 3, torch.float64, part, 0, "cpu", 5)
            ours, peer = sample.ours(packages(cell, fused=False)), sample.torch_nn(torch.float64)
            assert {"y", "d_x", "d_weight_hh", "d_h0"} <= ours.keys() <= peer.keys()
            for name, value in ours.items():
                torch.testing.assert_close(value, peer[name])


@pytest.mark.gpu
@pytest.mark.parametrize("part", ["layer", "loop"])
@pytest.mark.parametrize(
    ("cell", "head_dim", "dtype"),
    [
        ("lstm", 256, "fp16"),
        ("lstm", 768, "bf16"),
        ("lstm", 256, "fp32"),
        ("lstm", 512, "fp32"),
        ("gru", 256, "bf16"),
        ("gru", 768, "fp16"),
        ("gru", 256, "fp32"),
        ("gru", 384, "fp32"),
    ],
)
def test_as_true_as_cudnn(cell: str, head_dim: int, dtype: str, part: str, accuracy: Any, packages: Packages) -> None:
    assert dtype == "fp32" or (head_dim, dtype) in FUSED[cell]
    errors = accuracy.compare(
        lambda seed: accuracy.draw(cell, head_dim, 16, DTYPES[dtype], part, seed, DEVICE), packages(cell), DTYPES[dtype]
    )
    # Shown with -rP, and where the test fails.
    rows = accuracy.rows_of(accuracy.Case(cell, head_dim, dtype, part), errors)
    print(f"{cell} {head_dim} {dtype} {part}: ours, cuDNN's, ratio", *accuracy.lines(rows), sep="\n")
    assert [row["of"] for row in rows if not accuracy.fits(row)] == []
