"""rnncc/cpu/sharing.h: how threads divide a loop."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests.cpu.host import build, call

Divided = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build("sharing_host.cpp", "generic", tmp_path_factory.mktemp("sharing"))


@pytest.fixture
def asked(library: ctypes.CDLL) -> Iterator[Divided]:
    """Of so many threads, how many a loop takes, and in how many groups."""
    before = torch.get_num_threads()

    def ask(function: str, threads: int, *sizes: int) -> tuple[int, int]:
        torch.set_num_threads(threads)
        found = np.zeros(2, np.int64)
        call(library, function, *sizes, found[:1], found[1:])
        return int(found[0]), int(found[1])

    yield ask
    torch.set_num_threads(before)


@pytest.fixture
def divided(asked: Divided) -> Divided:
    """That for an LSTM's loop, by its steps, batch, units and inputs."""

    def ask(threads: int, steps: int, batch: int, units: int, inputs: int = 0) -> tuple[int, int]:
        return asked("divided", threads, steps, batch, units, inputs)

    return ask


def test_how_threads_divide_a_loop(divided: Divided) -> None:
    assert divided(8, 1, 1, 8) == (1, 1)
    # A small loop, and one of a single entry: all divide its units.
    assert divided(8, 300, 1, 32) == (1, 1)
    assert divided(8, 300, 1, 512) == (8, 1)
    # The same small loop with a large product before it, for which all are there; and with a small one.
    assert divided(8, 300, 1, 32, 4096) == (8, 8)
    assert divided(8, 3, 1, 32, 8) == (1, 1)
    # Many entries for each thread.
    assert divided(8, 300, 512, 128) == (8, 8)
    # Some: groups of threads. A thread that had two entries of its own would wait for the matrices, and one that met
    # seven others for what they write.
    threads, groups = divided(8, 300, 16, 256)
    assert threads == 8 and groups in (2, 4)
    # There are never more groups than entries that they could have.
    for batch in range(1, 40):
        threads, groups = divided(12, 300, batch, 512)
        assert threads == 12 and (groups <= batch or groups == 12)


def test_threads_divide_the_heads_and_rows_of_a_matrix(asked: Divided) -> None:
    def divided(threads: int, batch: int, heads: int, rows: int = 64, columns: int = 64) -> tuple[int, int]:
        return asked("divided_by_heads", threads, 300, batch, heads, rows, columns)

    assert divided(8, 1, 1) == (8, 4), "two threads, for its two tiles of rows"
    assert divided(8, 1, 1, 512, 512) == (8, 1), "its rows"
    assert divided(8, 1, 1, 32, 8192) == (1, 1), "one tile"
    assert divided(8, 1, 8) == (8, 1)
    assert divided(8, 1, 4) == (8, 1), "two tiles of rows of each head"
    assert divided(8, 1, 4, 32, 128) == (8, 2), "four threads would have no head"
    assert divided(8, 2, 8) == (8, 2)
    assert divided(8, 64, 8) == (8, 8), "many entries for each"
    assert divided(8, 1, 8, 4, 4) == (1, 1), "small matrices, for which no other thread is worth its waits"
