"""What a PackedSequence costs on the CPU, beside unpadded steps of the same number, padded ones, and nn.LSTM's.

    python benchmarks/cpu_packed.py [--quick] [--threads N] [--json FILE]

Two kinds of lengths: drawn evenly from 1 to T, and one of T among others of T/16. Every figure is a median over
interleaved calls; float32, the input product included. `rows`: as many unpadded steps, [total/B, B]; `blocks`: the
same rows in dense calls, one for each number of batch entries that a step has, which is what a loop of T steps must do.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from measure import Function, interleaved, median_ms, output, write
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnncc

SIZES = ((256, 32, 256), (128, 16, 128), (512, 64, 64))


def lengths_of(kind: str, steps: int, batch: int) -> Tensor:
    """[B], the longest of T."""
    lengths = torch.full((batch,), steps // 16)
    if kind == "even":
        lengths = torch.randint(1, steps + 1, (batch,), generator=torch.Generator().manual_seed(0))
    lengths[0] = steps
    return lengths


def runner(layer: Any, given: list[Tensor | PackedSequence], backward: bool) -> Function:
    """Calls of the layer, one for each input, with the backward of the sum of the output if asked for; each goes on
    with the first entries of the final states of the one before."""

    def run() -> None:
        states = None
        total = torch.zeros(())
        for x in given:
            if states is not None and isinstance(x, Tensor):
                states = tuple(state[:, : x.shape[1]].contiguous() for state in states)
            output, states = layer(x, states)
            if backward:
                total = total + (output.data if isinstance(output, PackedSequence) else output).sum()
        if backward:
            total.backward()  # type: ignore[no-untyped-call]

    def inference() -> None:
        with torch.no_grad():
            run()

    return run if backward else inference


def measure(steps: int, batch: int, hidden: int, kind: str, backward: bool, seconds: float) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(0)
    lengths = lengths_of(kind, steps, batch)
    x, total = torch.randn(steps, batch, hidden), int(lengths.sum())
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    counts, repeats = torch.unique_consecutive(packed.batch_sizes, return_counts=True)
    blocks = [torch.randn(int(n), int(b), hidden) for b, n in zip(counts, repeats, strict=True)]
    ours, theirs = rnncc.load("lstm").LSTM(hidden, hidden, backend="cpu"), nn.LSTM(hidden, hidden)
    rows = torch.randn(max(1, total // batch), batch, hidden)
    times = interleaved(
        {
            "packed": runner(ours, [packed], backward), "rows": runner(ours, [rows], backward),
            "blocks": runner(ours, list(blocks), backward), "padded": runner(ours, [x], backward),
            "nn_packed": runner(theirs, [packed], backward), "nn_rows": runner(theirs, [rows], backward),
        },
        seconds=seconds,
    )  # fmt: skip
    found = {name: round(median_ms(values), 3) for name, values in times.items()}
    return {"T": steps, "B": batch, "H": hidden, "lengths": kind, "rows": total, "backward": backward, "ms": found}


def main() -> None:
    parser = argparse.ArgumentParser(description="PackedSequence on the CPU.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=output)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for steps, batch, hidden in SIZES[:1] if options.quick else SIZES:
        for kind in ("even", "one long"):
            for backward in (False, True):
                row = measure(steps, batch, hidden, kind, backward, 0.2 if options.quick else 1.0)
                rows.append(row)
                what = "forward + backward" if backward else "forward"
                figures = ", ".join(f"{name} {ms:.1f}" for name, ms in row["ms"].items())
                print(f"{steps}x{batch}x{hidden}, lengths {kind}, {what}: ms {figures}", flush=True)
    if options.json:
        write(options.json, rows)


if __name__ == "__main__":
    main()
