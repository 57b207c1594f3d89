"""The logic of benchmarks/build_time.py: what is timed, where, and how it is printed."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def build_time(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("build_time")


def test_words_choose_cases(build_time: Any) -> None:
    found = [case.name for case in build_time.select(["load", "lstm"])]
    assert found == ["load lstm", "load gru, after lstm", "load slstm"]
    assert [case for case in build_time.CASES if case not in build_time.select([])] == build_time.select(["all cells"])
    assert build_time.select([], every=True) == list(build_time.CASES)
    with pytest.raises(ValueError, match="nix"):
        build_time.select(["nix"])
    for case in build_time.CASES:
        assert bool(case.program) is not bool(case.command)
        compile(case.program, case.name, "exec")


def test_a_toolkit_is_hidden(build_time: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvcc").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    case = build_time.select(["every size"])[0]
    hidden = build_time.variables(case, tmp_path, tmp_path / "other", False)
    assert hidden["PATH"] == "/bin" and hidden["CUDA_HOME"] == "" and hidden["RNNCC_COMPILE"] == "0"
    assert hidden["PYTHONPATH"].startswith(f"{tmp_path / 'other'}{os.pathsep}")
    assert build_time.variables(case, tmp_path, tmp_path, True)["PATH"] == os.environ["PATH"]


def test_it_times_and_prints(build_time: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    sys_argv = [
        "build_time",
        "import",
        "--repeats",
        "1",
        "--cores",
        "1",
        "--beside",
        str(FOLDER.parent),
        "--out",
        str(out),
    ]
    with pytest.MonkeyPatch.context() as given:
        given.setattr(sys, "argv", sys_argv)
        assert build_time.main() == 0
        printed = capsys.readouterr().out
        given.setattr(sys, "argv", ["build_time", "--show", str(out)])
        assert build_time.main() == 0
    assert capsys.readouterr().out == printed
    rows = json.loads(out.read_text())["results"]
    assert [(row["who"], row["cache"]) for row in rows] == [
        ("ours", "cold"), ("ours", "cached"), ("beside", "cold"), ("beside", "cached"),
    ]  # fmt: skip
    assert all(min(row["cpu"], row["seconds"]) > 0 for row in rows)


def test_what_comes_before_a_case_fills_its_cache(build_time: Any) -> None:
    """The cache of each cold case is empty but for that."""
    put = "import os, pathlib; folder = pathlib.Path(os.environ['RNNCC_CACHE_DIR']); folder.mkdir(exist_ok=True); "
    before = build_time.Case("before", put + "assert not list(folder.iterdir()); (folder / 'before').touch()")
    seen = "assert (folder / 'before').exists(); (folder / 'own').touch()"
    case = build_time.Case("case", f"{put}assert len(list(folder.iterdir())) < 3; {seen}", after=before)
    rows = list(build_time.measured(case, 1, {"ours": FOLDER.parent}, False, 2))
    assert [(row["case"], row["cache"], row["repeats"]) for row in rows] == [("case", "cold", 2), ("case", "cached", 2)]
    alone = build_time.Case("alone", case.program)
    with pytest.raises(RuntimeError, match=r"alone: (?s:.)*AssertionError"):
        list(build_time.measured(alone, 1, {"ours": FOLDER.parent}, False, 1))


def test_what_fails_says_why(build_time: Any, tmp_path: Path) -> None:
    case = build_time.Case("broken", "raise SystemExit('no such thing')")
    with pytest.raises(RuntimeError, match="broken: no such thing"):
        build_time.timed(case, 1, os.environ, tmp_path)


def test_a_program_says_what_is_timed_alone(build_time: Any) -> None:
    case = build_time.Case("case", """print('some words'); print('{"call": 0.5, "worst": 1.25, "worst_cell": "s6"}')""")
    rows = list(build_time.measured(case, 1, {"ours": FOLDER.parent}, False, 2))
    assert [(row["call"], row["worst"], row["worst_cell"]) for row in rows] == [(0.5, 1.25, "s6")] * 2
    assert build_time.text(rows[0]).endswith("0.50  worst: 1.25 (s6)")
