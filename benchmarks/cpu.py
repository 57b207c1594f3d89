"""CPU speed, measured side by side in one run: LSTM against nn.LSTM, GRU against nn.GRU, other cells against their
eager loop and against nn.LSTM's rate of arithmetic.

    python benchmarks/cpu.py [--quick] [--cells lstm,gru,...] [--json FILE]
    python benchmarks/cpu.py --threads 1,2,4,8,16 [...] [--plot PNG]
    python benchmarks/cpu.py --show FILE [--plot PNG]

Every figure is a median over interleaved calls; every ratio the median of ratios round by round. float32, the input
product included everywhere. GFLOP/s counts matrix products only: 2·rows·columns per batch entry and step forward, three
times that with backward.

--threads measures how times fall with the number of threads: layers and single steps beside torch.nn's, in float32 and
bfloat16, and other cells beside nn.LSTM (cpu_threads.py). Its rows go to the file of --json as they come, and a run
leaves there what others wrote for other cases. --show prints the table of such a file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cpu_threads
import torch
from cpu_threads import runner
from measure import interleaved, median_ms, output, ratio, write
from torch import nn

import rnncc
from rnncc.ir.cell import Cell, Contraction, value_table
from rnncc.ir.dim import as_int, evaluate
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells

SIZES = ((128, 16, 128), (512, 1, 256), (256, 32, 256), (128, 64, 512))
LARGE = SIZES[2:]
OTHERS = ("elman", "slstm", "lem", "peepholelstm", "gruv3", "rhn", "layernormlstm", "cornn", "mingru", "indrnn", "sru")


def products(cell: Cell, sizes: dict[str, int]) -> int:
    """Floating-point operations of a cell's matrix products for one batch entry and step, forward."""
    table = value_table(cell)
    nodes = [node for part in (cell.epilogue, *(s.batched + s.nodes for s in cell.segments)) for node in part]
    total = 0
    for node in nodes:
        if isinstance(node, Contraction):
            matrix = table[node.matrix]
            assert matrix.columns is not None
            blocks = as_int(diagonal_blocks(matrix.structure)) or 1
            total += 2 * evaluate(matrix.width, sizes) * evaluate(matrix.columns, sizes) // blocks
    return total


def compare(name: str, steps: int, batch: int, hidden: int, backward: bool, seconds: float) -> dict[str, Any]:
    """One row: ours, the peer and the eager loop in turn."""
    cell = compile_cells(read_request(name), "partition").cells[0].cell
    ours = getattr(rnncc.load(name), cell.name)(hidden, hidden, backend="cpu")
    eager = getattr(rnncc.load(name), cell.name)(hidden, hidden, backend="reference")
    eager.load_state_dict(ours.state_dict())
    x = torch.randn(steps, batch, hidden)
    layers: dict[str, Any] = {"rnncc": ours, "nn.LSTM": nn.LSTM(hidden, hidden)}
    if name == "gru":
        layers["nn.GRU"] = nn.GRU(hidden, hidden)
    elif name != "lstm" and (steps, batch, hidden) not in LARGE:
        layers["eager"] = eager
    times = interleaved({key: runner(layer, x, backward) for key, layer in layers.items()}, seconds=seconds)
    flops = products(cell, {"I": hidden, "H": hidden, "P": hidden}) * steps * batch * (3 if backward else 1)
    lstm_flops = 16 * hidden * hidden * steps * batch * (3 if backward else 1)
    row: dict[str, Any] = {"cell": name, "T": steps, "B": batch, "H": hidden, "backward": backward}
    row |= {f"{key}_ms": median_ms(value) for key, value in times.items()}
    row["gflops"] = flops / row["rnncc_ms"] / 1e6
    row["lstm_gflops"] = lstm_flops / row["nn.LSTM_ms"] / 1e6
    for key in ("nn.LSTM", "nn.GRU", "eager"):
        if key in times:
            row[f"speedup_over_{key}"] = ratio(times[key], times["rnncc"])
    return row


def goal(row: dict[str, Any]) -> tuple[str, float, float]:
    """What the row must reach: the measure's name, its value and its bound."""
    if row["cell"] == "lstm":
        return "x nn.LSTM", row["speedup_over_nn.LSTM"], 0.9
    if row["cell"] == "gru":
        return "x nn.GRU", row["speedup_over_nn.GRU"], 2.0
    if (row["T"], row["B"], row["H"]) in LARGE and row["gflops"] > 0:
        return "x nn.LSTM's GFLOP/s", row["gflops"] / row["lstm_gflops"], 0.8
    return "x eager", row["speedup_over_eager"], 6.0 if row["backward"] else 4.0


def counts(text: str) -> tuple[int, ...]:
    """The value of --threads, for argparse."""
    found = tuple(int(word) for word in text.split(",") if word.strip().isdecimal() and int(word) > 0)
    if not found or len(found) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers of threads")
    return found


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time a figure")
    parser.add_argument("--cells", help="default: those of the table in docs/results.md")
    parser.add_argument("--threads", type=counts, help="numbers of threads, separated by commas")
    parser.add_argument("--json", type=output)
    parser.add_argument("--show", type=Path, metavar="FILE", help="rows of --threads: measure nothing")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw rows of --threads (needs matplotlib)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    chosen = arguments.cells.split(",") if arguments.cells else None
    if arguments.show or arguments.threads:
        if arguments.show:
            threaded = cpu_threads.read(arguments.show)
            print(cpu_threads.show(threaded))
        else:
            cells = chosen or (*cpu_threads.TWINS, *cpu_threads.SCALING)
            threaded = cpu_threads.run(cells, arguments.threads, arguments.quick, arguments.json)
        if arguments.plot:
            cpu_threads.plot(threaded, arguments.plot)
        return
    rows = []
    print(f"{'cell':14}{'T x B x H':>14}{'pass':>8}{'ours ms':>10}{'GFLOP/s':>9}  {'against':24}{'must':>6}")
    for name in chosen or ("lstm", "gru", *OTHERS):
        for steps, batch, hidden in SIZES:
            for backward in (False, True):
                row = compare(name, steps, batch, hidden, backward, 0.25 if arguments.quick else 1.0)
                measure, value, bound = goal(row)
                rows.append(row | {"measure": measure, "value": value, "must": bound})
                shape = f"{steps}x{batch}x{hidden}"
                mark = "" if value >= bound else "  MISS"
                print(
                    f"{name:14}{shape:>14}{'fw+bw' if backward else 'fw':>8}{row['rnncc_ms']:10.2f}{row['gflops']:9.0f}"
                    f"  {value:6.2f} {measure:18}{bound:5.1f}{mark}",
                    flush=True,
                )
    if arguments.json:
        write(arguments.json, rows)


if __name__ == "__main__":
    main()
