"""What benchmarks have in common as programs: parts of cases, the end of a run, files that are put together."""

from __future__ import annotations

import argparse
import itertools
import json
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc

FOLDER = Path(__file__).parents[1] / "benchmarks"
# Programs that measure on a GPU, and take longer than some seconds.
PROGRAMS = (
    "gpu_accuracy", "gpu_cells", "gpu_dense", "gpu_families", "gpu_flashrnn", "gpu_model", "gpu_packed", "gpu_scan",
    "gpu_sparse", "gpu_targets", "latency", "sparse_training",
)  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("gpu_run")


def written(path: Path, rows: list[dict[str, Any]], gpu: str = "H200") -> str:
    path.write_text(json.dumps({"environment": {"gpu": gpu}, "results": rows}), encoding="utf-8")
    return str(path)


def test_parts_are_disjoint_and_complete(run: Any) -> None:
    cases = list(range(11))
    parts = [run.part(cases, f"{place}/4") for place in range(1, 5)]
    assert sorted(itertools.chain(*parts)) == cases and [len(part) for part in parts] == [3, 3, 3, 2]
    for shard in ("0/2", "3/2", "2", "a/b", "1/0"):
        with pytest.raises(ValueError, match="--shard is a part like 2/5"):
            run.part(cases, shard)


def test_no_case_begins_when_the_time_is_over(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = itertools.count(0, 50)
    monkeypatch.setattr(run.time, "monotonic", lambda: float(next(now)))
    assert list(run.in_time(list("abcde"), 2.0)) == ["a", "b"]
    assert capsys.readouterr().out == "3 cases are left: start the run again\n"
    assert list(run.in_time(list("abcde"), 60.0)) == list("abcde") and not capsys.readouterr().out


def test_files_are_put_together(run: Any, tmp_path: Path) -> None:
    rows = [{"case": name, "ms": {"ours": 1.0}} for name in "abc"]
    files = [Path(written(tmp_path / "one", rows[:2])), Path(written(tmp_path / "two", rows[1:]))]
    run.merge(files, tmp_path / "all")
    made = json.loads((tmp_path / "all").read_text())
    assert made == {"environment": {"gpu": "H200"}, "results": rows}
    files.append(Path(written(tmp_path / "other", [], "H100")))
    with pytest.raises(ValueError, match="other were not measured on one machine"):
        run.merge(files, tmp_path / "all")
    assert json.loads((tmp_path / "all").read_text()) == made


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_takes_a_part(run: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = import_module(name)
    assert program.main(["--shard", "3/2", "--out", str(tmp_path / "rows")]) == 1
    assert capsys.readouterr().err == f"{name}: --shard is a part like 2/5, not 3/2\n"


@pytest.mark.parametrize("name", [name for name in PROGRAMS if (FOLDER / "results" / f"{name}.json").exists()])
def test_parts_of_a_committed_file_are_the_file(
    run: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = FOLDER / "results" / f"{name}.json"
    known = json.loads(committed.read_text())
    halves = [known | {"results": known["results"][start::2]} for start in (0, 1)]
    for place, half in enumerate(halves):
        (tmp_path / f"{place}.json").write_text(json.dumps(half))
    files = [str(tmp_path / f"{place}.json") for place in (0, 1)]
    assert import_module(name).main(["--merge", *files, "--out", str(tmp_path / "all.json")]) == 0
    assert capsys.readouterr().out.count("\n") >= 3
    merged = json.loads((tmp_path / "all.json").read_text())
    assert sorted(map(str, merged["results"])) == sorted(map(str, known["results"]))


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    output = import_module("measure").output
    assert output(str(tmp_path / "new" / "rows.json")) == tmp_path / "new" / "rows.json"
    assert list((tmp_path / "new").iterdir()) == []
    for nowhere in ("/proc/rows.json", "/proc/new/rows.json", str(tmp_path / "new")):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{nowhere} cannot be written"):
            output(nowhere)


@pytest.mark.parametrize(
    ("program", "option"), [("latency", "--beside"), ("build_time", "--beside"), ("build_time", "--installed")]
)
def test_a_folder_without_rnncc_is_not_taken_for_another_version(
    program: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("sys.argv", [program, option, str(tmp_path)])
    with pytest.raises(SystemExit):
        import_module(program).main()
    assert f"{option}: there is no rnncc in {tmp_path}" in capsys.readouterr().err


@pytest.mark.long
def test_another_checkout_answers_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    latency, calls = import_module("latency"), import_module("latency_calls")
    case = calls.Case("lstm", 2, 1, 8, False, "eager")
    with closing(calls.Beside(FOLDER.parent, "cpu", 1)) as beside:
        row = latency.compare(case, "cpu", 0.01, beside)
        assert row["beside_us"] > 0 and row["over_beside"] > 0
        assert "over the one beside: median" in latency.describe([row])
        with pytest.raises(RuntimeError, match="the rnncc beside ours ended with code 1"):
            beside.take(replace(case, cell="nothing"))
    assert beside.process.returncode == 1


def without_kernels(monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    """A cell runs its fallback, as where no compiler was found."""
    monkeypatch.setattr(rnncc.load(cell)._package._PACKAGE, "kernels", None)


@pytest.mark.parametrize("program", ["cpu", "cpu_packed", "host", "latency"])
def test_no_program_times_the_fallback_in_place_of_kernels(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    made = import_module(program)
    without_kernels(monkeypatch, "lstm")
    measure = {
        "cpu": lambda: made.compare("lstm", 2, 1, 8, False, 0.01),
        "cpu_packed": lambda: made.measure(2, 1, 8, "even", False, 0.01),
        "host": lambda: made.compare(made.Case("lstm", "LSTM", torch.nn.LSTM, 2), "cpu", 0.01),
        "latency": lambda: made.compare(made.Case("lstm", 2, 1, 8, False, "eager"), "cpu", 0.01),
    }
    with pytest.raises(RuntimeError, match="backend='cpu' cannot run"):
        measure[program]()


def test_neither_do_the_calls_that_the_scan_benchmarks_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    calls = import_module("scan_calls")
    tensors = calls.Tensors("mingru", 2, 3, 8, dtype=torch.float32, device="cpu", trained=False)
    tensors.by_op()
    without_kernels(monkeypatch, "mingru")
    with pytest.raises(RuntimeError, match="backend='cpu' cannot run"):
        tensors.by_op()
