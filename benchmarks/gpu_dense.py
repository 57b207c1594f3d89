"""Dense recurrences on a GPU, side by side in one run: our kernels for named sizes and those for every size, cuDNN
through torch.nn, loops over steps in torch (eager and compiled), and the measured floor of the exchange of states.

    python benchmarks/gpu_dense.py [--quick] [--only WORDS] [--shard I/N] [--out FILE] [--plot PNG]
    python benchmarks/gpu_dense.py --show FILE [--plot PNG]

Ours get pre-activations; cuDNN multiplies its input itself, which is timed apart and taken off. Times are medians of
CUDA events: `call` with the GPU waiting for the host, as a user sees a single call, and `queued` back to back, where
the host's work hides behind the GPU's. Every row is written as soon as it is measured, and a run that is started again
goes on where it stopped. WORDS, separated by commas, choose axes (targets, cells, dtypes, steps, loops, full), parties
(rnncc, alternating, cudnn, eager, compiled) and cells (lstm, gru, elman, slstm); --quick leaves out the axis `full`,
which stands for every size and batch, unless it is named.

Times of FlashRNN stand beside ours as benchmarks/gpu_flashrnn.py has measured them on an H200 (its file is
benchmarks/results/gpu_flashrnn.json): they are no part of this run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_calls import Packages, work_of
from gpu_cases import Case, case_of, missing, row_of, select
from gpu_floor import exchanges, floor_us, measure_exchanges
from gpu_plot import plot
from gpu_run import MINUTES, Results, in_time, parser_of, part, read_or_measure, words_of
from gpu_table import table
from measure import gpu_ms

from rnncc.bench.predict import target_named
from rnncc.language.diagnostics import RnnccError

# Loops in torch queue thousands of kernels a call: the queue is full anyhow.
LOOPS = ("eager", "compiled")


def measure(case: Case, packages: Packages, floor: float | None, quick: bool) -> dict[str, Any]:
    """A case's row. A case that cannot run has `error` instead of times. Raises RuntimeError where nothing else can run
    any more either."""
    is_loop = case.who in LOOPS
    repeats = (3 if is_loop else 5) if quick else 5 if is_loop else 15
    queued = 0 if is_loop else 10
    try:
        work = work_of(case, packages)
        call, back_to_back = gpu_ms(work.call, repeats, queued)
        measured: dict[str, Any] = {"call_ms": call, "queued_ms": back_to_back}
        if work.input_products is not None:
            measured["input_call_ms"], measured["input_queued_ms"] = gpu_ms(work.input_products, repeats, queued)
    except (RuntimeError, ValueError) as error:
        torch.cuda.synchronize()
        return row_of(case, error=str(error).splitlines()[0])
    return row_of(case, **measured, repeats=repeats, floor_us=floor)


def run(cases: Sequence[Case], results: Results, quick: bool, minutes: float = MINUTES) -> None:
    """Measure what the file does not have yet. Raises RnnccError where something cannot be built."""
    left = missing(cases, results.rows)
    if not left:
        return
    try:
        floors = measure_exchanges(exchanges(left))
    except RuntimeError as error:
        print(f"gpu_dense: rows have no floor: {error}", file=sys.stderr)
        floors = {}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        packages = Packages(Path(folder), left)
        print(f"packages built in {time.monotonic() - begin:.0f} s; {len(left)} cases", flush=True)
        for case in in_time(left, minutes):
            row = measure(case, packages, floor_us(case, floors), quick)
            results.add(row)
            said = row.get("error") or f"{row['call_ms']:.3f} ms"
            print(
                f"{case.who} {case.cell} {case.head_dim}x{case.heads} B={case.batch} T={case.steps} {case.dtype} "
                f"{case.run}: {said}",
                flush=True,
            )
            torch.cuda.empty_cache()


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, print the table, draw the plot. 1 where nothing can be measured."""
    arguments = parser_of(__doc__, Path("gpu_dense.json"), draws=True).parse_args(words)

    def measure_cases(results: Results) -> None:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        run(cases, results, arguments.quick, arguments.minutes)

    try:
        cases = part(select(words_of(arguments), arguments.quick), arguments.shard)
        rows, about = read_or_measure(arguments, measure_cases)
        rows = [row for row in rows if case_of(row) in set(cases)]
    except (OSError, ValueError, RuntimeError, RnnccError) as error:
        print(f"gpu_dense: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(rows, target_named(about["gpu"]))))
    if arguments.plot:
        plot(rows, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
