"""What would fail after long work fails before it: a folder or file that cannot be written, a wrong setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rnncc
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.files import check_writable
from tests.test_cli import BAD, GOOD, run, write


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache: what is built would have to be compiled."""
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["no file system for it", "a file in the way"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder in which nobody can write, root neither."""
    if request.param == "a file in the way":
        return write(tmp_path, "", "file") / "sub"
    return Path("/proc/rnncc")


@pytest.mark.parametrize("options", [(), ("--wheel",)], ids=str)
def test_a_folder_that_cannot_be_made_is_an_error_before_compilers_run(
    options: tuple[str, ...], nowhere: Path, cache: Path, tmp_path: Path
) -> None:
    result = run("build", write(tmp_path, GOOD), "--out", nowhere, *options)
    assert result.exit_code == 1 and f"error[RNN605]: '{nowhere / 'elman'}' cannot be written" in result.stderr
    assert "compiling" not in result.stderr and not cache.exists()


def test_so_is_a_folder_that_is_not_a_package(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elman").mkdir()
    result = run("build", write(tmp_path, GOOD), "--out", tmp_path)
    assert result.exit_code == 1 and "RNN603" in result.stderr
    assert "compiling" not in result.stderr and not cache.exists()


def test_a_build_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for out in (tmp_path / "new" / "folder", tmp_path / "mine"):
        assert run("build", write(tmp_path, BAD), "--out", out).exit_code == 1
    assert not (tmp_path / "new").exists() and list((tmp_path / "mine").iterdir()) == []


def test_a_mistake_in_the_last_file_is_found_before_the_first_is_compiled(cache: Path, tmp_path: Path) -> None:
    result = run("build", write(tmp_path, GOOD), write(tmp_path, BAD, "bad.rnn"), "--out", tmp_path / "out")
    assert result.exit_code == 1 and "bad.rnn" in result.stderr
    assert "compiling" not in result.stderr and not cache.exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command", [("latex", "--out"), ("draw", "--out"), ("bench", "--json"), ("bench", "--plot")], ids=" ".join
)
def test_so_is_a_file_that_cannot_be_written(command: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*_: Any) -> None:
        raise AssertionError("the work has begun")

    for module in ("paper", "bench"):
        monkeypatch.setattr(f"rnncc.cli.{module}.compile_cells", work)
    name, option = command
    result = run(name, "elman", option, "/proc/made")
    assert result.exit_code == 1 and "error[RNN605]: '/proc/made' cannot be written" in result.stderr


@pytest.mark.parametrize(("command", "file", "kind"), [("draw", "a.png", ".svg"), ("latex", "a.PDF", ".tex")])
def test_a_file_is_what_its_name_says(command: str, file: str, kind: str, tmp_path: Path) -> None:
    result = run(command, "elman", "--out", tmp_path / file)
    assert result.exit_code == 2 and f"would not be what its name says: it is written as {kind}" in result.stderr
    assert list(tmp_path.iterdir()) == []
    # Any other ending is the user's.
    assert run(command, "elman", "--out", tmp_path / "made.txt").exit_code == 0


def test_looking_leaves_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "old", "file")
    for each in (path, tmp_path / "new"):
        check_writable(each)
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and path.read_text(encoding="utf-8") == "old"
    with pytest.raises(RnnccError, match="is a directory"):
        check_writable(tmp_path)


@pytest.mark.parametrize("name", ["RNNCC_COMPILE", "RNNCC_LOG", "RNNCC_CACHE_LIMIT", "MAX_JOBS"])
def test_a_wrong_setting_is_one_error_before_compilers_run(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(RnnccError, match=f"{name} is 'maybe'") as caught:
        rnncc.load(write(tmp_path, GOOD))
    assert [found.code for found in caught.value.diagnostics] == ["RNN607"]
    assert "compiling" not in capfd.readouterr().err
