"""Calls of one or a few steps, ours beside torch.nn's in one process: single steps, and layers of 1 to 64 steps.

    python benchmarks/latency.py [--device cuda] [--modes eager,compiled,graph] [--only WORDS] [--shard I/N]
                                 [--threads N] [--out FILE] [--merge FILE …] [--show FILE]

A row is a cell (lstm, gru, rnn), a single step (`cell`) or a layer of T steps, a batch and a hidden size, which is
the input's size too, in float32. `infer` runs in inference_mode. `train` is forward and the backward of the output's
sum, to parameters. The two are called in turn; times are medians, and the ratio is the median of the ratios round by
round. On a GPU a call is waited for: what counts is the time from the call to its result. TF32 is off for both.

`compiled` is torch.compile of the module (`dynamic=True`) and needs a C++ compiler. `graph` replays a CUDA graph of the
call. torch.compile leaves torch.nn's own layers out, so a compiled nn.LSTM runs as it is.

--only chooses rows by their words (`lstm,cell,infer,B16`): a row is run where each of the words is one of its own, or
one of several of a kind. A run that is started again goes on where it stopped.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from gpu_run import Results, gpu, in_time, parser_of, part, read_or_measure, words_of
from measure import Function, environment, interleaved, median_ms, ratio
from torch import Tensor, nn

import rnncc

OUT = Path(__file__).parent / "results" / "latency.json"
# How long each module is called for a row.
SECONDS, QUICK_SECONDS = 0.3, 0.1
STEPS, BATCHES, SIZES = (None, 1, 4, 16, 64), (1, 16, 256), (64, 256, 1024)
# Our file and class, torch.nn's layer and single step.
CELLS: dict[str, tuple[str, str, Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "lstm": ("lstm", "LSTM", nn.LSTM, nn.LSTMCell),
    "gru": ("nn_gru", "nn_GRU", nn.GRU, nn.GRUCell),
    "rnn": ("nn_rnn", "nn_RNN", nn.RNN, nn.RNNCell),
}
Mode = Literal["eager", "compiled", "graph"]


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `steps`: None for a single step."""

    cell: str
    steps: int | None
    batch: int
    size: int
    train: bool
    mode: Mode

    def words(self) -> tuple[str, ...]:
        """What the row is, one word a kind."""
        kind = "cell" if self.steps is None else f"T{self.steps}"
        return self.cell, kind, f"B{self.batch}", f"H{self.size}", "train" if self.train else "infer", self.mode


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


def modules(case: Case, device: str) -> dict[str, nn.Module]:
    """Ours and torch.nn's, with the same parameters where their names are the same."""
    torch.manual_seed(0)
    file, name, layer, cell = CELLS[case.cell]
    single = case.steps is None
    ours = getattr(rnncc.load(file), f"{name}Cell" if single else name)
    theirs = cell if single else layer
    return {
        "rnncc": ours(case.size, case.size, device=device, backend=device),
        "nn": theirs(case.size, case.size, device=device),
    }


def runner(case: Case, module: nn.Module, device: str) -> Function:
    """The call that is timed; on a GPU, until its result is there."""
    run: Callable[..., Any] = torch.compile(module, dynamic=True) if case.mode == "compiled" else module
    lead = () if case.steps is None else (case.steps,)
    x = torch.randn(*lead, case.batch, case.size, device=device)
    state = torch.zeros(*(() if case.steps is None else (1,)), case.batch, case.size, device=device)
    hx = (state, state.clone()) if case.cell == "lstm" else state
    parameters = list(module.parameters())

    def output() -> Tensor:
        made = run(x, hx)
        return made[0] if isinstance(made, tuple) else made  # type: ignore[no-any-return]

    def train() -> None:
        torch.autograd.grad(output().sum(), parameters)

    @torch.inference_mode()
    def infer() -> None:
        output()

    call: Function = train if case.train else infer
    if case.mode == "graph":
        call = captured(call)
    if device != "cuda":
        return call

    def waited() -> None:
        call()
        torch.cuda.synchronize()

    return waited


def captured(call: Function) -> Function:
    """The call as a CUDA graph."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def compare(case: Case, device: str, seconds: float) -> dict[str, Any]:
    """A row: medians in microseconds, and the ratio."""
    functions = {key: runner(case, module, device) for key, module in modules(case, device).items()}
    times = interleaved(functions, seconds=seconds, least=11)
    row: dict[str, Any] = dict(zip(("cell", "T", "B", "H", "pass", "mode"), case.words(), strict=True))
    row |= {f"{key}_us": round(1e3 * median_ms(value), 1) for key, value in times.items()}
    return row | {"ratio": round(ratio(times["rnncc"], times["nn"]), 3)}


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
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print the table. 1 where nothing can be measured."""
    parser = parser_of(__doc__, OUT)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--modes", default="eager", help="eager, compiled, graph, separated by commas")
    parser.add_argument("--threads", type=int, default=0, help="default: torch's")
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
        known = {tuple(list(row.values())[:6]) for row in results.rows}
        left = [case for case in cases if case.words() not in known]
        for case in in_time(left, arguments.minutes):
            results.add(compare(case, arguments.device, QUICK_SECONDS if arguments.quick else SECONDS))

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        cases = select(every_case(modes), words_of(arguments), arguments.shard)
        rows, _ = read_or_measure(arguments, measure, about)
    except (OSError, ValueError) as error:
        print(f"latency: {error}", file=sys.stderr)
        return 1
    print(describe(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
