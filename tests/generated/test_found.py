"""Cells that random ones were reduced to, each for a bug of the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.generated.grid_cells import given
from tests.generated.harness import judge, make

FILES = sorted(Path(__file__).with_name("found").glob("*.rnn"))


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Threads cost more than they give on values of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_reduced_cell(file: Path, heads: int) -> None:
    cell = given(file.read_text(encoding="utf-8"), heads, {"K": 4})
    package, cells = make([cell], compiled=False)
    outcome = judge(cell, package, cells[cell.name])
    assert (outcome.kind, outcome.detail) == ("ok", "")


@pytest.mark.long
def test_the_kernels_of_reduced_cells() -> None:
    drawn = [given(file.read_text(encoding="utf-8"), 2, {"K": 4}) for file in FILES]
    package, _ = make(drawn, compiled=True)
    outcomes = {each.name: judge(each, package, None) for each in drawn}
    assert {name: each.detail for name, each in outcomes.items() if each.kind != "ok"} == {}
