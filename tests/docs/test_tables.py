"""Tables that are made from benchmarks/results, the shipped cells and the operator table say what these say now."""

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
TABLED = ("README.md", "docs/cells.md", "docs/language.md", "docs/results.md")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("report")


# What kernels there are for every cell takes long to say.
@pytest.mark.always(name=[name for name in TABLED if name != "docs/cells.md"])
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
    assert files == set(text.COMMANDS)
    page = prose(DOCS / "results.md")
    assert not [name for name in text.COMMANDS if f"(`{name}.json`" not in page and f" `{name}.json`" not in page]
    for command in filter(None, text.COMMANDS.values()):
        assert (FOLDER / command.split()[0]).is_file(), command


def test_the_headline_says_what_was_measured() -> None:
    """Read from the README and from the file, past the generator."""
    rows = json.loads(read(FOLDER / "results" / "gpu_dense.json"))["results"]
    wanted = {"cell": "lstm", "head_dim": 2048, "heads": 1, "batch": 128, "steps": 1024, "dtype": "bf16"}
    line = next(
        line for line in read(ROOT / "README.md").splitlines() if line.startswith("| H200: LSTM of 2048, batch")
    )
    _, _, ours, theirs, *_ = (cell.strip() for cell in line.split("|"))
    fastest: dict[str, dict[str, float]] = {"fw": {}, "fw+bw": {}}
    bold = set()
    for who, cell in (("rnncc", ours), ("cudnn", theirs)):
        for run, shown in zip(fastest, cell.split(", "), strict=True):
            like = wanted | {"who": who, "run": run}
            if who == "cudnn":
                del like["dtype"]
            times = [
                row["queued_ms"] - row.get("input_queued_ms", 0)
                for row in rows
                if all(row[key] == value for key, value in like.items())
            ]
            assert float(shown.strip("*")) == pytest.approx(min(times), rel=0.005)
            fastest[run][who] = min(times)
            if "**" in shown:
                bold.add((who, run))
    # What is faster is bold, whoever it is.
    assert bold == {(min(times, key=lambda who: times[who]), run) for run, times in fastest.items()}


def test_figures_of_flashrnn_are_its_fastest() -> None:
    """Whatever its backend and the layout of its tensors; rnncc's beside it are from the same run."""
    rows = json.loads(read(FOLDER / "results" / "gpu_flashrnn.json"))["results"]
    size = {"cell": "slstm", "head_dim": 64, "heads": 12, "batch": 16}
    measured = [row for row in rows if row["ms"] is not None and all(row[key] == size[key] for key in size)]
    line = next(line for line in read(ROOT / "README.md").splitlines() if "H200: sLSTM, 12 heads of 64" in line)
    _, _, ours, _, theirs, *_ = (cell.strip() for cell in line.split("|"))
    for who, cell in (("rnncc", ours), ("flashrnn", theirs)):
        for run, shown in zip(("fw", "fw+bw"), cell.split(", "), strict=True):
            times = [row["ms"] for row in measured if (row["who"], row["run"]) == (who, run)]
            assert float(shown.strip("*")) == pytest.approx(min(times), rel=0.005 if who == "flashrnn" else 0.05)


def test_a_peer_that_was_not_measured_is_a_dash(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, dense, text = map(import_module, ("report_readme", "report_dense", "report_text"))
    files = {"gpu_flashrnn": text.Results("gpu_flashrnn", {}, ())}
    monkeypatch.setattr(dense, "known", lambda name: files.get(name) or text.known(name))
    line = next(line for line in readme.TABLES["headline"]().splitlines() if "LSTM of 768, batch 16" in line)
    ours, _, flashrnn, eager = (cell.strip() for cell in line.split("|")[2:6])
    assert flashrnn == "—" and "—" not in ours and "—" not in eager
    assert len(dense.TABLES["FlashRNN"]().splitlines()) == 2


def test_every_cell_has_its_section() -> None:
    assert headings(DOCS / "cells.md")[2:] == sorted(path.stem for path in shipped_cells())
    text = read(DOCS / "cells.md")
    for path in shipped_cells():
        equations = re.sub(r"\A(#.*\n)+", "", read(path)).strip("\n")
        assert f"```rnn\n{equations}\n```" in text, path.stem


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
