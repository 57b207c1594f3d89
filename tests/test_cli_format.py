"""`rnncc format`: what it prints and writes, and that a file is the old one or the new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rnncc.cli import cli

UGLY = b"cell A # a cell\nstate h\nh[t]=tanh( W @ x )\n"
TIDY = b"cell A  # a cell\nstate h\nh[t] = tanh(W@x)\n"
WRONG = b"cell A\nstate h\nh[t]=tanh( W @ x\n"


def run(*arguments: str | Path, given: bytes = b"") -> Result:
    result = CliRunner().invoke(cli, ["format", *map(str, arguments)], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def write(path: Path, data: bytes = UGLY) -> Path:
    path.write_bytes(data)
    return path


def test_files_are_formatted(tmp_path: Path) -> None:
    ugly, tidy = write(tmp_path / "ugly.rnn"), write(tmp_path / "tidy.rnn", TIDY)
    before = tidy.stat()
    result = run(ugly, tidy)
    assert (result.exit_code, result.stdout) == (0, f"{ugly}: formatted\n{tidy}: unchanged\n")
    assert ugly.read_bytes() == tidy.read_bytes() == TIDY
    assert (tidy.stat().st_ino, tidy.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tidy.rnn", "ugly.rnn"]


def test_check_changes_nothing(tmp_path: Path) -> None:
    ugly, tidy = write(tmp_path / "ugly.rnn"), write(tmp_path / "tidy.rnn", TIDY)
    result = run("--check", tidy, ugly)
    assert (result.exit_code, result.stdout) == (1, f"{ugly}: would change\n")
    assert ugly.read_bytes() == UGLY
    assert run("--check", tidy).exit_code == 0


def test_a_mistake_is_said_and_the_file_left(tmp_path: Path) -> None:
    wrong, ugly = write(tmp_path / "wrong.rnn", WRONG), write(tmp_path / "ugly.rnn")
    result = run(wrong, ugly)
    assert result.exit_code == 1
    assert "error[RNN109]" in result.stderr
    assert f"{wrong}:3:10" in result.stderr
    assert result.stdout == f"{ugly}: formatted\n"
    assert wrong.read_bytes() == WRONG


def test_standard_input_goes_to_standard_output() -> None:
    assert run("-", given=UGLY).stdout_bytes == TIDY
    assert run("-", given=UGLY.replace(b"\n", b"\r\n")).stdout_bytes == TIDY.replace(b"\n", b"\r\n")
    checked = run("--check", "-", given=UGLY)
    assert (checked.exit_code, checked.stdout) == (1, "-: would change\n")
    wrong = run("-", given=WRONG)
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "<stdin>:3:10" in wrong.stderr


def test_a_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    path = write(tmp_path / "there" / "a.rnn")
    path.chmod(0o640)
    link = tmp_path / "link.rnn"
    link.symlink_to("there/a.rnn")
    assert run(link).exit_code == 0
    assert link.is_symlink()
    assert path.read_bytes() == TIDY
    assert path.stat().st_mode & 0o7777 == 0o640


def test_what_is_no_file_of_the_user_s(tmp_path: Path) -> None:
    for argument, said in ((tmp_path, "is not a file"), (tmp_path / "none.rnn", "no such file"), ("lstm", "lstm")):
        result = run(argument)
        assert result.exit_code == 1
        assert "RNN101" in result.stderr
        assert said in result.stderr
    os.mkfifo(tmp_path / "pipe")
    assert "standard input" in run(tmp_path / "pipe").stderr


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.rnn")
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):

        def fail(_: int, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(os, "fsync", fail)
        result = run(path)
        assert result.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 1)
        assert "RNN605" in result.stderr or "interrupted" in result.stderr
        assert path.read_bytes() == UGLY
        assert [each.name for each in tmp_path.iterdir()] == ["a.rnn"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_is_not_to_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.rnn")
    path.chmod(0o400)
    result = run(path)
    assert result.exit_code == 1
    assert "RNN605" in result.stderr
    assert path.read_bytes() == UGLY


def test_it_imports_no_torch(tmp_path: Path) -> None:
    command = "from rnncc.cli import cli; cli(sys.argv[1:], standalone_mode=False)"
    code = f"import sys; {command}; assert 'torch' not in sys.modules"
    path = write(tmp_path / "a.rnn")
    subprocess.run([sys.executable, "-c", code, "format", str(path)], check=True, capture_output=True)
    assert path.read_bytes() == TIDY


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lsprotocol", None)
    monkeypatch.delitem(sys.modules, "rnncc.editing.server", raising=False)
    result = CliRunner().invoke(cli, ["lsp"])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "rnncc lsp needs lsprotocol, which is not installed: pip install 'rnncc[lsp]'" in result.stderr
