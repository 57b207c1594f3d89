"""compute-sanitizer finds nothing in small calls of every family of kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.harness import Packages
from tests.cuda.scans import package
from tests.cuda.small_calls import ALTERNATING, CASES, SCANS, SINGLE, STEPWISE, build_stepwise
from tests.cuda.test_newton import newton

TOOLKIT = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin"
SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(TOOLKIT))
# Apart from what the tool finds: a small call that fails gives 1.
FOUND = 9


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(SANITIZER is None, reason="no compute-sanitizer")]
every_tool = pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])


def watch(tool: str, *calls: str) -> str:
    """What small calls print under a tool, which finds nothing."""
    assert SANITIZER is not None
    command = [SANITIZER, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "5"]
    if tool != "memcheck":
        command += ["--num-cuda-barriers", "65536"]  # more than the default, which kernels in clusters overflow
    # Where torch keeps freed memory for itself, a read past the end of a tensor is none past that of an allocation.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.cuda.small_calls", *calls],
        capture_output=True, text=True, check=False, timeout=200, env=environment,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    shown = done.stdout + done.stderr
    if "Device not supported" in shown:
        pytest.skip("compute-sanitizer does not support this device")
    assert done.returncode == 0, f"{shown[:3000]}\n…\n{shown[-3000:]}"
    assert "ERROR SUMMARY: 0 errors" in shown or "0 hazards" in shown
    return done.stdout


@every_tool
def test_loops_with_products(tool: str, packages: Packages) -> None:
    packages("lstm")  # builds it: NVRTC is not watched
    build_stepwise(packages.folder)
    lines = 2 * len(CASES + STEPWISE) + len(ALTERNATING) + len(SINGLE)
    assert watch(tool, "dense", str(packages.folder)).count(": ok") == lines


@every_tool
def test_loops_without_products(tool: str) -> None:
    for name, *_, iterates in SCANS:
        (newton if iterates else package)(name)  # builds it
    assert watch(tool, "scan").count(": ok") == 2 * len(SCANS)
