"""Zoneout, recurrent dropout and weight dropout on a GPU: the CPU's means, and masks that a seed replays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cuda.test_gpu import assert_close, pair, results

pytestmark = pytest.mark.gpu

ALL: dict[str, Any] = {"zoneout": {"h": 0.25}, "recurrent_dropout": 0.25, "weight_dropout": 0.25}


@pytest.mark.parametrize(
    ("name", "options"), [("LSTM", ALL), ("GRUv3", ALL), ("minGRU", {"zoneout": {"h": 0.25}}), ("LayerNormLSTM", ALL)]
)
def test_without_training(name: str, options: dict[str, Any]) -> None:
    layers = pair(name, 16, 64, bidirectional=True, **options)
    x = torch.randn(9, 5, 16)
    gpu, cpu = (results(layer.eval(), x) for layer in reversed(layers))
    assert_close(gpu, cpu, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_seeds(dtype: torch.dtype) -> None:
    """In training the fused kernels, and without waiting for the device; against eager torch with the same masks."""
    _, layer = pair("LSTM", 16, 64, **ALL)
    layer = layer.to(dtype)
    x = torch.randn(9, 5, 16, device="cuda", dtype=dtype)
    layer(x)
    found = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for backend in (None, None, "reference"):
            layer.backend = backend
            torch.manual_seed(0)
            found.append(layer(x)[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    first, again, eager = found
    assert torch.equal(first, again)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    assert (first - eager).abs().max() <= bound * eager.abs().max()
