"""Calls of one or a few steps, ours beside torch.nn's in one process: single steps, and layers of 1 to 64 steps.

    python benchmarks/latency.py [--device cuda] [--modes eager,compiled,graph] [--only WORDS] [--shard I/N]
                                 [--threads N] [--beside CHECKOUT] [--out FILE] [--merge FILE …] [--show FILE]

A row is a cell (lstm, gru, rnn), a single step (`cell`) or a layer of T steps, a batch and a hidden size, which is
the input's size too, in float32. `infer` runs in inference_mode. `train` is forward and the backward of the output's
sum, to parameters. The two are called in turn; times are medians, and the ratio is the median of the ratios round by
round. Freed memory stays with the process: else it would come back to whichever is called first after the other, page
by page. On a GPU a call is waited for: what counts is the time from the call to its result. TF32 is off for both.

`compiled` is torch.compile of the module (`dynamic=True`) and needs a C++ compiler. `graph` replays a CUDA graph of the
call. torch.compile leaves torch.nn's own layers out, so a compiled nn.LSTM runs as it is.

--beside times another checkout of rnncc in turn with ours, such as an older one, in a process of its own: `beside_us`,
and `over_beside`, ours over theirs.

--only chooses rows by their words (`lstm,cell,infer,B16`): a row is run where each of the words is one of its own, or
one of several of a kind. A run that is started again goes on where it stopped.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from gpu_run import Results, gpu, in_time, parser_of, part, read_or_measure, words_of
from latency_calls import CELLS, WARM_CALLS, Beside, Case, Mode, modules, runner
from measure import environment, installation, keep_freed_memory, median_ms, ratio

from rnncc.bench.timing import Timer, by_the_clock, rounds

OUT = Path(__file__).parent / "results" / "latency.json"
# How long each module is called for a row.
SECONDS, QUICK_SECONDS = 0.3, 0.1
STEPS, BATCHES, SIZES = (None, 1, 4, 16, 64), (1, 16, 256), (64, 256, 1024)


def every_case(modes: Sequence[Mode]) -> list[Case]:
    """All rows, in an order in which the parts of `--shard` take about as long."""
    return [
        Case(cell, steps, batch, size, train, mode)
        for mode in modes
        for size in SIZES
        for batch in BATCHES
        for steps in STEPS
        for train in (False, True)
        for cell in CELLS
    ]


def select(cases: Sequence[Case], words: Sequence[str], shard: str) -> list[Case]:
    """The rows that were asked for. Raises ValueError for a word or a shard that means nothing."""
    kinds = list(zip(*(case.words() for case in cases), strict=True))
    if unknown := [word for word in words if not any(word in kind for kind in kinds)]:
        raise ValueError(f"no row is {unknown[0]!r}; words are like {', '.join(cases[0].words())}")
    asked = [[word for word in words if word in kind] for kind in kinds]
    chosen = [
        case for case in cases if all(not some or own in some for own, some in zip(case.words(), asked, strict=True))
    ]
    return part(chosen, shard)


def compare(case: Case, device: str, seconds: float, beside: Beside | None = None) -> dict[str, Any]:
    """A row: medians in microseconds, and the ratios. Raises RuntimeError where `beside` ends."""
    functions = {key: runner(case, module, device) for key, module in modules(case, device).items()}
    for function in functions.values():
        for _ in range(WARM_CALLS):
            function()
    timers: dict[str, Timer] = {key: by_the_clock(function) for key, function in functions.items()}
    if beside is not None:
        beside.take(case)
        timers["beside"] = beside.seconds
    found = list(rounds(timers, seconds=seconds, least=11))
    times = {key: [each[key] for each in found] for key in timers}
    row: dict[str, Any] = dict(zip(("cell", "T", "B", "H", "pass", "mode"), case.words(), strict=True))
    row |= {f"{key}_us": round(1e3 * median_ms(value), 1) for key, value in times.items()}
    row["ratio"] = round(ratio(times["rnncc"], times["nn"]), 3)
    return row | ({"over_beside": round(ratio(times["rnncc"], times["beside"]), 3)} if beside else {})


def describe(rows: Sequence[dict[str, Any]]) -> str:
    """The table, and how many rows are at most 1.1."""
    lines = [f"{'cell':6}{'':6}{'B':>5}{'H':>7}{'pass':>7}{'mode':>10}{'ours us':>10}{'nn us':>10}{'ratio':>8}"]
    for row in rows:
        lines.append(
            f"{row['cell']:6}{row['T']:6}{row['B']:>5}{row['H']:>7}{row['pass']:>7}{row['mode']:>10}"
            f"{row['rnncc_us']:10.1f}{row['nn_us']:10.1f}{row['ratio']:8.2f}{'' if row['ratio'] <= 1.1 else '  <'}"
        )
    groups = {
        "cell and T1": [row for row in rows if row["T"] in ("cell", "T1")],
        "longer": [row for row in rows if row["T"] not in ("cell", "T1")],
    }
    for name, group in groups.items():
        for run in ("infer", "train"):
            if found := [row for row in group if row["pass"] == run]:
                ratios = [row["ratio"] for row in found]
                worst = max(found, key=lambda row: row["ratio"])
                share = sum(value <= 1.1 for value in ratios) / len(ratios)
                lines.append(
                    f"{name}, {run}: {share:.0%} of {len(found)} rows at most 1.1, median "
                    f"{statistics.median(ratios):.2f}, worst {worst['ratio']:.2f} "
                    f"({' '.join(str(worst[key]) for key in ('cell', 'T', 'B', 'H', 'mode'))})"
                )
    if over := [row["over_beside"] for row in rows if "over_beside" in row]:
        slower = [row for row in rows if row.get("over_beside", 0) > 1.03]
        lines.append(f"over the one beside: median {statistics.median(over):.3f} of {len(over)}, worst {max(over):.2f}")
        lines += [f"  {' '.join(map(str, list(row.values())[:6]))}: {row['over_beside']:.2f}" for row in slower]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print the table. 1 where nothing can be measured."""
    parser = parser_of(__doc__, OUT)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--modes", default="eager", help="eager, compiled, graph, separated by commas")
    parser.add_argument("--threads", type=int, default=0, help="default: torch's")
    parser.add_argument("--beside", type=installation, metavar="CHECKOUT", help="another rnncc, timed in turn")
    arguments = parser.parse_args(words)
    every: tuple[Mode, ...] = ("eager", "compiled", "graph")
    modes = [mode for mode in every if mode in arguments.modes.split(",")]

    def about() -> dict[str, Any]:
        if "graph" in modes and arguments.device != "cuda":
            raise ValueError("a graph is one of CUDA's: --device cuda")
        return {
            "device": arguments.device,
            **(gpu if arguments.device == "cuda" else environment)(arguments.commit),
        }

    def measure(results: Results) -> None:
        keep_freed_memory()
        known = {tuple(list(row.values())[:6]) for row in results.rows}
        left = [case for case in cases if case.words() not in known]
        seconds = QUICK_SECONDS if arguments.quick else SECONDS
        other = Beside(arguments.beside, arguments.device, arguments.threads) if arguments.beside else None
        with closing(other) if other else nullcontext():
            for case in in_time(left, arguments.minutes):
                results.add(compare(case, arguments.device, seconds, other))

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        cases = select(every_case(modes), words_of(arguments), arguments.shard)
        rows, _ = read_or_measure(arguments, measure, about)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"latency: {error}", file=sys.stderr)
        return 1
    print(describe(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
