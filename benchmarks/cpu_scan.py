"""CPU speed of cells without a recurrent matrix, side by side in one run: every shipped one, T = 1024, float32.

    python benchmarks/cpu_scan.py [--quick] [--cells mingru,sru,...] [--threads N] [--json FILE]

From gate pre-activations on: the cell's functional op, the eager loop over the reference's step, and the same loop
compiled by torch.compile, 16 steps a function (all 1024 in one take minutes to compile). The loop splits its streams
in one operation: the op's reference backend indexes them step by step, which makes its backward quadratic in T. Every
figure is a median over interleaved calls, every ratio the median of ratios round by round. fw+bw is to the gradients of
pre-activations, weights and initial states. Where others use the machine, --threads 1 gives steadier figures: threads
wait for the slowest.

`affine` is h = a*h + b with both given; `lru` is that cell's loop without its output's products, which are torch's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import interleaved, median_ms, output, ratio, write
from scan_calls import Loop, Tensors
from scan_cells import classes, shipped
from torch import Tensor

STEPS = 1024
SIZES = ((16, 128), (1, 256))
# How many times as fast as the peer ours must be.
MUST = {"eager": 4.0, "compiled": 1.5}


def compare(cell: str, batch: int, channels: int, run: str, seconds: float) -> dict[str, Any]:
    """One row: ours, the eager loop and the compiled one in turn."""
    tensors = Tensors(cell, batch, STEPS, channels, dtype=torch.float32, device="cpu", trained=run == "fw+bw")
    torch.compiler.reset()
    parties: dict[str, Callable[[], Tensor]] = {
        "rnncc": tensors.by_op,
        "eager": Loop(tensors, compiled=False),
        "compiled": Loop(tensors, compiled=True),
    }
    times = interleaved({who: tensors.timed(call, run) for who, call in parties.items()}, seconds=seconds)
    row: dict[str, Any] = {
        "cell": cell, "class": "+".join(sorted(kind.value for kind in classes(cell))),
        "T": STEPS, "B": batch, "H": channels, "run": run,
    }  # fmt: skip
    row |= {f"{who}_ms": median_ms(value) for who, value in times.items()}
    return row | {f"speedup_over_{who}": ratio(times[who], times["rnncc"]) for who in MUST}


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    missed = [who for who, least in MUST.items() if row[f"speedup_over_{who}"] < least]
    size = f"{row['T']}x{row['B']}x{row['H']}"
    return (
        f"{row['cell']:16}{row['class']:19}{size:>13}{row['run']:>7}{row['rnncc_ms']:9.2f}{row['eager_ms']:9.1f}"
        f"{row['compiled_ms']:10.2f}{row['speedup_over_eager']:9.1f}{row['speedup_over_compiled']:9.1f}"
        f"{'  MISS ' + ', '.join(missed) if missed else ''}"
    )


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time a figure")
    parser.add_argument("--cells", default=",".join(("affine", *shipped())))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=output)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    print(
        f"{'cell':16}{'class':19}{'TxBxH':>13}{'pass':>7}{'ours ms':>9}{'eager':>9}{'compiled':>10}{'x eager':>9}"
        f"{'x comp.':>9}  must {MUST['eager']}, {MUST['compiled']}"
    )
    for cell in arguments.cells.split(","):
        for batch, channels in SIZES:
            for run in ("fw", "fw+bw"):
                rows.append(compare(cell, batch, channels, run, 0.25 if arguments.quick else 1.0))
                print(line(rows[-1]), flush=True)
                if arguments.json:
                    write(arguments.json, rows)


if __name__ == "__main__":
    main()
