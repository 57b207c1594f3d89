"""The logic of benchmarks/gpu_flashrnn.py, which needs neither a GPU nor FlashRNN: what is measured and printed."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def cases() -> Any:
    return import_module("flashrnn_cases")


def rows_of(cases: Any, case: Any, ms: float) -> list[dict[str, Any]]:
    """Made-up rows of both parties: the peer takes `ms` forward, rnncc 2."""
    about = {"dtype": "bf16", "run": "fw", "backend": "", "layout": "own", "call_ms": 9.0, "from_float32": 0.01}
    who, _ = cases.party_of(case)
    return [
        cases.row_of(case, "rnncc", ms=2.0, difference=None, **about),
        cases.row_of(case, who, ms=ms, difference=0.03, **about),
    ]


def test_words_choose_cases(cases: Any) -> None:
    everything = cases.select([], quick=False)
    assert len(everything) == len(set(everything)) and {case.beside for case in everything} == set(cases.PEERS)
    assert all(cases.case_named(str(case)) == case for case in everything)
    assert not [case for case in everything if case.beside == "cudnn" and (case.cell, case.heads) != ("lstm", 1)]
    assert {str(case) for case in cases.select([], quick=True)} == {
        "cuda_fused-lstm-64x12-B16",
        "cuda_fused-lstm-768x1-B16",
        "cudnn-lstm-768x1-B16",
    }
    assert [str(case) for case in cases.select(["cuda", "768x1", "B1", "B64"], quick=True)] == [
        "cuda-lstm-768x1-B1",
        "cuda-lstm-768x1-B64",
    ]
    with pytest.raises(ValueError, match=r"gru: not one of .*64x12"):
        cases.select(["gru"], quick=False)


def test_the_table_compares(cases: Any) -> None:
    fused, alternating = cases.select(["lstm", "64x12", "cuda_fused", "cuda"], quick=False)
    rows = [*rows_of(cases, fused, 5.0), *rows_of(cases, alternating, 30.0)]
    broken = cases.select(["slstm", "64x12", "cuda_fused"], quick=False)[0]
    lines = list(cases.table([*rows, cases.failure(broken, "no solution")]))
    assert lines[1].split() == ["lstm", "64x12", "16", "fw", "own", "cuda_fused", "5.000", "2.000", "2.50",
                                "3.0e-02", "1.0e-02", "1.0e-02"]  # fmt: skip
    assert lines[3].endswith("cuda_fused cannot run: no solution")
    assert lines[-1].split()[:4] == ["cuda", "fw", "own", "15.00"]
    assert cases.flashrnn_ms(rows, "cuda", (64, 12, 16), "fw") == 30.0
    assert cases.flashrnn_ms(rows, "cuda", (64, 12, 16), "fw+bw") is None


@pytest.mark.parametrize("cell", ["lstm", "slstm"])
def test_layouts_are_one_computation(cell: str, cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both layouts rnncc gives the same output and gradients, near those of float32."""
    program = import_module("flashrnn_case")
    monkeypatch.setattr(program, "STEPS", 6)
    case = cases.Case("cuda_fused", cell, 8, 3, 2)
    data = program.Data(case, "cpu")
    interface, own = (program.rnncc_party(case, data, layout) for layout in ("interface", "own"))
    assert own.inputs[0].shape == (6, 2, 4, 3, 8) and interface.inputs[0].shape == (2, 6, 4, 3, 8)
    for run in ("fw", "fw+bw"):
        for ours, theirs in zip(interface.results(run), own.results(run), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert program.compared(own, data, "fw", interface)["from_float32"] < 0.02
    gradients = program.compared(own, data, "fw+bw", interface)
    assert gradients["difference"] < 0.02 and gradients["from_float32"] is None
    for run in ("fw", "fw+bw"):
        own.timed(run)()
    caused = RuntimeError("rnncc:")
    caused.__cause__ = ValueError("no kernel\nhere")
    assert program.said(caused) == "rnncc: no kernel"
    # A compiler's line says more than the command before it.
    assert program.said(RuntimeError("Error building\nnvcc -c a.cu\na.cu: error: no")) == "a.cu: error: no"


# Answers as a case's process does: 64x12 measures, 128x6 cannot run, 256x3 ends early, 512x1 never gets ready.
PROGRAM = """
import json, sys, time
case, rows = sys.argv[1], sys.argv[2]
if "-512x1-" in case:
    time.sleep(600)
if "-128x6-" in case:
    print(json.dumps({"error": "nvcc fatal"}), flush=True)
    raise SystemExit(1)
print(json.dumps({"ready": 1.0}), flush=True)
sys.stdin.readline()
if "-256x3-" in case:
    raise SystemExit("illegal address")
print(json.dumps({"rows": json.loads(rows)[case]}), flush=True)
"""


@pytest.mark.long
def test_a_run_outlives_its_processes(cases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = import_module("gpu_flashrnn")
    chosen = cases.select(["lstm", "cuda_fused", "B16", "64x12", "128x6", "256x3", "512x1"], quick=False)
    made = {str(case): rows_of(cases, case, 4.0) for case in chosen}
    started: list[Any] = []

    class Process(program.Process):  # type: ignore[misc, name-defined]
        def __init__(self, case: Any, arguments: Any, folder: Path) -> None:
            super().__init__(case, arguments, folder)
            self.command = [sys.executable, "-c", PROGRAM, str(case), json.dumps(made)]
            started.append(self)

    monkeypatch.setattr(program, "Process", Process)
    monkeypatch.setattr(program, "BUILD_SECONDS", 10.0)
    monkeypatch.setattr(program.flashrnn_package, "environment", lambda folder: {})
    # As many at a time as there are processors: the one that never gets ready holds up no other.
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    results = program.Results(tmp_path / "rows.json", {"gpu": "none"})
    program.run(chosen, results, [], tmp_path)
    errors = {row["head_dim"]: row["error"] for row in results.rows if row["ms"] is None}
    assert errors == {128: "nvcc fatal", 256: "the process ended (1): illegal address", 512: "not compiled in time"}
    assert [row["ms"] for row in results.rows if row["head_dim"] == 64] == [2.0, 4.0]
    assert all(process.started.poll() is not None for process in started)
    assert json.loads((tmp_path / "rows.json").read_text())["results"] == results.rows
    # Without time nothing is measured, and nothing is said to have failed.
    program.run(chosen[:1], results, [], tmp_path, minutes=0.0)
    assert len(results.rows) == 5


def test_wheels_stand_in_for_a_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and libraries that the toolkit lacks come from NVIDIA's wheels."""
    package = import_module("flashrnn_package")
    home, site = tmp_path / "cuda", tmp_path / "site"
    for folder in (home / "bin", home / "lib64", site / "nvidia/cu13/include", site / "nvidia/cu13/lib"):
        folder.mkdir(parents=True)
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'release 13.0'\necho '#$ TOP={home}/bin/..' >&2\n")
    nvcc.chmod(0o755)
    (home / "lib64" / "libcudart.so").touch()
    (site / "nvidia/cu13/lib/libcublas.so.13").touch()
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LIBRARY_PATH", "/elsewhere")
    monkeypatch.setattr(package, "find_spec", lambda name: type("Spec", (), {
        "submodule_search_locations": [str(site / name)]
    }))  # fmt: skip
    found = package.environment(tmp_path / "folder")
    assert found["CUDA_HOME"] == str(home)
    assert found["FLASHRNN_EXTRA_INCLUDE_PATHS"] == str(site / "nvidia/cu13/include")
    links, *others = found["LIBRARY_PATH"].split(os.pathsep)
    assert others == ["/elsewhere"] and [link.name for link in Path(links).iterdir()] == ["libcublas.so"]
    for header in package.HEADERS:
        (home / "include").mkdir(exist_ok=True)
        (home / "include" / header).touch()
    assert "FLASHRNN_EXTRA_INCLUDE_PATHS" not in package.environment(tmp_path / "folder")


def test_a_missing_package_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no package `flashrnn` in .*pip install"):
        import_module("flashrnn_package").find(tmp_path)
