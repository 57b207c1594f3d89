"""Host time of one small call, ours beside torch.nn's in one run: a single step, and layers of few steps.

    python benchmarks/host.py [--quick] [--device cuda] [--threads N] [--json FILE]

How long the calling thread is kept: a GPU is idle before each call, and what it then has to do is not waited for. One
sequence with hidden size 32 in float32, so that next to nothing of it is arithmetic. `fw`: under no_grad; `fw+bw`: with
the backward of the sum of the output, to parameters. Medians, and the median of ratios round by round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from measure import Function, median_ms, output, ratio, write
from torch import Tensor, nn

import rnncc

BATCH, HIDDEN, WARM = 1, 32, 20


@dataclass(frozen=True, slots=True)
class Case:
    """Ours, by the shipped cell's file and the class, and torch.nn's; `steps`: None for a single step."""

    file: str
    name: str
    theirs: type[nn.Module]
    steps: int | None


CASES = (
    Case("lstm", "LSTMCell", nn.LSTMCell, None),
    Case("nn_gru", "nn_GRUCell", nn.GRUCell, None),
    Case("nn_rnn", "nn_RNNCell", nn.RNNCell, None),
    Case("lstm", "LSTM", nn.LSTM, 1),
    Case("lstm", "LSTM", nn.LSTM, 8),
    Case("nn_gru", "nn_GRU", nn.GRU, 1),
)


def runner(module: nn.Module, given: tuple[Any, ...], backward: bool) -> Function:
    """A call, with the backward of its output if asked for; gradients replace those of the call before."""
    parameters = list(module.parameters())

    def output() -> Tensor:
        made = module(*given)
        return made[0] if isinstance(made, tuple) else made  # type: ignore[no-any-return]

    def train() -> None:
        torch.autograd.grad(output().sum(), parameters)

    @torch.no_grad()
    def infer() -> None:
        output()

    return train if backward else infer


def kept(functions: Mapping[str, Function], seconds: float, device: str) -> dict[str, list[float]]:
    """Seconds that each call of each function keeps the caller, called in turn for so many seconds a function."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    rounds, begin = 0, time.perf_counter()
    while rounds <= WARM or time.perf_counter() - begin < seconds * len(functions):
        for name, function in functions.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: values[WARM:] for name, values in times.items()}


def compare(case: Case, device: str, seconds: float) -> list[dict[str, Any]]:
    """A row each pass."""
    modules = {
        "rnncc": getattr(rnncc.load(case.file), case.name)(HIDDEN, HIDDEN, device=device, backend=device),
        "nn": case.theirs(HIDDEN, HIDDEN, device=device),
    }
    one = case.steps is None
    x = torch.randn(*(() if one else (case.steps,)), BATCH, HIDDEN, device=device)
    zeros = torch.zeros(*(() if one else (1,)), BATCH, HIDDEN, device=device)
    given = (x, (zeros, zeros.clone()) if "LSTM" in case.name else zeros)
    about = {"cell": case.file, "module": case.name, "T": case.steps, "B": BATCH, "H": HIDDEN, "device": device}
    rows = []
    for backward in (False, True):
        times = kept({key: runner(module, given, backward) for key, module in modules.items()}, seconds, device)
        us = {key: (round(1e3 * median_ms(t), 1), round(1e6 * min(t), 1)) for key, t in times.items()}
        found = {"median_us": {key: t[0] for key, t in us.items()}, "least_us": {key: t[1] for key, t in us.items()}}
        rows.append(about | {"backward": backward} | found | {"ratio": round(ratio(times["rnncc"], times["nn"]), 2)})
    return rows


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time a figure")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=output)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = []
    print(f"{'us':12}{'T':>5}{'pass':>8}{'ours':>9}{'least':>9}{'torch.nn':>10}{'least':>9}{'ratio':>8}")
    for case in CASES:
        for row in compare(case, arguments.device, 0.25 if arguments.quick else 1.0):
            rows.append(row)
            median, least = row["median_us"], row["least_us"]
            print(
                f"{row['module']:12}{row['T'] or '':>5}{'fw+bw' if row['backward'] else 'fw':>8}{median['rnncc']:9.1f}"
                f"{least['rnncc']:9.1f}{median['nn']:10.1f}{least['nn']:9.1f}{row['ratio']:8.2f}",
                flush=True,
            )
    if arguments.json:
        write(arguments.json, rows)


if __name__ == "__main__":
    main()
