"""The comparison of a Caltech CS179 project on "Were RNNs All We Needed?" (D. Sheth, cuRNN; dhruvmsheth.github.io,
"Parallelizable GRUs and LSTMs in CUDA", 2025) with our kernels: minGRU and minLSTM, one sequence of T = 256 to 65536
steps in float32 from gate pre-activations on, forward alone as there.

    python benchmarks/scan_cs179.py [--quick] [--out FILE]

`sequential CPU` is our CPU kernel, `scan CPU` a plain parallel scan in torch (it exists here alone: a scan on a CPU is
more work for the same result), `scan GPU` our kernel on a GPU, between CUDA events, the data on the device.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from measure import environment, gpu_ms, interleaved, median_ms, output, write
from scan_calls import Pair, Tensors, compose
from torch import Tensor

CELLS = ("mingru", "minlstm")
STEPS = tuple(4**k for k in range(4, 9))
CHANNELS = 256
# The project's scans with their projections, i9-12900K and RTX 4090, minGRU, milliseconds: (scan CPU, scan GPU) by T.
THEIRS = {4096: (300, 340), 65536: (10989, 5330)}


def coefficients(cell: str, gates: Tensor) -> Pair:
    """minGRU's or minLSTM's a and b of h[t] = a[t] h[t-1] + b[t] from its pre-activations [T, B, gates D]; after Feng
    et al., arXiv:2410.01201, sections 3.1 and 3.2."""
    if cell == "mingru":
        z, n = gates.chunk(2, -1)
        z = torch.sigmoid(z)
        return 1 - z, z * n
    f, i, n = gates.chunk(3, -1)
    f, i = torch.sigmoid(f), torch.sigmoid(i)
    return f / (f + i), i / (f + i) * n


def plain_scan(a: Tensor, b: Tensor) -> Tensor:
    """h[t] = a[t] h[t-1] + b[t] from 0 over the first dimension, in log2 T passes: each step's map joined with the one
    that ends 1, 2, 4, ... steps before (Hillis and Steele, "Data parallel algorithms", 1986)."""
    steps, reach = a.shape[0], 1
    while reach < steps:
        joined = compose((a[:-reach], b[:-reach]), (a[reach:], b[reach:]))
        a, b = torch.cat((a[:reach], joined[0])), torch.cat((b[:reach], joined[1]))
        reach *= 2
    return b


def compare(cell: str, steps: int, quick: bool) -> dict[str, Any]:
    """One row, milliseconds; `gpu_ms` None where there is no GPU."""

    def tensors(device: str) -> Tensors:
        return Tensors(cell, 1, steps, CHANNELS, dtype=torch.float32, device=device, trained=False)

    here = tensors("cpu")
    times = interleaved(
        {
            "sequential": here.timed(here.by_op, "fw"),
            "scan": here.timed(lambda: plain_scan(*coefficients(cell, here.streams[0])), "fw"),
        },
        seconds=0.1 if quick else 0.5,
    )
    found: dict[str, float | None] = {f"{name}_cpu_ms": median_ms(value) for name, value in times.items()}
    found |= {"scan_gpu_ms": None, "scan_gpu_queued_ms": None}
    if torch.cuda.is_available():
        there = tensors("cuda")
        found["scan_gpu_ms"], found["scan_gpu_queued_ms"] = gpu_ms(there.timed(there.by_op, "fw"), 15, 10)
    return {"cell": cell, "B": 1, "T": steps, "D": CHANNELS} | found


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The rows, and the project's own figures where they are known (of the whole network, on its machines)."""
    yield (
        f"{'cell':9}{'T':>7}{'sequential CPU ms':>19}{'scan CPU':>12}{'scan GPU':>10}{'queued':>9}"
        "  CS179's scan CPU, GPU"
    )
    for row in rows:
        gpu = [row["scan_gpu_ms"], row["scan_gpu_queued_ms"]]
        shown = ["no GPU" if time is None else f"{time:.4f}" for time in gpu]
        theirs = THEIRS.get(row["T"]) if row["cell"] == "mingru" else None
        known = f"  {theirs[0]}, {theirs[1]}" if theirs else ""
        yield (
            f"{row['cell']:9}{row['T']:7}{row['sequential_cpu_ms']:19.3f}{row['scan_cpu_ms']:12.2f}{shown[0]:>10}"
            f"{shown[1]:>9}{known}"
        )


def main() -> None:
    """Measure everything, print the table, and write it where --out says so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time a figure")
    parser.add_argument("--out", type=output, help="where rows go")
    parser.add_argument("--commit", default="", help="what to call this version where git does not know")
    arguments = parser.parse_args()
    rows = [compare(cell, steps, arguments.quick) for cell in CELLS for steps in STEPS]
    print("\n".join(table(rows)))
    if arguments.out:
        write(arguments.out, rows, environment(arguments.commit))


if __name__ == "__main__":
    main()
