"""The README is short, its example runs, its cell passes the check, and its count of cells is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnncc import load
from rnncc.machine.paths import shipped_cells
from tests.docs.pages import DOCS, ROOT, blocks, read

README = ROOT / "README.md"


def test_it_is_short() -> None:
    assert len(read(README).splitlines()) <= 120


def test_the_number_of_cells() -> None:
    found = re.search(r"the (\d+) \[shipped cells\]", read(README))
    assert found is not None
    assert int(found[1]) == len(shipped_cells())


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, program = blocks(README, "rnn")[0].text, blocks(README, "python")[0].text
    (tmp_path / "mycell.rnn").write_text(cell, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)
    assert tuple(names["output"].shape) == (100, 32, 256)  # type: ignore[attr-defined]


def test_the_shape_that_language_md_gives_for_heads() -> None:
    assert "`weight_hh_l0` is [gates·H, H/N]" in " ".join(read(DOCS / "language.md").split())
    layer = load("gru").GRU(3, 8, num_heads=2)
    assert layer.weight_hh_l0.shape == (3 * 8, 8 // 2)
    assert layer.gate_parameters()["R_z"].shape == (2, 8 // 2, 8 // 2)
