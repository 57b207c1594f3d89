"""Tables that are made from benchmarks/results and from the shipped cells say what these say now."""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any

import pytest

from rnncc.machine.paths import shipped_cells
from tests.conftest import Golden
from tests.docs.pages import DOCS, ROOT, headings, prose, read

FOLDER = ROOT / "benchmarks"
TABLED = ("README.md", "docs/cells.md", "docs/results.md")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("report")


@pytest.mark.parametrize("name", TABLED)
def test_tables_are_up_to_date(name: str, report: Any, golden: Golden) -> None:
    path = ROOT / name
    assert path in report.documents()
    golden(path, report.filled(read(path)))


def test_every_table_stands_on_one_page(report: Any) -> None:
    assert {path.relative_to(ROOT).as_posix() for path in report.documents()} == set(TABLED)
    found = [name for path in report.documents() for name in report.names(read(path))]
    assert sorted(found) == sorted(report.TABLES)
    with pytest.raises(KeyError, match="nothing"):
        report.filled("<!-- table: nothing -->\n<!-- end -->\n")


def test_every_file_of_results_is_told_of(report: Any) -> None:
    files = {path.stem for path in (FOLDER / "results").glob("*.json")}
    text = import_module("report_text")
    # Whatever a benchmark writes has a command; what nobody has run yet is no file.
    assert files <= set(text.COMMANDS) and set(text.COMMANDS) - files <= {"gpu_flashrnn"}
    page = prose(DOCS / "results.md")
    assert not [name for name in text.COMMANDS if f"(`{name}.json`" not in page and f" `{name}.json`" not in page]
    for command in filter(None, text.COMMANDS.values()):
        script = command.split()[0]
        assert script == "flashrnn.py" or (FOLDER / script).is_file(), script


def test_the_headline_says_what_was_measured() -> None:
    """Read from the README and from the file, past the generator."""
    rows = json.loads(read(FOLDER / "results" / "gpu_dense.json"))["results"]
    wanted = {"cell": "lstm", "units": 2048, "heads": 1, "columns": 128, "steps": 1024, "dtype": "bf16"}
    line = next(
        line for line in read(ROOT / "README.md").splitlines() if line.startswith("| H200: LSTM of 2048, batch")
    )
    _, _, ours, theirs, *_ = (cell.strip() for cell in line.split("|"))
    for who, cell in (("rnncc", ours), ("cudnn", theirs)):
        for run, shown in zip(("fw", "fw+bw"), cell.split(", "), strict=True):
            like = wanted | {"who": who, "run": run}
            if who == "cudnn":
                del like["dtype"]
            times = [
                row["queued_ms"] - row.get("input_queued_ms", 0)
                for row in rows
                if all(row[key] == value for key, value in like.items())
            ]
            assert float(shown.strip("*")) == pytest.approx(min(times), rel=0.005)
    # What is faster is bold, whoever it is.
    assert "**" in ours and "**" in theirs


def test_figures_of_flashrnn_come_from_its_file(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of its backends, and ours of the same run beside it; nothing where there is no such file."""
    readme, dense, text = map(import_module, ("report_readme", "report_dense", "report_text"))
    case = {"cell": "lstm", "head_dim": 768, "heads": 1, "batch": 16, "steps": 1024, "dtype": "bf16"}
    times = {"rnncc": {"cuda": 1.25}, "flashrnn": {"cuda_fused": 5.5, "cuda": 15.0}}
    rows = tuple(
        {**case, "who": who, "backend": backend, "run": run, "ms": factor * ms}
        for who, backends in times.items()
        for backend, ms in backends.items()
        for run, factor in (("fw", 1), ("fw+bw", 3))
    )
    for found in (None, text.Results("gpu_flashrnn", {}, rows)):
        for module in (readme, dense):
            monkeypatch.setattr(module, "results", lambda name, found=found: found)
        line = next(line for line in readme.TABLES["headline"]().splitlines() if "LSTM of 768, batch 16" in line)
        table = dense.TABLES["FlashRNN"]()
        if found is None:
            assert line.split("|")[4].strip() == "—" and "gpu_flashrnn.json" in table
        else:
            assert [cell.strip() for cell in line.split("|")[2:5:2]] == ["**1.25**, **3.75**", "5.50, 16.5"]
            assert table.splitlines()[-1] == "| LSTM, 768 × 1, 16, 1024, bf16 | 1.25, 3.75 | 5.50, 16.5 |"


def test_every_cell_has_its_section() -> None:
    assert headings(DOCS / "cells.md")[1:] == sorted(path.stem for path in shipped_cells())
    text = read(DOCS / "cells.md")
    for path in shipped_cells():
        equations = re.sub(r"\A(#.*\n)+", "", read(path)).strip("\n")
        assert f"```\n{equations}\n```" in text, path.stem


def test_numbers_are_shown_without_exponents(report: Any) -> None:
    text = import_module("report_text")
    shown = {0.0381: "0.0381", 1.4197: "1.42", 2408.6: "2410", 9.996: "10.0", 0.5: "0.500", 0: "0", 931195.2: "931000"}
    assert {value: text.number(value) for value in shown} == shown
    assert [text.ratio(value) for value in (0.998, 1.031, 1.36, 0.0312, 14.6)] == [
        "0.998",
        "1.03",
        "1.4",
        "0.031",
        "15",
    ]
    assert text.pair([1.0, None]) == "1.00, —" and text.pair([None, None]) == "—"
