"""rnncc/cuda/rows.cuh, compiled for the host: the operators that move and copy units, against torch. Needs no GPU."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rnncc.machine.paths import templates_dir
from rnncc.runtime.eager import rows
from tests.cpu.host import build, call

HOST = Path(__file__).resolve().parent / "host"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("rows")
    # Beside another place.cuh than its own.
    shutil.copy(templates_dir() / "include/rnncc/cuda/rows.cuh", folder)
    shutil.copy(HOST / "place.cuh", folder)
    return build("../cuda/rows.cpp", "generic", folder, "-Wno-unused-parameter", "-Wno-unknown-pragmas")


@pytest.mark.parametrize("places", [-40, -3, -1, 1, 2, 7, 40])
@pytest.mark.parametrize(("heads", "parts", "depth"), [(1, 1, 7), (1, 2, 4), (3, 1, 5), (3, 2, 4), (3, 1, 1)])
def test_units_move_within_heads(library: ctypes.CDLL, heads: int, parts: int, depth: int, places: int) -> None:
    given = torch.randn(heads * parts * depth, generator=torch.Generator().manual_seed(0))
    split = given.reshape(parts, heads, depth).transpose(0, 1).reshape(heads, -1)
    comes = torch.arange(parts * depth) - places
    for shifts in (0, 1):
        moved = split.roll(places, -1)
        if shifts:
            moved = moved.masked_fill((comes < 0) | (comes >= parts * depth), 0)
        expected = moved.reshape(heads, parts, depth).transpose(0, 1).reshape(-1)
        found, source = np.full(len(given), np.nan, np.float32), given.numpy().copy()
        call(library, "move_units", found, source, len(given), heads, parts, shifts, places)
        assert torch.equal(torch.from_numpy(found), expected)
        function = rows.row_shift if shifts else rows.row_roll
        assert torch.equal(function(given, places, heads, parts), expected)


@pytest.mark.parametrize(("groups", "heads"), [(1, 1), (1, 3), (2, 2), (2, 6), (3, 12)])
@pytest.mark.parametrize(("parts", "depth"), [(1, 5), (2, 4), (1, 1)])
def test_heads_share_copies_of_groups(library: ctypes.CDLL, groups: int, heads: int, parts: int, depth: int) -> None:
    given = torch.randn(groups * parts * depth, generator=torch.Generator().manual_seed(0))
    copies = given.reshape(groups, parts, depth).repeat_interleave(heads // groups, 0)
    expected = copies.transpose(0, 1).reshape(-1)
    found = np.full(heads * parts * depth, np.nan, np.float32)
    call(library, "copy_per_head", found, given.numpy().copy(), found.size, heads, parts, given.numel())
    assert torch.equal(torch.from_numpy(found), expected)
