"""The wheel holds what rnncc needs where there is no checkout: templates and cells."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds, as an installation would lay it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_templates_and_cells_travel_inside_the_package(installed: Path) -> None:
    for kind in ("templates", "cells"):
        here = {path.relative_to(ROOT / kind) for path in (ROOT / kind).rglob("*") if path.is_file()}
        there = installed / "rnncc" / "_data" / kind
        assert {path.relative_to(there) for path in there.rglob("*") if path.is_file()} == here
    assert (installed / "rnncc" / "stages" / "parse" / "grammar.lark").is_file()
    assert sorted(path.name for path in installed.iterdir())[0] == "rnncc"


@pytest.mark.parametrize(
    "command",
    [("check", "lstm"), ("show", "lstm", "--stage", "render"), ("explain", "RNN203"), ("build", "elman")],
    ids=" ".join,
)
def test_the_installed_package_works(installed: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    # Without the checkout on the path: -P leaves the current folder out, and an editable installation comes later.
    program = "import sys, rnncc; print(rnncc.__file__, file=sys.stderr); from rnncc.__main__ import main; main()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", program, *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(str(installed))


def test_a_built_package_as_a_wheel_can_be_installed(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    folder, wheel = run("-m", "rnncc", "build", "elman", "--wheel").splitlines()
    assert folder == "elman"
    first = (tmp_path / wheel).read_bytes()
    assert run("-m", "rnncc", "build", "elman", "--wheel").splitlines()[1] == wheel
    assert (tmp_path / wheel).read_bytes() == first
    # pip checks the wheel's name, its metadata and every hash.
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", "site", wheel)
    use = "import sys; sys.path.insert(0, 'site'); import elman; print(elman.__path__[0], elman.Elman(2, 3))"
    assert run("-P", "-c", use).split(maxsplit=1) == [str(tmp_path / "site" / "elman"), "Elman(2, 3)\n"]
