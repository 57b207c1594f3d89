"""The logic of benchmarks/gpu_targets.py, which needs no GPU: what is compared, and what is printed."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.target import GPUS
from rnncc.machine.targets import known_gpus


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return import_module("gpu_targets")


def test_each_party_is_planned_for_the_gpu_of_its_name(targets: Any) -> None:
    for who, target in targets.PARTIES.items():
        assert who == "native" or known_gpus(target) == (GPUS[who].with_ptx(),)


def test_words_choose_parties(targets: Any) -> None:
    assert targets.select([]) == list(targets.PARTIES)
    assert targets.select(["rtx4090"]) == ["native", "rtx4090"]
    with pytest.raises(ValueError, match="h200: not one of native, a100"):
        targets.select(["h200"])
    compared = list(targets.cases(["native", "a100"]))
    assert [[(case.who, case.heads, case.run) for case in each] for each in compared] == [
        [(who, heads, run) for who in ("native", "a100")] for heads in (1, 12) for run in ("fw", "fw+bw")
    ]


def test_the_table_compares(targets: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for compared in targets.cases(["native", "a100", "rtx4090"]):
        for case, queued in zip(compared, (1.0, 1.3, 1.5), strict=True):
            measured = {"call_ms": queued + 0.1, "queued_ms": queued, "difference": 0.0, "kernels": "forward grid"}
            rows.append(targets.row_of(case, **measured))
    (tmp_path / "rows.json").write_text(json.dumps({"environment": {}, "results": rows}), encoding="utf-8")
    assert targets.main(["--show", str(tmp_path / "rows.json"), "--only", "rtx4090"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[2] for words in printed[1:]] == ["native", "rtx4090"] * 4
    # 1.5 times the native time is within the limit with one head, and beyond it with twelve.
    assert [("MISS" in words, words[7]) for words in printed[1:] if words[2] == "rtx4090"] == [
        (False, "1.50"), (False, "1.50"), (True, "1.50"), (True, "1.50"),
    ]  # fmt: skip


def test_without_a_gpu_it_says_so(
    targets: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert targets.main([]) == 1
    assert capsys.readouterr().err.startswith("gpu_targets: there is no CUDA device")
