"""The logic of benchmarks/gpu_dense.py, which needs no GPU: what is measured, resumed, printed and drawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.target import GPUS

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("gpu_dense")


def rows_of(dense: Any, cases: list[Any]) -> list[dict[str, Any]]:
    """Made-up rows: cuDNN takes 4 ms, 1 of it for its input; loops in torch 80; ours 2 forward, 3 with backward."""
    rows = []
    for case in cases:
        call = {"cudnn": 4.5, "eager": 80.0, "compiled": 40.0}.get(case.who, 2.0 + (case.run == "fw+bw"))
        loop = case.who in dense.LOOPS
        measured = {"call_ms": call, "queued_ms": None if loop else call - 0.5, "floor_us": 0.5, "repeats": 3}
        if case.who == "cudnn":
            measured |= {"input_call_ms": 1.0, "input_queued_ms": 1.0}
        rows.append(dense.row_of(case, **measured))
    return rows


def test_words_choose_cases(dense: Any) -> None:
    ours = dense.select(["targets", "rnncc"], quick=True)
    assert len(ours) == 18 and {(case.who, case.cell, case.dtype) for case in ours} == {("rnncc", "lstm", "bf16")}
    quick, full = dense.select([], quick=True), dense.select([], quick=False)
    assert set(quick) < set(full) and len(full) == len(set(full))
    # Every size and batch, by us, by cuDNN in both 16-bit dtypes; sizes that are targets among them.
    shapes = {(c.head_dim, c.batch, c.run) for c in full if (c.who, c.cell, c.steps) == ("rnncc", "lstm", 1024)}
    assert len(shapes) == 10 * 9 * 2
    assert not [c for c in full if c.who == "cudnn" and (c.heads > 1 or c.cell == "slstm")]
    assert {case.who for case in quick} == {case.who for case in full} == set(import_module("gpu_cases").WHO)
    with pytest.raises(ValueError, match="nix"):
        dense.select(["nix", "targets"], quick=True)


def test_a_run_goes_on_where_it_stopped(dense: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = dense.select(["targets", "rnncc"], quick=True)
    path, about = tmp_path / "rows.json", {"gpu": "none", "commit": "abc"}
    first = dense.Results(path, about)
    for row in rows_of(dense, cases[:5]):
        first.add(row)
    asked: list[Any] = []

    def measure(case: Any, *_: Any) -> dict[str, Any]:
        asked.append(case)
        (row,) = rows_of(dense, [case])
        return row

    monkeypatch.setattr(dense, "measure", measure)
    monkeypatch.setattr(dense, "measure_exchanges", lambda wanted: dict.fromkeys(wanted, 0.5))
    monkeypatch.setattr(dense, "Packages", lambda folder, left: None)
    again = dense.Results(path, about)
    dense.run(cases, again, quick=True)
    assert asked == cases[5:]
    saved = json.loads(path.read_text())
    assert saved["environment"] == about and [dense.case_of(row) for row in saved["results"]] == cases
    dense.run(cases, dense.Results(path, about), quick=True)
    assert len(asked) == len(cases) - 5
    with pytest.raises(ValueError, match="commit abc -> def"):
        dense.Results(path, about | {"commit": "def"})


def test_the_table_compares(dense: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = import_module("flashrnn_cases")
    monkeypatch.setattr(peers, "RESULTS", tmp_path / "gpu_flashrnn.json")
    alternating = peers.Case("cuda", "lstm", 768, 1, 2)
    measured = {"run": "fw+bw", "layout": "own", "ms": 34.0}
    kept = {"results": [peers.row_of(alternating, "flashrnn", **measured), peers.failure(alternating, "no GPU")]}
    peers.RESULTS.write_text(json.dumps(kept))
    cases = dense.select(["targets", "cells", "loops"], quick=True)
    failed = dense.select(["dtypes", "alternating"], quick=True)[0]
    rows = [*rows_of(dense, cases), dense.row_of(failed, error="out of memory")]
    lines = list(dense.table(rows, GPUS["h200"]))
    assert sum("out of memory" in line for line in lines) == 1
    forward = next(line for line in lines if line.split()[:6] == ["rnncc", "lstm", "768x1", "16", "1024", "bf16"])
    case = next(c for c in cases if (c.who, c.cell, c.head_dim, c.batch, c.run) == ("rnncc", "lstm", 768, 16, "fw"))
    predicted = import_module("gpu_predicted").predicted_us(case, GPUS["h200"])
    # 1.5 ms queued is 1.465 µs a step, of which 0.5 are the exchange; cuDNN takes 3 ms without its input's product.
    assert forward.split()[7:] == [
        "2.000",
        "1.500",
        "1.465",
        f"{predicted:.3f}",
        "0.34",
        "2.00",
        "53.33",
        "26.67",
        "1.90",
        "ms:",
        "queued",
        "only",
    ]
    assert any(line.startswith("rnncc       gru ") and "0.60 ms: MISS" in line for line in lines)
    target = next(line for line in lines if line.startswith("     768x1 B=2   fw+bw"))
    assert target.split() == [
        "768x1",
        "B=2",
        "fw+bw",
        "3.000",
        "2.500",
        "|",
        "4.50",
        "|",
        "2.50",
        "|",
        "3.00",
        "|",
        "-,",
        "34.0",
    ]


def test_the_floor_is_among_blocks_that_hold_the_matrix(dense: Any) -> None:
    floor = import_module("gpu_floor")
    text = "cluster 1 1024 0.1\ncluster 16 12288 0.6\ngrid 16 12288 0.5\ngrid 48 12288 0.8\n"
    measured = dict(floor.read(text))
    case = {(c.head_dim, c.batch): c for c in dense.select(["targets", "rnncc"], quick=True)}
    assert floor.Exchange("grid", 48, 12288) in floor.exchanges([case[768, 16]])
    assert floor.floor_us(case[64, 16], measured) == 0.1
    assert floor.floor_us(case[768, 16], measured) == 0.5
    assert floor.floor_us(case[2048, 16], measured) is None


def test_the_picture_is_drawn(dense: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "rows.json"
    results = dense.Results(path, {"gpu": "none"})
    results.rows = rows_of(dense, dense.select(["full", "loops"], quick=False))
    results.add(dense.row_of(dense.select(["dtypes"], quick=True)[0], error="out of memory"))
    assert dense.main(["--show", str(path), "--plot", str(tmp_path / "made" / "dense.png")]) == 0
    assert (tmp_path / "made" / "dense.png").read_bytes().startswith(b"\x89PNG")
    assert "768x1" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """Also where its modules are found by the script's folder alone."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(FOLDER / "gpu_dense.py"), "--quick", "--out", str(tmp_path / "rows.json")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("gpu_dense: there is no CUDA device; ") and not (tmp_path / "rows.json").exists()
