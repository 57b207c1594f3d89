"""Loaded packages take the bytecode of their runtime from rnncc's own."""

from __future__ import annotations

import marshal
import py_compile
import sys
from pathlib import Path
from typing import Any

import pytest

import rnncc
from rnncc.stages.load import _RUNTIME, _compiled, _of_runtime


def test_code_that_packages_share_names_the_file_of_its_own() -> None:
    for layer in (rnncc.load("lstm").LSTM, rnncc.load("gru").GRU):
        (package,) = sys.modules[layer.__module__.rpartition(".")[0]].__path__
        file = Path(layer.forward.__code__.co_filename)
        assert file.is_relative_to(package) and "def forward" in file.read_text(encoding="utf-8")


def test_the_runtime_of_a_package_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {str(path.relative_to(_RUNTIME)): path.read_bytes() for path in _RUNTIME.rglob("*.py")}
    expected = {name: compile(source, "", "exec", dont_inherit=True) for name, source in sources.items()}
    monkeypatch.setattr("rnncc.stages.load.compile", None, raising=False)
    for name, source in sources.items():
        assert _compiled.__wrapped__(source, name, -1) == expected[name], name


@pytest.mark.parametrize("damaged", ["", "cut short", "no bytecode"])
def test_what_the_runtime_of_a_package_says_is_what_runs(
    tmp_path: Path, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package may be another version's, and a file of Python's may be damaged."""
    monkeypatch.setattr("rnncc.stages.load._RUNTIME", tmp_path)
    own, source = tmp_path / "settings.py", b"value = 1\n"
    own.write_bytes(source if damaged else b"value = 2\n")
    py_compile.compile(str(own), doraise=True)
    (bytecode,) = (tmp_path / "__pycache__").iterdir()
    if damaged:
        header = bytecode.read_bytes()[:16]
        bytecode.write_bytes(header + (b"" if damaged == "cut short" else marshal.dumps("value = 3")))
    found: dict[str, Any] = {}
    exec(_compiled.__wrapped__(source, "settings.py", -1), found)
    assert found["value"] == 1


def test_only_the_runtime_of_a_package_is_a_copy() -> None:
    assert _of_runtime("/packages/toy/_runtime/kernels/fused.py") == "kernels/fused.py"
    assert _of_runtime("/packages/toy/__init__.py") == _of_runtime("/packages/_runtime.py") == ""
