"""The measured floor of a step: how long the CTAs that hold a matrix take to exchange the state, nothing else."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from gpu_cases import GATES, Case
from toolkit import nvcc

SOURCE = Path(__file__).with_name("exchange_floor.cu")
STEPS = 2000
BLOCKS = {"cluster": (1, 2, 4, 8, 16), "grid": (16, 48, 96, 132)}
# Registers and shared memory of an SM that can hold a matrix, in bytes; less for what works on it.
HOLDS = 380_000
GROUP = 8  # batch entries that the tensor cores take at once: more of them run side by side
LARGEST = 32_768  # bytes


class Exchange(NamedTuple):
    """`bytes` among so many CTAs, of a cluster or of the whole GPU."""

    scope: str
    ctas: int
    bytes: int


def bytes_of(case: Case) -> int:
    """The state of a head in 16 bits, for the batch entries of a group: what every CTA needs at every step. In whole
    pieces for up to 16 CTAs."""
    exact = case.head_dim * min(case.batch, GROUP) * 2
    return max(256, -(-exact // 256) * 256)


def exchanges(cases: Sequence[Case]) -> list[Exchange]:
    """What has to be measured for the floors of the cases."""
    sizes = sorted({bytes_of(case) for case in cases})
    return [
        Exchange(scope, ctas, size)
        for size in sizes
        if size <= LARGEST
        for scope, counts in BLOCKS.items()
        for ctas in counts
    ]


def floor_us(case: Case, measured: Mapping[Exchange, float]) -> float | None:
    """The quickest exchange among CTAs that are enough to hold a head's matrix, in microseconds per step; None where
    none is, or none was measured, or the dtype has no 16 bits."""
    matrix = 2 * GATES[case.cell] * case.head_dim**2
    size = bytes_of(case)
    found = [time for exchange, time in measured.items() if exchange.bytes == size and exchange.ctas * HOLDS >= matrix]
    return min(found) if found and case.dtype != "fp32" else None


def measure_exchanges(wanted: Sequence[Exchange]) -> dict[Exchange, float]:
    """Microseconds a step, measured by a program of its own. Raises RuntimeError with what nvcc or the program said."""
    found = nvcc()
    if found is None:
        raise RuntimeError("the floor needs nvcc, which is neither on PATH nor in $CUDA_HOME/bin")
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "exchange_floor")
        architecture = f"-arch=sm_{major}{minor}{'a' if major >= 9 else ''}"
        _run([found, "-std=c++17", "-O3", architecture, str(SOURCE), "-o", program])
        words = [str(word) for exchange in wanted for word in exchange]
        return dict(read(_run([program, str(STEPS), *words])))


def read(text: str) -> Iterator[tuple[Exchange, float]]:
    """The program's lines."""
    for line in text.splitlines():
        scope, ctas, size, time = line.split()
        yield Exchange(scope, int(ctas), int(size)), float(time)


def _run(command: Sequence[str]) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} did not end within two minutes") from None
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stderr.strip()}")
    return done.stdout
