"""`rnncc env`: what works here, and the settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_cli import run


def test_env_tells_what_is_here() -> None:
    import torch

    found = json.loads(run("env", "--json").stdout)
    assert found["torch"]["version"] == torch.__version__
    assert set(found) >= {"rnncc", "python", "cxx", "nvrtc", "cpu", "cache", "advice"}
    assert run("env").exit_code == 0


def test_env_says_how_to_get_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    found = json.loads(run("env", "--json").stdout)
    assert found["cxx"] is None
    assert any("CXX" in line for line in found["advice"])


def test_env_shows_settings_and_checks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNCC_CACHE_LIMIT", "2GB")
    monkeypatch.setenv("MAX_JOBS", "")
    found = json.loads(run("env", "--json").stdout)
    assert found["settings"]["RNNCC_CACHE_LIMIT"] == "2GB" and "MAX_JOBS" not in found["settings"]
    assert not any("RNNCC" in line for line in found["advice"])
    assert "RNNCC_CACHE_LIMIT 2GB" in run("env").stdout
    monkeypatch.setenv("RNNCC_NVRTC_FLAGS", "--use_fast_math")
    assert json.loads(run("env", "--json").stdout)["settings"]["RNNCC_NVRTC_FLAGS"] == "--use_fast_math"
    wrong = {"RNNCC_CACHE_LIMIT": "a lot", "RNNCC_COMPILE": "2", "RNNCC_LOG": "loud", "MAX_JOBS": "0"}
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    advice = json.loads(run("env", "--json").stdout)["advice"]
    assert [[line for line in advice if f"{name} is '{value}'" in line] != [] for name, value in wrong.items()] == [
        True, True, True, True,
    ]  # fmt: skip


def test_env_says_what_is_wrong_with_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis.tex").write_text("")
    monkeypatch.setenv("RNNCC_CACHE_DIR", str(tmp_path))
    found = json.loads(run("env", "--json").stdout)
    assert any(f"'{tmp_path}' is not a cache that rnncc made" in line for line in found["advice"])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
