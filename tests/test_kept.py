"""What is kept of compilers is given back for the same text alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import kept


def test_it_is_made_once_and_again_where_a_part_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "kept")
    made = []

    def make() -> bytes:
        made.append(1)
        return bytes(made)

    assert [kept.kept(parts, make) for parts in (("a", "b"), ("a", "b"), ("ab",), ("a", "b"))] == [
        b"\1", b"\1", b"\1\1", b"\1",
    ]  # fmt: skip


def test_a_failure_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path)

    def fail() -> bytes:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            kept.kept(("a",), fail)
    assert kept.kept(("a",), lambda: b"made") == b"made"


def test_one_of_several_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    began = threading.Barrier(2, timeout=10)
    made = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.2)  # as a compiler does
        return b"made"

    def ask(_: int) -> bytes:
        began.wait()
        return kept.kept(("a",), make)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == [b"made"] * 2
    assert made == [1]


def test_a_shared_folder_is_filled_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path_factory.mktemp("popen-gw0")
    monkeypatch.setattr(tmp_path_factory, "getbasetemp", lambda: own)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError

    with pytest.raises(ValueError):
        kept.shared_folder(tmp_path_factory, "of all", fail)
    for _ in range(2):
        folder = kept.shared_folder(tmp_path_factory, "of all", lambda folder: (folder / "made").mkdir())
        assert folder == own.parent / "of all" and [each.name for each in folder.iterdir()] == ["made"]
