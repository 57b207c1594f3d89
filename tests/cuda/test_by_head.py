"""Kernels that give each head of a batch entry to a CTA, on a GPU: layers give what they give on a CPU in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from rnncc.language.read import read_source
from rnncc.machine.paths import locate
from tests.compiling import front
from tests.cuda.harness import launches_of
from tests.cuda.test_gpu import results

pytestmark = pytest.mark.gpu

# The hidden size and the number of heads: odd numbers, and tiles that are full.
SIZES = ((3, 1), (21, 3), (16, 1), (256, 4), (130, 2), (128, 1))
TOO_LARGE = (129, 1)


@cache
def class_of(name: str) -> Any:
    ((cell, _),) = front(read_source(locate(name)))
    return getattr(rnncc.load(name), cell.name)


def compare(name: str, hidden: int, heads: int, x: Tensor, runs: bool, /, **given: Any) -> None:
    """What a layer gives on a GPU and on a CPU. `runs`: whether its kernels are those that this file is about."""
    torch.manual_seed(0)
    options = {key: given.pop(key) for key in ("bidirectional", "batch_first") if key in given}
    exact = class_of(name)(x.shape[-1], hidden, num_heads=heads, **options).double()
    layer = class_of(name)(x.shape[-1], hidden, num_heads=heads, device="cuda", **options)
    layer.load_state_dict(exact.state_dict())
    on_gpu = {key: value.cuda() if isinstance(value, Tensor) else value for key, value in given.items()}
    expected = results(exact, x.double(), **given)
    found = results(layer, x, **on_gpu)
    errors = {key: verify.relative_error(value, expected[key]) for key, value in found.items()}
    assert {key: error for key, error in errors.items() if not error <= 1e-5} == {}
    with torch.no_grad():
        names = launches_of(lambda: layer(x.cuda(), **on_gpu))
    assert any("_by_head_" in launched for launched in names) == runs


@pytest.mark.parametrize("name", ["gateddeltanet", "ttt_linear", "mlstm", "rwkv7"])
@pytest.mark.parametrize(("hidden", "heads"), [*SIZES, TOO_LARGE])
def test_sizes(name: str, hidden: int, heads: int) -> None:
    for steps, batch in ((1, 1), (2, 5), (33, 3)):
        compare(name, hidden, heads, torch.randn(steps, batch, 9), (hidden, heads) != TOO_LARGE)


def test_a_head_of_one_element() -> None:
    """Other cells divide by the length of one number, and have no gradient there but what rounding leaves."""
    for steps, batch in ((1, 1), (2, 5), (33, 3)):
        compare("mlstm", 1, 1, torch.randn(steps, batch, 9), True)


@pytest.mark.parametrize("name", ["gateddeltanet", "gsa", "titans"])
def test_lengths_resets_directions_and_layouts(name: str) -> None:
    x, steps = torch.randn(11, 4, 6), torch.tensor([11, 0, 4, 7])
    compare(name, 24, 2, x, True, lengths=steps)
    compare(name, 24, 2, x, True, lengths=steps, reset=torch.rand(11, 4) < 0.2)
    compare(name, 24, 2, x, True, bidirectional=True, lengths=steps)
    compare(name, 24, 2, x.transpose(0, 1).contiguous(), True, batch_first=True)
    compare(name, 24, 2, torch.randn(22, 6), True, offsets=torch.tensor([0, 11, 11, 15, 22]), max_length=11)
