"""Timing of functions, on the CPU side by side, and the description of the machine that goes with every result."""

from __future__ import annotations

import json
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import rnncc
from rnncc.stages.build.nvrtc import find_library, known

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


# Milliseconds that a figure may take, of calls one at a time and of calls queued: of long calls fewer tell as much.
SINGLE_MS, QUEUED_MS = 150.0, 40.0


def gpu_ms(function: Function, repeats: int, queued: int) -> tuple[float, float | None]:
    """Milliseconds of a call on the GPU, medians, after two calls that warm up.

    One at a time: between two events round a call that the GPU waits for, the host's preparation included. Back to
    back: a call's share of `queued` calls whose preparation hides behind the GPU's work, which keeps the queue full;
    None where `queued` is 0. Calls that take long are repeated less, but 5 times (or `repeats`) alone and twice queued.
    """
    for _ in range(2):
        function()
    torch.cuda.synchronize()
    single = [_between_events(function, 1)]
    repeats = min(repeats, max(5, int(SINGLE_MS / max(single[0], 1e-3))))
    single += [_between_events(function, 1) for _ in range(repeats - 1)]
    call = statistics.median(single)
    if not queued:
        return call, None
    queued = min(queued, max(2, int(QUEUED_MS / max(call, 1e-3))))
    begin = time.perf_counter()
    function()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    # A kernel that only waits holds the others back until the host has queued all calls.
    cycles = int(2e9 * min(1.0, 1.5 * queued * host))
    several = [_between_events(function, queued, cycles) / queued for _ in range(max(3, repeats // 3))]
    return call, statistics.median(several)


def _between_events(function: Function, calls: int, hold_cycles: int = 0) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    if hold_cycles:
        torch.cuda._sleep(hold_cycles)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        function()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def environment(commit: str = "") -> dict[str, Any]:
    """Processor, threads, versions, commit, and the GPU if there is one. `commit`: what to say where this is no
    checkout of git."""
    root = Path(__file__).resolve().parent.parent
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    found = {
        "processor": model,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "rnncc": rnncc.__version__,
        "python": platform.python_version(),
        "commit": commit or described,
    }
    return found | gpu_environment() if torch.cuda.is_available() else found


def gpu_environment() -> dict[str, Any]:
    """The GPU, its driver, and what comes from NVIDIA besides."""
    about = Path("/proc/driver/nvidia/version")
    driver = re.search(r"\s(\d+\.[\d.]+)\s", about.read_text()) if about.is_file() else None
    nvrtc = find_library()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver[1] if driver else "unknown",
        "cuda": torch.version.cuda,
        "nvrtc": known(nvrtc)[0] if nvrtc else "none",
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def write(path: Path, results: list[dict[str, Any]], about: Mapping[str, Any] | None = None) -> None:
    """The results with their environment (`about`, else as it is now) as JSON. Either the whole file is written, or
    nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps({"environment": about or environment(), "results": results}, indent=1) + "\n")
    beside.replace(path)
