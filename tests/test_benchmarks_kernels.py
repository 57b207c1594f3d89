"""The logic of benchmarks/gpu_kernels.py, which needs no GPU: which kernels are measured, and that no others run."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.lowered import fused_programs
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells

FOLDER = Path(__file__).parents[1] / "benchmarks"
ROW = {"family": "grid", "cell": "lstm", "loop": "backward", "dtype": "bf16", "head_dim": 768, "batch": 16}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("gpu_kernels")


def test_rows_of_a_variant_are_of_different_programs_or_sizes(kernels: Any) -> None:
    rows = kernels.cases([], "1/1")
    found = kernels.variants(rows)
    assert len(rows) > 100 and sum(map(len, found)) == len(rows) and 1 < len(found) < 20
    for variant in found:
        places = [
            (
                row["cell"],
                row["loop"] == "backward",
                row["dtype"],
                row["head_dim"],
                row.get("density"),
                row.get("block"),
            )
            for row in variant
        ]
        assert len(set(places)) == len(places)


def test_words_choose_rows(kernels: Any) -> None:
    found = kernels.cases(["grid", "backward", "nas"], "1/1")
    assert found and all((row["cell"], row["loop"]) == ("nas", "backward") and "us" not in row for row in found)
    assert kernels.cases(["neither"], "1/1") == []


@pytest.mark.parametrize("unit_blocks", [2, 4])
def test_a_package_has_the_given_layout_alone(kernels: Any, unit_blocks: int, tmp_path: Path) -> None:
    timed = kernels.Timed({**ROW, "layout": {"unit_blocks": unit_blocks, "tiles": 1}}, tmp_path)
    plan = compile_cells(read_request("lstm"), "lower").cells[0].plan
    programs = [program for program, loop in fused_programs(plan) if loop == timed.loop and "masked" not in program]
    assert programs == ["lstm_0_backward"]
    gpus, problem = (GPUS["h200"],), Problem(768, 1, "bf16")
    request = replace(read_request("lstm"), gpus=gpus, problems=(problem,), programs=("backward", "forward"))
    with kernels.only({timed.key: timed.kernel}):
        (made,) = compile_cells(request, "schedule").cells[0].fused
    assert {program: [row.kernel for row in table] for program, table in made.tables} == {
        "lstm_0_backward": [timed.kernel]
    }
    assert timed.kernel.shape[0] == unit_blocks and timed.planned_us > 1


def test_a_table_has_each_row(kernels: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{**ROW, "layout": {"unit_blocks": 2, "tiles": 1}, "us": 1.748, "planned_us": 1.8}]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"environment": {}, "results": rows}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["gpu_kernels.py", "--show", str(file)])
        assert kernels.main() == 0
    assert "| grid lstm backward 768 [16] bf16 unit_blocks=2 tiles=1 | 1.748 | 1.800 |" in capsys.readouterr().out
