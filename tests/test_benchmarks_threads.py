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


def test_rows_of_another_run_stay(threads: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.json"
    one = threads.Case("lstm", 3, 2, 8, torch.float32, False)
    cases = {"lstm": [one], "all": [one, threads.Case("gru", 3, 2, 8, torch.float32, False)]}
    monkeypatch.setattr(threads, "cases", lambda cells: cases[cells[0]])
    write = import_module("measure").write
    monkeypatch.setattr(threads, "environment", lambda: {"processor": "one"})
    monkeypatch.setattr(threads, "write", lambda path, rows: write(path, rows, {"processor": "one"}))
    first = threads.run(["all"], (1, 2), True, path)
    again = threads.run(["lstm"], (1,), True, path)
    assert [(row["cell"], row["threads"]) for row in again] == [("gru", 1), ("gru", 2), ("lstm", 1)]
    assert again[:2] == [row for row in first if row["cell"] == "gru"]
    assert threads.read(path, {"processor": "one"}) == again and threads.show(again).count("\n") == 3
    with pytest.raises(SystemExit, match="measured on something else"):
        threads.read(path, {"processor": "other"})
    for text in ("no JSON", '{"environment": {}, "results": [{"cell": "lstm"}]}', "[]"):
        path.write_text(text)
        with pytest.raises(SystemExit, match="has no rows of --threads"):
            threads.read(path)


def test_how_times_fall(threads: Any, tmp_path: Path) -> None:
    about = {"T": 256, "B": 32, "H": 256, "dtype": "float32", "backward": False, "beside": "LSTM", "must": None}
    rows = [
        about | {"cell": cell, "threads": count, "ms": 8 / count, "torch_ms": 9.0, "speedup": 1.0}
        for cell in ("lstm", "s6")
        for count in (1, 4)
    ]
    assert threads.scaling(rows, (256, 32, 256), False) == {
        "lstm": [(1, 1), (4, 4)], "nn.LSTM": [(1, 1), (4, 1)], "s6": [(1, 1), (4, 4)],
    }  # fmt: skip
    assert threads.scaling(rows, (256, 32, 256), True) == {}
    pytest.importorskip("matplotlib")
    threads.plot(rows, tmp_path / "made" / "scaling.png")
    assert (tmp_path / "made" / "scaling.png").read_bytes().startswith(b"\x89PNG")
