"""Optional libraries: what is said where one is missing, and that every extra that is asked for exists."""

from __future__ import annotations

import ast
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from rnncc.cli.output import EXIT_TOOLCHAIN, fail
from rnncc.extras import is_installed, needs
from rnncc.language.diagnostics import RnnccError

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def message(caught: pytest.ExceptionInfo[RnnccError]) -> str:
    """The one line of the error."""
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "RNN611" and not diagnostic.help and "\n" not in str(caught.value)
    return diagnostic.message


def test_a_missing_library_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RnnccError) as caught, needs("plot", "rnncc bench --plot"):
        import no_such_library.part  # type: ignore[import-not-found]  # noqa: F401
    expected = "rnncc bench --plot needs no_such_library, which is not installed: pip install 'rnncc[plot]'"
    assert message(caught) == expected
    assert fail(caught.value, as_json=False) == EXIT_TOOLCHAIN
    assert capsys.readouterr().err == f"error[RNN611]: {expected}\n"


def test_a_broken_library_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise ImportError('built for\\nanother numpy', name=__name__)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RnnccError) as caught, needs("plot", "a picture"):
        import broken_library  # type: ignore[import-not-found]  # noqa: F401
    assert message(caught).startswith(
        "a picture needs broken_library, which cannot be imported (built for another numpy)"
    )


def test_a_name_that_a_library_lacks_is_said() -> None:
    with pytest.raises(RnnccError) as caught, needs("plot", "a picture"):
        from json import no_such_name  # type: ignore[attr-defined]  # noqa: F401
    assert "a picture needs json, which cannot be imported (cannot import name 'no_such_name'" in message(caught)


def test_a_mistake_of_rnncc_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError), needs("plot", "a picture"):
        import_module("rnncc.no_such_module")


def test_what_is_installed_is_known_without_importing_it() -> None:
    assert is_installed("torch") and not is_installed("no_such_library")


def extras_asked_for() -> dict[str, str]:
    """The extra of each `needs(…)` in rnncc, by place. It is a string, so that this can be read."""
    found = {}
    for path in sorted((ROOT / "rnncc").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "needs":
                extra = node.args[0]
                assert isinstance(extra, ast.Constant) and isinstance(extra.value, str), f"{path}:{node.lineno}"
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = extra.value
    return found


def test_every_extra_that_is_asked_for_exists() -> None:
    declared = PROJECT["optional-dependencies"]
    assert {place: extra for place, extra in extras_asked_for().items() if extra not in declared} == {}
    assert all(declared.values())
