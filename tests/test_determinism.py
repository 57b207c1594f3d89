"""The same input gives the same bytes: under any hash seed, in any folder, at any time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Between them: several states and segments, loops, reductions, delays, learned values, constants, every placement.
CELLS = ("slstm", "scrn", "rhn", "onlstm", "layernormlstm", "rglru", "taugru", "lmu", "phasedlstm", "lif")
STAGES = ("parse", "check", "classify", "differentiate", "lower", "render")

TEXTS = f"""
from rnncc.language.read import read_request
from rnncc.show.stage import stage_text
for name in {CELLS!r}:
    for stage in {STAGES!r}:
        print("##", name, stage)
        print(stage_text(read_request(name), stage))
"""


def python(*arguments: str, cwd: Path, seed: str, **environment: str) -> str:
    """What another Python prints under that hash seed."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": seed} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a package but Python's own caches."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(files)}


@pytest.mark.long
def test_every_stage_prints_the_same_under_other_hash_seeds(tmp_path: Path) -> None:
    first, second = (python("-c", TEXTS, cwd=tmp_path, seed=seed) for seed in ("1", "4242"))
    assert first.count("## ") == len(CELLS) * len(STAGES)
    assert first == second


@pytest.mark.long
def test_two_builds_are_the_same_bytes(tmp_path: Path, cell_cache: Path) -> None:
    packages = []
    for seed in ("7", "31337"):
        # Other folder, other cache, other seed.
        folder = tmp_path / f"folder-{seed}"
        folder.mkdir()
        (folder / "cell.rnn").write_text((ROOT / "examples" / "mycell.rnn").read_text(encoding="utf-8"))
        # Objects that all packages share are found by their text: in both builds, or that differs.
        cache = tmp_path / f"cache-{seed}"
        shutil.copytree(cell_cache, cache)
        environment = {"RNNCC_CACHE_DIR": str(cache)}
        python("-m", "rnncc", "build", "cell.rnn", "--name", "mine", cwd=folder, seed=seed, **environment)
        packages.append(contents(folder / "mine"))
    first, second = packages
    assert any(name.endswith(".so") for name in first)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
