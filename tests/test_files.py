"""Files that commands write: all of a file or nothing, whatever happens meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnncc.cli import cli
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.files import replaced


def write(path: Path, text: str) -> None:
    with replaced(path) as beside:
        beside.write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "new").read_text() == "text"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o664])
def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path, mode: int) -> None:
    (tmp_path / "there").mkdir()
    path, link = tmp_path / "there" / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(mode)
    link.symlink_to("there/file")
    with replaced(link) as beside:
        # What was private is private at all times.
        assert beside.stat().st_mode & 0o077 == 0
        beside.write_text("new")
    assert link.is_symlink() and path.read_text() == "new"
    assert path.stat().st_mode & 0o7777 == mode
    assert names(tmp_path / "there") == ["file"]


def test_a_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug"), OSError(28, "No space left on device")])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises((type(error), RnnccError)) as caught, replaced(path) as beside:
        beside.write_text("half of it")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["file"]
    if isinstance(error, OSError):
        assert isinstance(caught.value, RnnccError)
        assert str(caught.value) == f"error[RNN605]: '{path}' cannot be written: no space left on device"


def test_a_place_where_nothing_can_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, why in ((tmp_path / "none" / "file", "no such"), (tmp_path / "file" / "inner", "not a directory")):
        with pytest.raises(RnnccError, match=rf"RNN605.*{why}"):
            write(path, "text")
    assert names(tmp_path) == ["file"]


def test_links_in_a_circle_are_said(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for words in ("latex lstm --out", "draw lstm --out", "bench lstm --json", "build lstm --target cpu --out"):
        result = CliRunner().invoke(cli, [*words.split(), str(tmp_path / "loop")])
        assert result.exit_code in (1, 2) and result.stderr.count("error[") == 1
        assert "cannot be written" in result.stderr, result.stderr
    assert names(tmp_path) == ["loop"]


def test_two_that_write_at_once_do_not_meet(tmp_path: Path) -> None:
    """Each writes a file of its own, and the last one stays whole."""
    path = tmp_path / "file"
    gate = threading.Barrier(4)
    texts = [str(number) * 100_000 for number in range(4)]
    places: set[Path] = set()

    def work(text: str) -> None:
        with replaced(path) as beside:
            places.add(beside)
            gate.wait()
            beside.write_text(text)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(places) == 4
    assert path.read_text() in texts and names(tmp_path) == ["file"]
