"""What packed sequences cost on a GPU, beside unpadded steps of the same number, padded ones, and nn.LSTM's.

    python benchmarks/gpu_packed.py [--quick] [--json FILE]

Two kinds of lengths: drawn evenly from 1 to T, and one of T among others of T/16. bfloat16, the input product
included; medians, of calls one at a time and of calls back to back.

offsets, packed  the same sequences, given as rows with offsets and as a PackedSequence
rows             as many unpadded steps, [T, total/T]: a loop takes as long as its longest sequence, whoever runs it
padded           [T, B], with lengths
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from cpu_packed import lengths_of
from measure import Function, gpu_ms, write
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnncc

# Cell, hidden, heads, T, B.
CASES = (
    ("lstm", "LSTM", 768, 12, 1024, 64), ("lstm", "LSTM", 768, 1, 1024, 16), ("lstm", "LSTM", 256, 1, 256, 128),
    ("gru", "GRU", 768, 3, 1024, 32), ("gruv3", "GRUv3", 256, 1, 256, 32), ("mingru", "minGRU", 1024, 1, 1024, 64),
    ("indrnn", "IndRNN", 1024, 1, 1024, 64),
)  # fmt: skip


def runner(layer: Any, x: Tensor | PackedSequence, backward: bool, **keywords: Any) -> Function:
    """Calls of the layer, with the backward of the sum of the output if asked for."""

    def run() -> None:
        output = layer(x, **keywords)[0]
        if backward:
            (output.data if isinstance(output, PackedSequence) else output).sum().backward()

    def inference() -> None:
        with torch.no_grad():
            run()

    return run if backward else inference


def measure(case: tuple[str, str, int, int, int, int], kind: str, backward: bool, quick: bool) -> dict[str, Any]:
    """One row: milliseconds of a call, and of a call among others queued, by what is called."""
    file, name, hidden, heads, steps, batch = case
    torch.manual_seed(0)
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    lengths = lengths_of(kind, steps, batch)
    x, total = torch.randn(steps, batch, hidden, **like), int(lengths.sum())
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).cuda()
    given = torch.cat([x[:length, b] for b, length in enumerate(lengths.tolist())])
    even = torch.randn(steps, -(-total // steps), hidden, **like)
    ours = getattr(rnncc.load(file), name)(hidden, hidden, num_heads=heads, **like)
    functions = {
        "offsets": runner(ours, given, backward, offsets=offsets, max_length=steps),
        "packed": runner(ours, packed, backward),
        "rows": runner(ours, even, backward),
        "padded": runner(ours, x, backward, lengths=lengths.cuda()),
    }
    if name in ("LSTM", "GRU"):
        theirs = getattr(nn, name)(hidden, hidden, **like)
        functions |= {"nn_packed": runner(theirs, packed, backward), "nn_rows": runner(theirs, even, backward)}
    times = {who: gpu_ms(run, 5 if quick else 15, 5 if quick else 10) for who, run in functions.items()}
    call, queued = ({who: round(pair[i] or 0.0, 3) for who, pair in times.items()} for i in range(2))
    return {
        "cell": name, "H": hidden, "heads": heads, "T": steps, "B": batch, "lengths": kind, "rows": total,
        "backward": backward, "call_ms": call, "queued_ms": queued,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Packed sequences on a GPU.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    rows = []
    for case in CASES[:2] if options.quick else CASES:
        for kind in ("even", "one long"):
            for backward in (False, True):
                row = measure(case, kind, backward, options.quick)
                rows.append(row)
                if options.json:
                    write(options.json, rows)
                times = row["queued_ms"]
                ratios = ", ".join(f"{who} {times[who] / times['rows']:.2f}" for who in ("offsets", "packed", "padded"))
                what = "forward + backward" if backward else "forward"
                figures = ", ".join(f"{who} {ms:.2f}" for who, ms in times.items())
                size = "x".join(str(row[key]) for key in ("T", "B", "H", "heads"))
                print(f"{row['cell']} {size}, lengths {kind}, {what}: ms {figures}; x rows: {ratios}", flush=True)


if __name__ == "__main__":
    main()
