"""Recurrences without a recurrent matrix on a GPU, side by side in one run: our ops on gate pre-activations in both
layouts, and with Newton's iterations; accelerated-scan (warp, scalar), flash-linear-attention's hgrn (recurrent,
chunk), torch's associative_scan, the log-space minGRU (eager, compiled), and the eager loop.

    python benchmarks/gpu_scan.py [--quick] [--only WORDS] [--shard I/N] [--out FILE] [--plot PNG]
    python benchmarks/gpu_scan.py --show FILE [--plot PNG]

WORDS, separated by commas, choose axes (targets, steps, cells, newton), parties (`rnncc tbd`, `fla chunk`, fla, ...)
and cells. Times are medians of CUDA events: `call` with the GPU waiting for the host, `queued` back to back. A pass
must read and write every pre-activation and gradient once, and states once as the output. These bytes over the time are
its bandwidth, and `of copy` is that bandwidth relative to a copy of 1 GiB on the same device in the same run. Everyone
has its own layout: ours is [T, B, D] or [B, T, D], accelerated-scan's [B, D, T], the others' [B, T, D]; no transposes
are counted. accelerated-scan starts at 0, and FLA's chunk gives no gradient of a start; ours has both. torch's scan
runs forward alone: gradients through pairs are silently wrong or take T x T numbers. A peer that is not installed is a
row that says so.

Rows are written as soon as they are measured, by default to gpu_scan.json, and a run that is started again goes on
where it stopped. benchmarks/scan_cs179.py is another comparison.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu_calls import DTYPES
from gpu_cases import missing, read_case, row_of
from gpu_run import MINUTES, Results, in_time, parser_of, part, read_or_measure, words_of
from measure import Function, gpu_ms
from scan_calls import INSTALLED, Loop, Tensors, peer, peer_call
from scan_cases import LOG_SPACE, NEWTON, OURS, PEERS, ScanCase, select
from scan_cells import module_of, traffic
from scan_table import plot, table

from rnncc.language.diagnostics import RnnccError

COPY_BYTES = 2**30
# One call queues thousands of kernels, or many that each take long: the queue is full anyhow.
SLOW = ("eager loop", "log eager", "torch scan")


def copy_gb_s() -> float:
    """What a copy on the device reads and writes, GB/s."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    _, time = gpu_ms(lambda: target.copy_(source), 15, 10)
    assert time is not None
    return 2 * COPY_BYTES / time / 1e6


def function_of(case: ScanCase, device: str = "cuda") -> Function:
    """What runs a case."""
    dtype = DTYPES[case.dtype]
    if case.who in (*PEERS, *LOG_SPACE):
        return peer_call(case.who, case.batch, case.steps, case.channels, dtype, device, case.run)
    tensors = Tensors(
        case.cell, case.batch, case.steps, case.channels, dtype=dtype, device=device,
        trained=case.run == "fw+bw", batch_first=case.who == "rnncc btd", newton=case.who == NEWTON,
    )  # fmt: skip
    forward = tensors.by_op if case.who in (*OURS, NEWTON) else Loop(tensors, compiled=False)
    return tensors.timed(forward, case.run)


def absent(who: str) -> str:
    """Why a peer cannot be called at all, or nothing."""
    if who not in INSTALLED:
        return ""
    try:
        peer(who)
    except Exception as error:  # importing builds or loads kernels, and may raise anything: the row says what
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def measure(case: ScanCase, copy: float, quick: bool) -> dict[str, Any]:
    """A case's row; `missing` instead of times where the peer is, `error` where the case cannot run. Raises
    RuntimeError where nothing else can run any more either."""
    if why := absent(case.who):
        return row_of(case, missing=why)
    slow = case.who in SLOW
    repeats = 3 if slow or quick else 15
    try:
        call, queued = gpu_ms(function_of(case), repeats, 0 if slow else 10)
    except Exception as error:  # a peer's own or torch's, of whatever kind: the row says which
        torch.cuda.synchronize()
        return row_of(case, error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    numbers = traffic(case.cell).of(case.run)
    return row_of(case, call_ms=call, queued_ms=queued, repeats=repeats, numbers=numbers, copy_gb_s=copy)


def run(cases: Sequence[ScanCase], results: Results, quick: bool, minutes: float = MINUTES) -> None:
    """Measure what the file does not have yet. Raises RnnccError where something cannot be built."""
    # A peer may have been installed since.
    results.rows = [row for row in results.rows if "missing" not in row or absent(row["who"])]
    left = missing(cases, results.rows)
    if not left:
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        builds = dict.fromkeys(key for case in left for key in ((case.cell, False), (case.cell, case.who == NEWTON)))
        list(pool.map(module_of, *zip(*builds, strict=True)))
    copy = copy_gb_s()
    print(f"a copy: {copy:.0f} GB/s; {len(left)} cases", flush=True)
    for case in in_time(left, minutes):
        row = measure(case, copy, quick)
        results.add(row)
        said = row.get("missing") or row.get("error") or f"{row['call_ms']:.4f} ms"
        size = f"B={case.batch} T={case.steps} D={case.channels}"
        print(f"{case.who} {case.cell} {size} {case.dtype} {case.run}: {said}", flush=True)
        torch.cuda.empty_cache()


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, print the table, draw the plot. 1 where nothing can be measured."""
    arguments = parser_of(__doc__, Path("gpu_scan.json"), draws=True).parse_args(words)

    def measure_cases(results: Results) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        run(cases, results, arguments.quick, arguments.minutes)

    try:
        cases = part(select(words_of(arguments), arguments.quick), arguments.shard)
        rows, _ = read_or_measure(arguments, measure_cases)
        rows = [row for row in rows if read_case(ScanCase, row) in set(cases)]
    except (OSError, ValueError, RuntimeError, RnnccError) as error:
        print(f"gpu_scan: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(rows)))
    if arguments.plot:
        plot(rows, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
