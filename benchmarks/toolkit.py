"""nvcc, which programs with a host side of CUDA need: FlashRNN's, and the one that measures what an exchange costs."""

from __future__ import annotations

import os
import shutil
import subprocess


def nvcc() -> str | None:
    """Its path: on PATH, else in $CUDA_HOME or /usr/local/cuda; None where there is none that runs."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    path = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if path is None or subprocess.run([path, "--version"], capture_output=True, check=False).returncode != 0:
        return None
    return path
