"""The file of a result: rows, and the machine that goes with them. rnncc/bench/timing.py takes the times."""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rnncc.bench.machine import machine
from rnncc.bench.timing import Function, gpu_ms, interleaved, median_ms, ratio
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.files import check_writable

__all__ = ["Function", "environment", "gpu_ms", "installation", "interleaved", "median_ms", "output", "ratio", "write"]


def environment(commit: str = "") -> dict[str, Any]:
    """The machine, and rnncc's commit. `commit`: what to say where this is no checkout of git."""
    root = Path(__file__).resolve().parent.parent
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return machine() | {"commit": commit or described}


def output(text: str) -> Path:
    """The value of an option that names a file to write, for argparse, which says what is wrong before anything is
    measured. The folder is made."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_writable(path)
    except (OSError, RnnccError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {error}") from None
    return path


def installation(text: str) -> Path:
    """The value of an option that names a checkout or an installation of rnncc, for argparse. Python would take the one
    that is installed in place of none, and a benchmark would compare that with itself."""
    path = Path(text).resolve()
    if not (path / "rnncc" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"there is no rnncc in {path}")
    return path


def keep_freed_memory() -> None:
    """Tell the C library (glibc) to give no memory back to the system before the process ends, but for blocks above 32
    MiB. Raises OSError where it does not obey."""
    trim_threshold, mmap_threshold, most = -1, -3, 32 << 20
    mallopt = ctypes.CDLL(None).mallopt
    if not (mallopt(trim_threshold, 1 << 30) and mallopt(mmap_threshold, most)):
        raise OSError("mallopt failed")


def write(path: Path, results: list[dict[str, Any]], about: Mapping[str, Any] | None = None) -> None:
    """The results with their environment (`about`, else as it is now) as JSON, one row per line. Either the whole file
    is written, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    rows = ",\n".join(map(json.dumps, results))
    beside.write_text(f'{{"environment": {json.dumps(about or environment())},\n"results": [\n{rows}\n]}}\n')
    beside.replace(path)
