"""Recurrences whose matrices are mostly zeros, or of low rank, on a GPU: the kernels that rnncc chooses, its kernels
for zeros whatever they take, its kernels for the same cell with dense matrices, and a loop of torch's CSR products.

    python benchmarks/gpu_sparse.py [--quick] [--only WORDS] [--shard I/N] [--out FILE] [--plot PNG] [--packages DIR]
    python benchmarks/gpu_sparse.py --build DIR [--jobs N] [--only WORDS]
    python benchmarks/gpu_sparse.py --show FILE [--plot PNG]

All begin with pre-activations, in bfloat16, torch's loop in float32. Times are medians of CUDA events: `call` with the
GPU waiting for the host, `queued` back to back. With backward they include the gradients of pre-activations, matrices
and states. Before a kernel is timed, its output and its gradients over 12 steps are compared with float32. A kernel
that gives something else has an error instead of times. So has a case that no kernel can run, with the scheduler's
reason.

--build compiles the packages and measures nothing: it needs no GPU. --packages measures those of a folder, so that the
machine with the GPU compiles nothing. WORDS, separated by commas, choose axes (targets, crossover), parties (rnncc,
forced, dense, csr) and cells (lstm, elman). --quick takes fewer densities and repeats. Every shape's rows are written
as soon as they are measured. A run that is started again goes on where it stopped, and tries again what failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_cases import missing, read_case, row_of
from gpu_run import MINUTES, Results, gpu, in_time, parser_of, part, read_or_measure, words_of
from measure import environment, gpu_ms
from sparse_calls import Known, Numbers, WrongError, errors, kernels_of, known, timed
from sparse_cases import Shape, SparseCase, select
from sparse_packages import build_packages, impossible_cases
from sparse_table import plot, table, verdict

from rnncc.language.diagnostics import RnnccError

REPEATS, QUEUED = 5, 5


def measure(case: SparseCase, numbers: Numbers, right: Known, repeats: int) -> dict[str, Any]:
    """A case's row. A case that cannot run, or gives something wrong, has `error` instead of times. Raises RuntimeError
    where nothing else can run any more either."""
    found: dict[str, Any] = {}
    try:
        if case.who != "csr":
            found["kernels"] = kernels_of(case)
            found["errors"] = errors(case, numbers, right)
        # A loop queues many kernels a call: the queue is full anyhow.
        call, queued = gpu_ms(timed(case, numbers), repeats, 0 if case.who == "csr" else QUEUED)
    except (RuntimeError, ValueError, WrongError) as error:
        torch.cuda.synchronize()
        return row_of(case, **found, error=str(error).splitlines()[0])
    return row_of(case, **found, call_ms=call, queued_ms=queued, repeats=repeats)


def by_shape(cases: Sequence[SparseCase]) -> dict[Shape, list[SparseCase]]:
    """The cases of each shape, which share numbers. A dense case belongs to its own shape."""
    found: dict[Shape, list[SparseCase]] = {}
    for case in cases:
        found.setdefault(case.shape, []).append(case)
    return found


def shard_of(cases: Sequence[SparseCase], shard: str) -> list[SparseCase]:
    """A part of the cases. All that are compared with one dense case are in one part: no two GPUs are equally quick.
    Raises ValueError for a shard that means nothing."""
    sizes = dict.fromkeys(case.shape.dense for case in cases)
    own = set(part(list(sizes), shard))
    return [case for case in cases if case.shape.dense in own]


def rows_of(
    shapes: Iterable[tuple[Shape, list[SparseCase]]], impossible: dict[SparseCase, str], repeats: int
) -> Iterator[dict[str, Any]]:
    """The rows of the cases of shapes."""
    for shape, own in shapes:
        yield from (row_of(case, impossible=True, error=impossible[case]) for case in own if case in impossible)
        if left := [case for case in own if case not in impossible]:
            numbers = Numbers(shape)
            right = known(numbers)
            for case in left:
                yield measure(case, numbers, right, repeats)
            del numbers, right
            torch.cuda.empty_cache()


def run(cases: Sequence[SparseCase], results: Results, packages: Path, repeats: int, minutes: float = MINUTES) -> None:
    """Measure what the file does not have yet, by the packages of a folder. Raises OSError where it has none. What
    failed is measured again: other packages may have what these lacked."""
    impossible = impossible_cases(packages)
    results.rows = [row for row in results.rows if "error" not in row or read_case(SparseCase, row) in impossible]
    left = list(by_shape(missing(cases, results.rows)).items())
    # What is missing there is an error, not built.
    os.environ["RNNCC_COMPILE"] = "0"
    sys.path.insert(0, str(packages))
    begin = time.monotonic()
    for row in rows_of(in_time(left, minutes), impossible, repeats):
        results.add(row)
        case = read_case(SparseCase, row)
        said = row.get("error") or f"{row['call_ms']:.3f} ms"
        print(f"{time.monotonic() - begin:5.1f} s {case.who} {case.shape} {case.run}: {said}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Build, measure or read; print the table, draw the plot. 1 where nothing can be measured."""
    parser = parser_of(__doc__, Path("gpu_sparse.json"), draws=True)
    parser.add_argument("--build", type=Path, metavar="DIR", help="build the packages there, and measure nothing")
    parser.add_argument("--packages", type=Path, metavar="DIR", help="measure those that --build made there")
    parser.add_argument("--jobs", type=int, help="compilers at a time, by default one per processor")
    arguments = parser.parse_args(words)
    try:
        cases = shard_of(select(words_of(arguments), arguments.quick), arguments.shard)
        if arguments.build:
            build_packages(cases, arguments.build, arguments.jobs)
            return 0
        rows, _ = read_or_measure(arguments, partial(measure_all, cases, arguments), lambda: machine(arguments))
        rows = [row for row in rows if read_case(SparseCase, row) in set(cases)]
    except (OSError, ValueError, RuntimeError, RnnccError) as error:
        print(f"gpu_sparse: {error}", file=sys.stderr)
        return 1
    print("\n".join((*table(rows), "", *verdict(rows))))
    if arguments.plot:
        plot(rows, arguments.plot)
    return 0


def machine(arguments: Any) -> dict[str, Any]:
    """The machine. Raises ValueError where nothing can be measured; packages that are built need no NVRTC."""
    return environment(arguments.commit) if arguments.packages and torch.cuda.is_available() else gpu(arguments.commit)


def measure_all(cases: Sequence[SparseCase], arguments: Any, results: Results) -> None:
    """Measures what the file does not have, by packages that are there or built now. Raises as `main` says."""
    torch.backends.cuda.matmul.allow_tf32 = False
    repeats = 3 if arguments.quick else REPEATS
    if arguments.packages:
        run(cases, results, arguments.packages, repeats, arguments.minutes)
        return
    with tempfile.TemporaryDirectory() as folder:
        build_packages(cases, Path(folder), arguments.jobs)
        run(cases, results, Path(folder), repeats, arguments.minutes)


if __name__ == "__main__":
    sys.exit(main())
