"""How the alternating kernel's work is divided when two directions run side by side. Needs no GPU."""

from __future__ import annotations

import ctypes
from dataclasses import astuple
from itertools import product

import pytest

from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule.alternating import _division
from tests.cpu.host import build
from tests.cuda.sources import write_sources

PARTS = 7  # of the parameter, as division.cpp has them


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("division")
    write_sources("lstm", folder)
    # Tables name the members that are not zero.
    flags = (f"-I{folder / 'src'}", "-Wno-missing-field-initializers")
    return build("../cuda/division.cpp", "generic", folder, *flags)


class Division:
    """A direction beside another (`half`) and one alone (`whole`): the CTAs, the bytes of shared memory, and for each
    joint the chunks that a warp adds up. `together`: whether one launch is expected to take no longer than two."""

    def __init__(
        self, library: ctypes.CDLL, head_dim: int, heads: int, batch: int, scalar_bytes: int, sms: int
    ) -> None:
        half, whole = ((ctypes.c_int64 * 16)() for _ in range(2))
        sizes = (ctypes.c_int64(size) for size in (head_dim, heads, batch))
        self.together = bool(library.divide(*sizes, scalar_bytes, sms, half, whole))
        self.half, self.whole = tuple(half), tuple(whole)


@pytest.mark.parametrize("sms", [2, 14, 82, 107, 108, 132])
def test_two_directions_are_resident_at_once_and_sum_in_the_same_order(sms: int, library: ctypes.CDLL) -> None:
    """Each product's terms are divided among warps alone, not among CTAs: results have the same bits."""
    sizes = ((1, 1), (15, 3), (64, 12), (320, 1), (768, 1), (1056, 1), (2048, 1))
    for (head_dim, heads), batch, scalar_bytes in product(sizes, (0, 1, 16, 48, 200), (2, 4)):
        found = Division(library, head_dim, heads, batch, scalar_bytes, sms)
        assert 2 * found.half[0] <= sms and found.whole[0] <= sms
        assert max(found.half[1], found.whole[1]) <= 227 * 1024
        assert found.half[2:] == found.whole[2:]


@pytest.mark.parametrize(
    ("head_dim", "heads", "batch", "scalar_bytes", "together"),
    [
        (64, 1, 16, 2, True),  # a few CTAs each
        (64, 12, 16, 2, True),
        (64, 1, 256, 4, True),
        (768, 1, 16, 4, True),  # tiles of twice as many units
        (1024, 1, 16, 2, True),
        (1056, 1, 64, 2, True),
        (1024, 1, 16, 4, False),  # weights of one direction fit shared memory, those of two do not
        (2048, 1, 16, 2, False),
        (320, 1, 48, 2, False),  # three CTAs share a tile's batch; with half of the SMs one CTA has all of it
    ],
)
def test_two_directions_share_a_launch_where_none_has_more_than_twice_the_work(
    head_dim: int, heads: int, batch: int, scalar_bytes: int, together: bool, library: ctypes.CDLL
) -> None:
    assert Division(library, head_dim, heads, batch, scalar_bytes, 132).together is together


@pytest.mark.parametrize("gpu", ["h200", "a100", "rtx4090"])
def test_times_are_expected_for_the_division_that_is_made(gpu: str, library: ctypes.CDLL) -> None:
    target, fields = GPUS[gpu], (ctypes.c_int64 * 4)()
    for head_dim, heads, batch in product(
        (8, 64, 72, 256, 768, 1024, 2048, 4096), (1, 2, 3, 12), (1, 16, 17, 64, 200, 1024)
    ):
        sizes = (ctypes.c_int64(size) for size in (head_dim, heads, batch))
        library.divide_stage(*sizes, target.sms, fields)
        assert tuple(fields) == astuple(_division(Problem(head_dim, heads, "bf16", batch), target))


def test_the_host_fills_in_what_the_device_reads(library: ctypes.CDLL) -> None:
    device, host = ((ctypes.c_int64 * PARTS)() for _ in range(2))
    library.layout(device, host)
    assert list(device) == list(host) and device[0] > 0


def test_shared_memory_begins_with_room_for_a_direction(library: ctypes.CDLL) -> None:
    device, host = ctypes.c_int64(), ctypes.c_int64()
    library.direction(ctypes.byref(device), ctypes.byref(host))
    assert device.value <= host.value < device.value + 128
