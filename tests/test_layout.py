"""The layout of the C++ and CUDA headers is clang-format's. (ruff sees to Python's.)"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rnncc.machine.paths import templates_dir

PROGRAM = shutil.which("clang-format")
# Other versions break lines elsewhere.
VERSION = 23


def version() -> int:
    if PROGRAM is None:
        return 0
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)", said)
    return int(found[1]) if found else 0


@pytest.mark.skipif(version() != VERSION, reason=f"no clang-format {VERSION} (pip install clang-format=={VERSION}.*)")
def test_headers_are_formatted() -> None:
    folders = (templates_dir() / "include", Path(__file__).parent / "emulated")
    headers = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".h", ".cuh")]
    assert headers and PROGRAM is not None
    checked = subprocess.run(
        [PROGRAM, "--dry-run", "-Werror", *map(str, headers)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
