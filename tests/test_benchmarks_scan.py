"""The logic of benchmarks/gpu_scan.py and cpu_scan.py, which needs no GPU: what is measured, that everyone computes the
same, what is printed and drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def scan(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("gpu_scan")


def tensors(cell: str, **options: Any) -> Any:
    return import_module("scan_calls").Tensors(
        cell, 2, 37, 8, dtype=torch.float64, device="cpu", trained=False, **options
    )


def rows_of(scan: Any, cases: list[Any]) -> list[dict[str, Any]]:
    """Made-up rows: a copy moves 4000 GB/s, we half of that; accelerated-scan is not installed, others take 1 s."""
    rows = []
    for case in cases:
        if case.who.startswith("accelerated"):
            rows.append(scan.row_of(case, missing="ModuleNotFoundError: No module named 'accelerated_scan'"))
            continue
        numbers = scan.traffic(case.cell).of(case.run)
        size = numbers * case.batch * case.steps * case.channels * (4 if case.dtype == "fp32" else 2)
        queued = size / 2e9 if case.who.startswith("rnncc") else 1e3
        measured = {"call_ms": queued + 0.5, "queued_ms": queued, "numbers": numbers, "copy_gb_s": 4000.0}
        rows.append(scan.row_of(case, **measured, repeats=3))
    return rows


def test_words_choose_cases(scan: Any) -> None:
    cases = scan.select(["targets", "mingru", "rnncc"], quick=False)
    assert len(cases) == 5 * 2 * 2 and {case.who for case in cases} == {"rnncc tbd", "rnncc btd"}
    assert {case.who for case in scan.select(["fla"], quick=True)} == {"fla recurrent", "fla chunk"}
    quick, full = scan.select([], quick=True), scan.select([], quick=False)
    assert set(quick) < set(full) and len(full) == len(set(full))
    assert {case.steps for case in full if case.who == "rnncc tbd"} >= {1, 1_000_000}
    assert {case.run for case in full if case.who == "torch scan"} == {"fw"}
    newton = scan.select(["newton"], quick=True)
    assert {(case.who, case.run) for case in newton} == {("rnncc tbd", "fw"), ("rnncc newton", "fw")}
    with pytest.raises(ValueError, match="nix"):
        scan.select(["nix"], quick=True)


def test_a_pass_moves_what_its_recurrence_needs(scan: Any) -> None:
    """Streams of pre-activations, states and gradients, each once: of known cells, counted by hand."""
    known = {"affine": (3, 5), "mingru": (3, 6), "minlstm": (4, 8), "indrnn": (2, 3)}
    for cell, (forward, backward) in known.items():
        moved = scan.traffic(cell)
        assert (moved.forward, moved.kept, moved.backward) == (forward, 0, backward), cell


@pytest.mark.long
def test_everyone_computes_the_same(scan: Any) -> None:
    calls, project = import_module("scan_calls"), import_module("scan_cs179")
    given = tensors("mingru_log", batch_first=True)
    found = calls.log_space_mingru(given.leaves[0]).transpose(0, 1)
    assert torch.allclose(found, given.by_op(), rtol=1e-9)
    given = tensors("affine")
    assert torch.allclose(project.plain_scan(*given.streams), given.by_op(), rtol=1e-9)
    composed = calls.generic_scan(*given.streams, 0)
    assert torch.allclose(composed, given.by_op(), rtol=1e-9)
    for cell in project.CELLS:
        given = tensors(cell)
        assert torch.allclose(project.plain_scan(*project.coefficients(cell, given.streams[0])), given.by_op())
    for cell in ("mingru", "rwkv4"):  # one loop, and three of which the later read the earlier
        given = tensors(cell)
        assert torch.allclose(calls.Loop(given, compiled=False)(), given.by_op(), rtol=1e-9), cell


def test_a_peer_that_was_installed_since_is_measured(
    scan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = scan.select(["targets", "accelerated"], quick=True)[0]
    results = scan.Results(tmp_path / "rows.json", {"gpu": "none"})
    results.rows = [scan.row_of(case, missing="no such module")]
    monkeypatch.setattr(scan, "module_of", lambda cell, newton: None)
    monkeypatch.setattr(scan, "copy_gb_s", lambda: 1.0)
    monkeypatch.setattr(scan, "measure", lambda case, *_: scan.row_of(case, call_ms=1.0))
    monkeypatch.setattr(scan, "absent", lambda who: "still none")
    scan.run([case], results, quick=True)
    assert results.rows[0]["missing"] == "no such module"
    monkeypatch.setattr(scan, "absent", lambda who: "")
    scan.run([case], results, quick=True)
    assert results.rows == [scan.row_of(case, call_ms=1.0)]


def test_the_table_compares(scan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = scan.Results(tmp_path / "rows.json", {"gpu": "none"})
    cases = scan.select(["targets", "steps", "mingru", "affine", "mingru_log"], quick=False)
    results.rows = rows_of(scan, cases[1:])
    results.add(scan.row_of(cases[0], error="RuntimeError: out of memory"))
    assert scan.main(["--show", str(results.path)]) == 0
    shown = capsys.readouterr().out
    assert "missing: accelerated warp: ModuleNotFoundError" in shown
    assert "cannot run: RuntimeError: out of memory" in shown
    (line,) = [
        line.split()
        for line in shown.splitlines()
        if line.split()[:8] == ["rnncc", "btd", "mingru", "16", "1024", "4096", "bf16", "fw"]
    ]
    # 3 numbers of 2 bytes each at half of a copy's rate; the quickest peer takes a second.
    assert line[8:] == ["0.7013", "0.2013", "196.61", "0.50", "4967.05", "0.115", "ms:", "MISS"]
    assert "rnncc tbd, minGRU forward: 50% of the copy's bandwidth, must 80%: MISS" in shown
    assert "rnncc tbd mingru bf16 fw: a step of T=1000000 takes 1.00 times one of T=262144" in shown


@pytest.mark.long
def test_the_picture_is_drawn(scan: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = rows_of(scan, scan.select(["steps"], quick=False))
    scan.plot(rows, tmp_path / "made" / "scan.png")
    assert (tmp_path / "made" / "scan.png").read_bytes().startswith(b"\x89PNG")


def test_a_cpu_row_says_what_it_misses(scan: Any) -> None:
    cpu = import_module("cpu_scan")
    row = {"cell": "mingru", "class": "AFFINE", "T": 1024, "B": 1, "H": 8, "run": "fw", "rnncc_ms": 1.0}
    row |= {"eager_ms": 4.0, "compiled_ms": 1.2, "speedup_over_eager": 4.0, "speedup_over_compiled": 1.2}
    assert cpu.line(row).endswith("  MISS compiled")
    assert cpu.line({**row, "speedup_over_compiled": 1.5}).endswith(" 1.5")


@pytest.mark.long
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """Also where its modules are found by the script's folder alone."""
    command = [sys.executable, str(FOLDER / "gpu_scan.py"), "--quick", "--out", str(tmp_path / "rows.json")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("gpu_scan: there is no CUDA device; ") and not (tmp_path / "rows.json").exists()
