"""Timing of functions side by side, and the description of the machine that goes with every result."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import rnncc

Function = Callable[[], object]


def interleaved(functions: Mapping[str, Function], *, seconds: float = 1.0, least: int = 5) -> dict[str, list[float]]:
    """Seconds of each call of each function, the functions called in turn so that drift of the machine meets all alike.

    Two calls of each warm up; then rounds until `seconds` a function have passed (at least `least` rounds).
    """
    for function in functions.values():
        function()
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    begin = time.perf_counter()
    while len(next(iter(times.values()))) < least or time.perf_counter() - begin < seconds * len(functions):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return times


def median_ms(times: list[float]) -> float:
    """The median in milliseconds."""
    return statistics.median(times) * 1e3


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """The median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def environment() -> dict[str, Any]:
    """Processor, threads, versions and commit."""
    root = Path(__file__).resolve().parent.parent
    commit = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "processor": model,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "rnncc": rnncc.__version__,
        "python": platform.python_version(),
        "commit": commit,
    }


def write(path: Path, results: list[dict[str, Any]]) -> None:
    """The results with their environment as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")
