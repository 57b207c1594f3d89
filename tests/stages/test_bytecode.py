"""Loaded packages take the code of their runtime from rnncc's own."""

from __future__ import annotations

import marshal
import os
import py_compile
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

import rnncc
from rnncc.stages import load
from rnncc.stages.load import _own_code

RUNTIME = load._RUNTIME


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of a package's runtime: a copy of one of rnncc's own, which is compiled."""
    monkeypatch.setattr(load, "_RUNTIME", tmp_path / "own")
    for folder in (tmp_path / "own", tmp_path / "toy" / "_runtime"):
        folder.mkdir(parents=True)
        (folder / "settings.py").write_text("value = 1\n")
    py_compile.compile(str(tmp_path / "own" / "settings.py"), doraise=True)
    load._code_of.cache_clear()
    yield tmp_path / "toy" / "_runtime" / "settings.py"
    load._code_of.cache_clear()


def value(code: CodeType | None) -> object:
    """What a module sets."""
    assert code is not None
    found: dict[str, object] = {}
    exec(code, found)
    return found["value"]


def bytecode(module: Path) -> Path:
    """Python's file for a module."""
    (path,) = (module.parent / "__pycache__").iterdir()
    return path


def test_code_that_packages_share_names_the_file_of_its_own() -> None:
    for layer in (rnncc.load("lstm").LSTM, rnncc.load("gru").GRU):
        (package,) = sys.modules[layer.__module__.rpartition(".")[0]].__path__
        file = Path(layer.forward.__code__.co_filename)
        assert file.is_relative_to(package) and "def forward" in file.read_text(encoding="utf-8")


def test_the_runtime_of_a_package_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (package,) = map(Path, rnncc.load("lstm").__path__)
    copies = sorted((package / "_runtime").rglob("*.py"))
    assert len(copies) > 50
    monkeypatch.setattr(load, "compile", None, raising=False)
    for copy in copies:
        expected = compile(copy.read_bytes(), "", "exec", dont_inherit=True)
        assert _own_code(str(copy)) == expected, copy
        assert not list(copy.parent.glob(f"__pycache__/{copy.stem}.*"))
    load.prepare(package / "_runtime")


def test_what_a_package_says_is_what_runs(settings: Path) -> None:
    assert value(_own_code(str(settings))) == 1
    settings.write_text("value = 2\n")  # another rnncc's
    assert _own_code(str(settings)) is None
    assert value(load._Loader("settings", str(settings)).get_code("settings")) == 2


@pytest.mark.parametrize("damage", ["cut short", "no code", "bits"])
def test_damaged_bytecode_of_rnncc_s_own_is_no_error(
    tmp_path: Path, settings: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bytecode(tmp_path / "own" / "settings.py")
    if damage == "bits":

        def get_code(loader: object, name: str) -> CodeType:
            raise SystemError("bad argument to internal function")

        monkeypatch.setattr(SourceFileLoader, "get_code", get_code)
    else:
        path.write_bytes(path.read_bytes()[:16] + (b"" if damage == "cut short" else marshal.dumps("value = 3")))
    assert _own_code(str(settings)) is None
    monkeypatch.undo()


def test_wrong_bytecode_of_rnncc_s_own_does_not_outlive_it(tmp_path: Path, settings: Path) -> None:
    """Python knows its file by the source's time and size."""
    own = tmp_path / "own" / "settings.py"
    before = own.stat()
    for module in (own, settings):
        module.write_text("value = 2\n")
    os.utime(own, ns=(before.st_atime_ns, before.st_mtime_ns))
    loader = load._Loader("settings", str(settings))
    assert value(loader.get_code("settings")) == 1  # as rnncc itself would run
    bytecode(own).unlink()
    load._code_of.cache_clear()  # a new process
    assert value(loader.get_code("settings")) == 2
    assert not (settings.parent / "__pycache__").exists()


def test_only_the_runtime_of_a_package_is_a_copy(tmp_path: Path) -> None:
    for name in ("settings.py", "_runtime.py"):
        (tmp_path / name).write_text((RUNTIME / "settings.py").read_text(encoding="utf-8"), encoding="utf-8")
        assert _own_code(str(tmp_path / name)) is None
