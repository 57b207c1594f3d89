"""rnncc/cpu/team.h: barriers hold, teams shrink instead of deadlocking, ranges cover everything once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cpu.host import build, call


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build("team_host.cpp", "generic", tmp_path_factory.mktemp("team"))


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("fake")
    return build("team_host.cpp", "generic", folder, "-DFAKE_POOL", "-Wl,-Bsymbolic")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _rounds(library: ctypes.CDLL, wanted: int, steps: int) -> int:
    slots = np.zeros(max(wanted, 1), np.int64)
    members = int(call(library, "team_rounds", wanted, steps, slots, restype=ctypes.c_int64))
    assert members >= 1
    # Members, and nobody else, did every step.
    np.testing.assert_array_equal(slots, [steps * (i + 1) if i < members else 0 for i in range(len(slots))])
    return members


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_team_has_torchs_threads(team: ctypes.CDLL, threads: None, count: int) -> None:
    torch.set_num_threads(count)
    assert call(team, "threads", restype=ctypes.c_int64) == count
    # More threads than cores is allowed, and slow: those that wait sleep.
    assert _rounds(team, count, 200) in range(1, count + 1)


def test_two_threads_really_meet(team: ctypes.CDLL, threads: None) -> None:
    torch.set_num_threads(2)
    # A loaded machine may start a team without its second thread now and then, not fifty times.
    assert max(_rounds(team, 2, 100) for _ in range(50)) == 2


def test_fewer_threads_than_wanted(team: ctypes.CDLL, threads: None) -> None:
    torch.set_num_threads(2)
    assert _rounds(team, 5, 100) in (1, 2)
    torch.set_num_threads(1)
    assert _rounds(team, 5, 100) == 1


def test_nested_regions_have_one_member(team: ctypes.CDLL, threads: None) -> None:
    torch.set_num_threads(2)
    slots = np.zeros(8 * 2, np.int64)
    assert call(team, "nested_rounds", 8, 2, 50, slots, restype=ctypes.c_int64) == 1


@pytest.mark.parametrize("chunk", [1, 2, 3, 4])
def test_ranges_that_never_run_at_once_make_a_team_of_one(fake: ctypes.CDLL, chunk: int) -> None:
    call(fake, "set_chunk", chunk)
    assert _rounds(fake, 4, 10) == 1


@pytest.mark.parametrize(("n", "grain"), [(0, 1), (1, 1), (7, 0), (1000, 1), (1000, 400), (5, 100)])
def test_parallel_ranges_cover_everything_once(team: ctypes.CDLL, n: int, grain: int) -> None:
    counts = np.zeros(n + 1, np.int32)
    assert call(team, "count_ranges", n, grain, counts, restype=ctypes.c_int32) == 0
    np.testing.assert_array_equal(counts, [1] * n + [0])


@pytest.mark.parametrize(("n", "unit"), [(0, 16), (1, 16), (50, 16), (64, 16), (1000, 6), (7, 1)])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_shares_are_adjacent_aligned_and_complete(team: ctypes.CDLL, n: int, unit: int, count: int) -> None:
    position = 0
    for index in range(count):
        out = np.zeros(2, np.int64)
        call(team, "share_of", n, unit, index, count, out)
        assert out[0] == position
        assert out[0] % unit == 0 or out[0] == n
        assert out[1] - out[0] <= (n // count // unit + 2) * unit
        position = int(out[1])
    assert position == n
