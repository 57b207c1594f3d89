"""What torch.load(weights_only=True) opens with `rnncc.safe_globals()` runs nothing, and writes nothing but packages in
the cache: also where somebody wrote the file for that (hostile_pickles.py)."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc import driver
from rnncc.language.diagnostics import RnnccError
from tests.hostile_pickles import TEXT, Call

ROOT = Path(__file__).resolve().parents[1]


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """The program in folders of its own, without a compiler."""
    folders = {name: folder / name for name in ("home", "tmp", "work", "cache")}
    for each in folders.values():
        each.mkdir(mode=0o700)
    environment = {
        **os.environ, "HOME": str(folders["home"]), "TMPDIR": str(folders["tmp"]), "CXX": "none", "RNNCC_LOG": "error",
        "RNNCC_CACHE_DIR": str(folders["cache"]), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, cwd=folders["work"], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("number", [2000, pytest.param(5000, marks=pytest.mark.long)])
def test_hostile_files_run_nothing_and_write_nothing(tmp_path: Path, number: int) -> None:
    done = run(tmp_path, f"from tests.hostile_pickles import main; main(43, {number})")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    outcomes, requests = found["outcomes"], found["requests"]
    assert sum(outcomes.values()) == number
    assert min(requests["known"], requests["another program"]) > 30 * number // 5000
    for kind in ("call", "instance", "state", "bytes"):
        assert outcomes[f"{kind} loaded"] > 10 * number // 5000
    for outcome in outcomes:
        kind, name = outcome.split()
        if kind in ("call", "instance"):
            assert name in ("loaded", "TypeError", "ValueError", "RnnccError", "UnpicklingError")
    written = [path for name in ("home", "tmp", "work") for path in (tmp_path / name).rglob("*")]
    assert not written


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("request.Request.__post_init__ = lambda self: None", 4),
        ("driver.from_text = lambda name, text: open('planted', 'w')", 3),
        ("driver.from_text = lambda name, text: os.posix_spawn('/bin/true', ['true'], {})", 3),
    ],
)
def test_the_program_sees_what_it_looks_for(fault: str, code: int, tmp_path: Path) -> None:
    start = f"""
import os
from rnncc import driver
from rnncc.ir import request
from tests import hostile_pickles
files = hostile_pickles.files
def faulty(*arguments):
    made = list(files(*arguments))
    {fault}
    return made
hostile_pickles.files = faulty
hostile_pickles.main(43, 300)
"""
    assert run(tmp_path, start).returncode == code


def loaded(*arguments: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(Call(driver.unpickle, *arguments), buffer)
    buffer.seek(0)
    with torch.serialization.safe_globals(rnncc.safe_globals()):
        return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(
    "name", ["mine\n  arguments = touch planted #", "{folder}/planted", "../../planted", "mine)", "a, b"]
)
def test_a_name_in_a_file_is_no_command_and_no_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "load_module", lambda request: pytest.fail("it would be built"))
    with pytest.raises(RnnccError, match="cannot be a package's name"):
        loaded(TEXT, "mine.rnn", name.format(folder=tmp_path), {}, "Mine")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "member", ["__loader__", "_runtime", "_cell_mine", "__class__", "Other", "Mine.spec", 3, None, ["Mine"]]
)
def test_a_file_gets_nothing_but_cells(member: Any) -> None:
    rnncc.compile(TEXT, "mine")
    with pytest.raises(ValueError, match="only Mine, MineCell, mine"):
        loaded(TEXT, "<mine>", "mine", {}, member)


@pytest.mark.parametrize("arguments", [(3, "mine.rnn"), (b"text", "mine.rnn"), (TEXT, None), (TEXT, ["mine.rnn"])])
def test_what_is_no_text_is_refused(arguments: Any) -> None:
    with pytest.raises(TypeError, match="of cells must be a str"):
        loaded(*arguments, "mine", {}, "Mine")


def test_a_text_with_a_mistake_says_so_in_one_line_for_each_place() -> None:
    with pytest.raises(RnnccError) as caught:
        loaded("cell Mine\nstate h\nh[t] = y\n", "a\nerror[RNN000]: b\x1b[2J", "mine", {}, "Mine")
    shown = str(caught.value)
    assert "\x1b" not in shown and not any(line.startswith("error[RNN000]") for line in shown.splitlines())


def test_without_the_list_nothing_is_allowed() -> None:
    buffer = io.BytesIO()
    torch.save(rnncc.compile(TEXT, "mine").Mine, buffer)
    buffer.seek(0)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(buffer, weights_only=True)
