"""benchmarks/cpu_threads.py: its rows are of the threads that it was told, and it leaves torch's setting alone."""

from __future__ import annotations

from argparse import ArgumentTypeError
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return import_module("cpu_threads")


def test_a_row_for_each_number_of_threads(threads: Any) -> None:
    before = torch.get_num_threads()
    case = threads.Case("lstm", 3, 2, 8, torch.float32, True)
    rows = list(threads.measure(case, (1, 3), 1e-3))
    assert [row["threads"] for row in rows] == [1, 3] and torch.get_num_threads() == before
    assert all(row["ms"] > 0 and row["beside"] == "LSTM" and row["must"] == 1.1 for row in rows)
    line = threads.report([row | {"speedup": 0.5} for row in rows])
    assert line.count("0.50!") == 2 and "3x2x8" in line


def test_the_cases_have_what_torch_has_a_twin_of_in_both_dtypes(threads: Any) -> None:
    cases = list(threads.cases(("gru", "s6")))
    assert {case.dtype for case in cases if case.cell == "gru"} == {torch.float32, torch.bfloat16}
    assert {case.dtype for case in cases if case.cell == "s6"} == {torch.float32}
    assert {case.beside.__name__ for case in cases} == {"GRU", "LSTM"}


@pytest.mark.usefixtures("threads")
def test_what_is_no_number_of_threads() -> None:
    counts = import_module("cpu").counts
    assert counts("1,2, 16") == (1, 2, 16)
    for given in ("1,a", "0", "", "-2", "1,,2"):
        with pytest.raises(ArgumentTypeError, match="is no list of numbers of threads"):
            counts(given)
