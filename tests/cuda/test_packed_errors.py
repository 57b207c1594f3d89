"""Packed sequences on a GPU that are empty or wrong."""

from __future__ import annotations

import pytest
import torch

from tests.cuda.test_gpu import pair
from tests.cuda.test_packed import offsets_of

pytestmark = pytest.mark.gpu


def test_no_rows() -> None:
    _, layer = pair("LSTM", 4, 8)
    hx = tuple(torch.randn(1, 3, 8, device="cuda") for _ in range(2))
    output, last = layer(
        torch.empty(0, 4, device="cuda"), hx, offsets=torch.zeros(4, device="cuda").int(), max_length=7
    )
    assert output.shape == (0, 8) and all(torch.equal(a, b) for a, b in zip(last, hx, strict=True))


def test_errors() -> None:
    _, layer = pair("GRU", 4, 8)
    rows, offsets = torch.randn(5, 4, device="cuda"), torch.tensor([0, 5], device="cuda")
    with pytest.raises(ValueError, match="need max_length="):
        layer(rows, offsets=offsets)
    with pytest.raises(ValueError, match="max_length is 0, but there are 5 rows"):
        layer(rows, offsets=offsets, max_length=0)


@pytest.mark.parametrize("name", ["LSTM", "GRUv3", "minGRU", "IndRNN", "TGRU"])
def test_wrong_offsets_stay_within_the_rows(name: str) -> None:
    """They cannot be looked at: what comes of them means nothing, but nothing breaks."""
    _, layer = pair(name, 16, 32, bidirectional=True)
    rows, good = torch.randn(50, 16, device="cuda"), offsets_of((20, 30)).cuda()
    with torch.no_grad():
        expected = layer(rows, offsets=good, max_length=30)[0]
        for wrong in ((0, 1 << 40, 50), (-7, 20, 900), (30, 10, 50), (0, 50, 50), (9, 20, 40)):
            layer(rows, offsets=torch.tensor(wrong, device="cuda"), max_length=9)
        torch.cuda.synchronize()
        assert torch.equal(layer(rows, offsets=good, max_length=30)[0], expected)
