"""Kernels for GPUs of compute capability 8.0 to 8.9 on a later one, beside its own kernels, in one run.

    python benchmarks/gpu_targets.py [--quick] [--only WORDS] [--shard I/N] [--out FILE]
    python benchmarks/gpu_targets.py --show FILE

`native` has the kernels of the GPU that is there. `a100`, `rtx3090` and `rtx4090` have PTX for 8.0, 8.6 and 8.9. It is
planned for the SMs and the shared memory of these GPUs, and the driver compiles it for the GPU that is there. The times
say what kernels lose that have no clusters and were planned for less. They do not say what those GPUs take.

The cell is the LSTM in bfloat16 with a batch of 16 over 1024 steps, as one head of 768 and as 12 heads of 64, forward
(`fw`) and with backward (`fw+bw`). All parties take turns, round by round. Times are medians of CUDA events, `call` and
`queued` as in benchmarks/gpu_dense.py. The `ratio` is that of the queued times to those of `native`; it must not exceed
1.6 with one head, and 1.3 with twelve. `difference` is the largest difference of an output from the native one's.

WORDS, separated by commas, choose parties. A run that is started again goes on where it stopped.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from gpu_calls import Tensors
from gpu_cases import PASSES, STEPS, Case, case_of, row_of
from gpu_run import Results, in_time, parser_of, part, read_or_measure, words_of
from measure import gpu_ms

from rnncc.driver import build_package
from rnncc.ir.problem import Problem
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import read_request

# Each party, and the `--target` of its package.
PARTIES = {"native": "auto", "a100": "compute_80", "rtx3090": "compute_86", "rtx4090": "compute_89"}
# (head_dim, heads), and the largest ratio of the others' times to those of `native`.
MUST = {(768, 1): 1.6, (64, 12): 1.3}
BATCH, DTYPE = 16, "bf16"
ROUNDS, QUICK_ROUNDS = 7, 3


def cases(parties: Sequence[str]) -> Iterator[list[Case]]:
    """The cases that are compared, those of `parties` side by side."""
    for head_dim, heads in MUST:
        for run in PASSES:
            yield [Case(who, "lstm", head_dim, heads, BATCH, STEPS, DTYPE, run) for who in parties]


def select(words: Sequence[str]) -> list[str]:
    """The parties that the words choose, `native` among them. Raises ValueError for a word that chooses nothing."""
    if unknown := sorted({*words} - {*PARTIES}):
        raise ValueError(f"{', '.join(unknown)}: not one of {', '.join(PARTIES)}")
    return [who for who in PARTIES if not words or who in words or who == "native"]


def build(parties: Sequence[str], folder: Path) -> dict[str, ModuleType]:
    """A package for each party. Raises RnnccError."""
    sys.path.insert(0, str(folder))
    os.environ["RNNCC_COMPILE"] = "0"  # what has no fused kernel shall not get one of this GPU's
    problems = tuple(Problem(head_dim, heads, DTYPE) for head_dim, heads in MUST)
    for who in parties:
        request = replace(read_request("lstm"), name=f"lstm_for_{who}", problems=problems)
        build_package(request, folder, PARTIES[who], print)
    return {who: import_module(f"lstm_for_{who}") for who in parties}


def measure(compared: Sequence[Case], modules: Mapping[str, ModuleType], rounds: int) -> list[dict[str, Any]]:
    """The rows of cases that are compared."""
    tensors = {}
    for case in compared:
        torch.manual_seed(0)
        tensors[case] = Tensors(case, modules[case.who], "cuda")
    calls = {case: own.timed(own.by_op) for case, own in tensors.items()}
    times: dict[Case, list[tuple[float, float]]] = {case: [] for case in compared}
    for _ in range(rounds):
        for case in compared:
            call, queued = gpu_ms(calls[case], 5, 10)
            assert queued is not None
            times[case].append((call, queued))
    with torch.no_grad():
        outputs = {case: own.by_op().float() for case, own in tensors.items()}
    native = outputs[compared[0]]
    rows = []
    for case in compared:
        call, queued = (statistics.median(each) for each in zip(*times[case], strict=True))
        difference = float((outputs[case] - native).abs().max())
        kernels = kernels_of(case, modules[case.who])
        rows.append(row_of(case, call_ms=call, queued_ms=queued, difference=difference, kernels=kernels))
    return rows


def kernels_of(case: Case, module: ModuleType) -> str:
    """Which kernels run the case, as the package's library chooses them."""
    fused = import_module(f"{module.__name__}._runtime.kernels.fused")
    device = torch.cuda.current_device()
    spec = module.LSTM.spec
    (segment,) = spec.segments
    wanted = fused.Wanted(spec, segment.name, case.head_dim, case.heads, torch.bfloat16, fused.gpu_of(device))
    words: str = fused.chosen(wanted, case.batch, device, denser=False)
    return words


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a table of measured rows, each with the ratio to `native` and whether it keeps to MUST."""
    native = {(row["head_dim"], row["heads"], row["run"]): row for row in rows if row["who"] == "native"}
    lines = [f"{'heads':>8} {'run':6} {'party':8} {'call':>9} {'queued':>9} {'ratio':>6}   must  difference  kernels"]
    for row in rows:
        size = row["head_dim"], row["heads"]
        ratio = row["queued_ms"] / native[(*size, row["run"])]["queued_ms"]
        must = "" if row["who"] == "native" else f"{MUST[size]:.1f}{'' if ratio <= MUST[size] else ' MISS'}"
        lines.append(
            f"{row['heads']:>3}x{row['head_dim']:<4} {row['run']:6} {row['who']:8} {row['call_ms']:6.3f} ms "
            f"{row['queued_ms']:6.3f} ms {ratio:6.2f} {must:>8} {row['difference']:10.1e}  {row['kernels']}"
        )
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print the table. 1 where nothing can be measured."""
    arguments = parser_of(__doc__, Path("gpu_targets.json")).parse_args(words)

    def measure_cases(results: Results) -> None:
        known = {case_of(row) for row in results.rows}
        # Only what was measured side by side is compared.
        left = [compared for compared in chosen if not set(compared) <= known]
        with tempfile.TemporaryDirectory() as folder:
            modules = build(parties, Path(folder))
            for compared in in_time(left, arguments.minutes):
                results.add(*measure(compared, modules, QUICK_ROUNDS if arguments.quick else ROUNDS))

    try:
        parties = select(words_of(arguments))
        chosen = part(list(cases(parties)), arguments.shard)
        rows, _ = read_or_measure(arguments, measure_cases)
    except (OSError, ValueError, RuntimeError, RnnccError) as error:
        print(f"gpu_targets: {error}", file=sys.stderr)
        return 1
    print("\n".join(table([row for row in rows if row["who"] in parties])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
