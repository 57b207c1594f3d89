"""The order of words in sparse kernels' lists (sparse_order.cuh): how often lanes that load at once meet in a bank."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from tests.emulated.compiled import library_of

SOURCE = Path(__file__).with_name("order.cpp")
LANES = 32
BANKS = (4, 8, 16)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """order.cpp, compiled for the CPU."""
    return ctypes.CDLL(str(library_of(SOURCE, tmp_path_factory.mktemp("order"))))


def ordered(library: ctypes.CDLL, words: torch.Tensor, slots: int) -> torch.Tensor:
    """The banks of all lanes in each slot. `words`: how many words of each lane there are in each bank. All of them
    have a slot, and the others are padding."""
    banks = words.shape[1]
    given = words.to(torch.int32).contiguous()
    order = torch.full((slots, LANES), -1, dtype=torch.int32)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (given, order)]
    assert library.order(banks, slots, *pointers) == 0
    taken = (order[..., None] == torch.arange(banks)).sum(0)
    assert (taken >= words).all() and (taken.sum(1) == slots).all()
    return order


def times(order: torch.Tensor, banks: int) -> float:
    """How many times longer all slots take than without conflicts: in a slot of a group, as many accesses follow each
    other as lanes have operands in the same bank."""
    groups = order.view(len(order), LANES // banks, banks)
    met = (groups[..., None] == torch.arange(banks)).sum(2)
    return float(met.amax(2).float().mean())


def drawn(lists: int, words: int, banks: int) -> torch.Tensor:
    """Lists of so many words in banks that are drawn."""
    drawn_banks = torch.randint(banks, (lists, words))
    return (drawn_banks[..., None] == torch.arange(banks)).sum(1)


@pytest.mark.parametrize("banks", BANKS)
def test_lists_that_meet_all_banks_equally_often_have_no_conflicts(library: ctypes.CDLL, banks: int) -> None:
    torch.manual_seed(0)
    slots = 40
    words = torch.zeros(LANES, banks, dtype=torch.int64)
    for first in range(0, LANES, banks):
        for _ in range(slots):
            words[torch.arange(first, first + banks), torch.randperm(banks)] += 1
    assert times(ordered(library, words, slots), banks) == 1


@pytest.mark.parametrize("banks", BANKS)
def test_padding_goes_where_words_are_few(library: ctypes.CDLL, banks: int) -> None:
    """Banks lack as many words as lists do. Padding fills both, so that there are no conflicts."""
    torch.manual_seed(0)
    slots = 40
    words = torch.zeros(LANES, banks, dtype=torch.int64)
    for first in range(0, LANES, banks):
        for _ in range(slots):
            here = torch.rand(banks) < 0.9
            words[torch.arange(first, first + banks)[here], torch.randperm(banks)[here]] += 1
    assert (words.sum(1) < slots).any()
    assert times(ordered(library, words, slots), banks) == 1


# A greedy order (lane after lane, the free bank with most words left) takes 1.20, 1.39 and 1.59 times as long as
# without conflicts. No order is better than the fullest bank allows: 1.14, 1.20 and 1.25.
@pytest.mark.parametrize(("banks", "most"), [(4, 1.18), (8, 1.26), (16, 1.32)])
def test_drawn_lists_have_few_conflicts(library: ctypes.CDLL, banks: int, most: float) -> None:
    torch.manual_seed(1)
    slots, draws = 52, 16
    all_times = [times(ordered(library, drawn(LANES, slots, banks), slots), banks) for _ in range(draws)]
    assert 1 < sum(all_times) / draws < most


@pytest.mark.parametrize(("banks", "most"), [(8, 1.23), (16, 1.27)])
def test_lists_that_are_padded_have_fewer_conflicts(library: ctypes.CDLL, banks: int, most: float) -> None:
    torch.manual_seed(1)
    slots, draws = 52, 16
    all_times = []
    for _ in range(draws):
        words = torch.cat([drawn(1, int(length), banks) for length in torch.randint(slots - 5, slots + 1, (LANES,))])
        all_times.append(times(ordered(library, words, slots), banks))
    assert 1 < sum(all_times) / draws < most


@pytest.mark.parametrize("banks", BANKS)
@pytest.mark.parametrize("slots", [4, 252])
def test_lists_that_differ_as_much_as_can_be(library: ctypes.CDLL, banks: int, slots: int) -> None:
    """All words of a list in one bank, all lists in one bank, and lists without words."""
    one_bank = torch.zeros(LANES, banks, dtype=torch.int64)
    one_bank[:, 1] = slots
    assert times(ordered(library, one_bank, slots), banks) == banks
    own_bank = torch.zeros(LANES, banks, dtype=torch.int64)
    own_bank[torch.arange(LANES), torch.arange(LANES) % banks] = slots
    assert times(ordered(library, own_bank, slots), banks) == 1
    some = one_bank.clone()
    some[torch.arange(LANES) % 2 == 0] = 0
    assert times(ordered(library, some, slots), banks) == banks / 2
