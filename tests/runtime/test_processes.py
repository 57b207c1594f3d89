"""Layers in other processes: forked ones after loops ran in parallel, spawned ones, DataLoader workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import rnncc
from tests.fresh import succeeds_in_a_fork

SECONDS = 60


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def make() -> tuple[Any, Tensor]:
    """A layer, and an input large enough for two threads."""
    torch.manual_seed(0)
    return rnncc.load("lstm").LSTM(32, 128), torch.randn(16, 32, 32)


def train(layer: Any, x: Tensor) -> list[Tensor]:
    output = layer(x)[0]
    return [output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))]


def infer(layer: Any, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [layer(x)[0]]


def test_a_forked_child_has_threads_of_its_own(two_threads: None) -> None:
    """GNU's OpenMP has a child wait for threads of its parent, which it has not."""
    layer, x = make()
    # Where there is a GPU, autograd refuses to run in a child of a process in which it ran.
    compute = infer if torch.cuda.is_available() else train
    expected = compute(layer, x)

    def same() -> bool:
        return all(map(torch.equal, compute(layer, x), expected))

    def same_by_threads() -> bool:
        return same() and len(list(Path("/proc/self/task").iterdir())) > 1

    for _ in range(2):
        assert succeeds_in_a_fork(same_by_threads, SECONDS)
    assert same()


class Outputs(Dataset[Tensor]):
    """What a layer makes of an input, in the process that asks."""

    def __init__(self, layer: Any, x: Tensor) -> None:
        self.layer, self.x = layer, x

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            output: Tensor = self.layer(self.x * index)[0]
        return output


def use_two_threads(worker: int) -> None:
    torch.set_num_threads(2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader(context: str, two_threads: None) -> None:
    """`spawn` pickles the layer; `fork` takes it along, after it ran in parallel."""
    outputs = Outputs(*make())
    expected = [outputs[i] for i in range(3)]
    loader: DataLoader[Tensor] = DataLoader(
        outputs, batch_size=None, num_workers=1, timeout=SECONDS, multiprocessing_context=context,
        worker_init_fn=use_two_threads,
    )  # fmt: skip
    assert all(map(torch.equal, loader, expected))
