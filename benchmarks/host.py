"""Host time of one small call, ours beside torch.nn's in one run: a single step, and layers of few steps.

    python benchmarks/host.py [--quick] [--device cuda] [--threads N] [--json FILE]

How long the calling thread is kept: a GPU is idle before each call, and what it then has to do is not waited for. One
column of 32 units in float32, so that next to nothing of it is arithmetic. `fw`: under no_grad; `fw+bw`: with the
backward of the sum of the output, to parameters. Medians, and the median of ratios round by round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from measure import Function, ratio, write
from torch import Tensor, nn

import rnncc

COLUMNS, UNITS = 1, 32
# What, ours, torch.nn's, steps (None: a single step)
CASES = (
    ("lstm", "LSTMCell", nn.LSTMCell, None),
    ("nn_gru", "nn_GRUCell", nn.GRUCell, None),
    ("nn_rnn", "nn_RNNCell", nn.RNNCell, None),
    ("lstm", "LSTM", nn.LSTM, 1),
    ("lstm", "LSTM", nn.LSTM, 8),
    ("nn_gru", "nn_GRU", nn.GRU, 1),
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
    begin, warm = time.perf_counter(), 20
    while warm or time.perf_counter() - begin < seconds * len(functions):
        for name, function in functions.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
        if warm:
            warm -= 1
            times = {name: [] for name in functions}
    return times


def compare(
    cell: str, name: str, theirs: type[nn.Module], steps: int | None, device: str, seconds: float
) -> list[dict[str, Any]]:
    """Of one case, a row each pass."""
    modules = {
        "rnncc": getattr(rnncc.load(cell), name)(UNITS, UNITS, device=device),
        "nn": theirs(UNITS, UNITS, device=device),
    }
    states = 2 if "LSTM" in name else 1
    shape = (COLUMNS, UNITS) if steps is None else (1, COLUMNS, UNITS)
    hx: Any = tuple(torch.zeros(shape, device=device) for _ in range(states))
    given = (
        torch.randn(*(() if steps is None else (steps,)), COLUMNS, UNITS, device=device),
        hx if states > 1 else hx[0],
    )
    rows = []
    for backward in (False, True):
        times = kept({key: runner(module, given, backward) for key, module in modules.items()}, seconds, device)
        us = {
            key: {"median": round(1e6 * sorted(t)[len(t) // 2], 1), "least": round(1e6 * min(t), 1)}
            for key, t in times.items()
        }
        what = {
            "cell": cell,
            "module": name,
            "T": steps,
            "B": COLUMNS,
            "H": UNITS,
            "backward": backward,
            "device": device,
        }
        rows.append(what | {"us": us, "times_as_long": round(ratio(times["rnncc"], times["nn"]), 2)})
    return rows


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time a figure")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = []
    print(f"{'us':12}{'T':>5}{'pass':>8}{'ours':>9}{'least':>9}{'torch.nn':>10}{'least':>9}{'ratio':>8}")
    for case in CASES:
        for row in compare(*case, arguments.device, 0.25 if arguments.quick else 1.0):
            rows.append(row)
            ours, theirs = row["us"]["rnncc"], row["us"]["nn"]
            print(
                f"{row['module']:12}{row['T'] or '':>5}{'fw+bw' if row['backward'] else 'fw':>8}{ours['median']:9.1f}"
                f"{ours['least']:9.1f}{theirs['median']:10.1f}{theirs['least']:9.1f}{row['times_as_long']:8.2f}",
                flush=True,
            )
    if arguments.json:
        write(arguments.json, rows)


if __name__ == "__main__":
    main()
