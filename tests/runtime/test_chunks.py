"""Chunks of a sequence, their states handed on, give the bits of one pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.test_layers import layer_class, tuple_of

CHUNKED = [("lstm", "LSTM"), ("gru", "GRU"), ("elman", "Elman"), ("slstm", "sLSTM")]


def chunks_are_one_pass(layer: Any, x: Tensor) -> None:
    """Chunks of any size, one step to four, give the bits of one pass. Products of few rows take another way."""
    whole, last = layer(x)
    for size in (1, 2, 3, 4):
        outputs: list[Tensor] = []
        state: Any = None
        for first in range(0, x.shape[0], size):
            output, state = layer(x[first : first + size], state)
            outputs.append(output)
        assert torch.equal(whole, torch.cat(outputs))
        assert all(torch.equal(a, b) for a, b in zip(tuple_of(last), tuple_of(state), strict=True))


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize(("file", "name"), CHUNKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_equal_one_pass_bitwise(file: str, name: str, dtype: torch.dtype, batch: int) -> None:
    layer = layer_class(file, name)(19, 33, 2, dtype=dtype)
    chunks_are_one_pass(layer, torch.randn(8, batch, 19, dtype=dtype))


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize(("file", "name"), CHUNKED)
def test_bfloat16_chunks_are_exact_with_a_float32_state(file: str, name: str, batch: int) -> None:
    layer = layer_class(file, name)(19, 33, dtype=torch.bfloat16, state_dtype=torch.float32)
    x = torch.randn(8, batch, 19, dtype=torch.bfloat16)
    output, last = layer(x)
    assert output.dtype == torch.bfloat16 and all(state.dtype == torch.float32 for state in tuple_of(last))
    chunks_are_one_pass(layer, x)
