"""What waits for the import of a module happens once, after it, whatever else asks for the module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnncc.runtime.kernels.on_import import when_imported

NAME = "rnncc_test_of_later"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported and was not yet."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    path = tmp_path / f"{NAME}.py"
    path.write_text("done = True\n")
    yield path
    sys.modules.pop(NAME, None)


def test_it_happens_once_after_the_import(module: Path) -> None:
    happened: list[str] = []
    for name in "ab":
        when_imported(NAME, lambda name=name: happened.append(f"{name} {sys.modules[NAME].done}"))  # type: ignore[misc]
    assert happened == []
    importlib.import_module(NAME)
    assert sorted(happened) == ["a True", "b True"]
    importlib.reload(sys.modules[NAME])
    assert len(happened) == 2
    when_imported(NAME, lambda: happened.append("now"))
    assert happened[2:] == ["now"]


def test_who_only_asks_whether_there_is_the_module_changes_nothing(module: Path) -> None:
    happened: list[str] = []
    when_imported(NAME, lambda: happened.append("now"))
    assert importlib.util.find_spec(NAME) is not None and happened == []
    importlib.import_module(NAME)
    assert happened == ["now"]


def test_an_import_that_fails_is_not_the_last(module: Path) -> None:
    module.rename(module.with_suffix(".aside"))
    happened: list[str] = []
    when_imported(NAME, lambda: happened.append("now"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    module.write_text("raise RuntimeError('a module that fails')\n")
    importlib.invalidate_caches()
    with pytest.raises(RuntimeError, match="a module that fails"):
        importlib.import_module(NAME)
    assert happened == []
    module.write_text("done = True  # now\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert happened == ["now"]
