"""Sparse recurrent matrices on the CPU: the loop of an LSTM whose R has masks, beside that of the LSTM without.

    python benchmarks/cpu_sparse.py [--quick] [--threads N] [--json FILE]

Both are functional ops on pre-activations, in float32, over 32 steps. The sparse op gets matrices with zeros, in every
row as many as its density says, and decides by itself whether to leave them out. Each call makes its lists, or packs
its matrices. Times are medians over interleaved calls, ratios the medians of ratios round by round.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from measure import Function, interleaved, median_ms, output, ratio, write
from torch import Tensor

import rnncc

TEXT = """
cell SparseLSTM
state h, c
weights R: mask
i, f, o = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = o*tanh(c[t])
"""
STEPS = 32
HIDDEN, BATCHES = (512, 1024, 2048), (1, 8, 32)
DENSITIES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)


def matrix(hidden: int, density: float) -> Tensor:
    """R [4H, H] with so many elements in every row."""
    dense = torch.randn(4 * hidden, hidden).div(hidden**0.5)
    if density == 1:
        return dense
    chosen = torch.rand(4 * hidden, hidden).topk(round(density * hidden), dim=1).indices
    kept: Tensor = torch.zeros(4 * hidden, hidden).scatter_(1, chosen, dense.gather(1, chosen))
    return kept


def runner(op: Any, stream: Tensor, weight: Tensor, backward: bool) -> Function:
    """A call of the functional op; with `backward`, the gradients of its stream and its matrix, too."""
    hidden = weight.shape[1]
    if not backward:

        def forward() -> None:
            with torch.no_grad():
                op([stream], [weight], hidden_size=hidden, backend="cpu")

        return forward
    inputs = [stream.clone().requires_grad_(), weight.clone().requires_grad_()]
    direction = torch.randn(*stream.shape[:2], hidden)

    def both() -> None:
        output, _ = op(inputs[:1], inputs[1:], hidden_size=hidden, backend="cpu")
        torch.autograd.grad(output, inputs, direction)

    return both


def measure(hidden: int, batch: int, backward: bool, seconds: float) -> list[dict[str, Any]]:
    """A row for each density."""
    torch.manual_seed(0)
    stream = torch.randn(STEPS, batch, 4 * hidden)
    dense, sparse = rnncc.load("lstm").lstm, rnncc.compile(TEXT, "sparse_on_a_cpu").sparselstm
    calls = {"dense": runner(dense, stream, matrix(hidden, 1), backward)}
    calls |= {str(density): runner(sparse, stream, matrix(hidden, density), backward) for density in DENSITIES}
    times = interleaved(calls, seconds=seconds)
    about = {"cell": "lstm", "T": STEPS, "B": batch, "H": hidden, "backward": backward}
    return [
        about
        | {"density": density, "ms": round(median_ms(times[str(density)]), 3)}
        | {
            "dense_ms": round(median_ms(times["dense"]), 3),
            "ratio": round(ratio(times[str(density)], times["dense"]), 3),
        }
        for density in DENSITIES
    ]


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time a figure")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=output)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    print(f"{'H':>5}{'B':>4}{'pass':>7}{'dense ms':>10}  " + "".join(f"{density:>8.0%}" for density in DENSITIES))
    for hidden in HIDDEN:
        for batch in BATCHES:
            for backward in (False, True):
                found = measure(hidden, batch, backward, 0.25 if options.quick else 0.75)
                rows += found
                ratios = "".join(f"{row['ratio']:8.2f}" for row in found)
                run = "fw+bw" if backward else "fw"
                print(f"{hidden:5}{batch:4}{run:>7}{found[0]['dense_ms']:10.2f}  {ratios}", flush=True)
    if options.json:
        write(options.json, rows)


if __name__ == "__main__":
    main()
