"""Single kernels of the grid, each with a given layout: microseconds per step.

    python benchmarks/gpu_kernels.py [--only WORDS] [--shard I/N] [--out FILE]
    python benchmarks/gpu_kernels.py --show FILE

Measures the rows of results/gpu_kernels.json again whose kernels run on a grid, by the layouts that stand there. `us`
is the median time of the kernel itself over 1024 steps, divided by their number (float32: 128). benchmarks/fit_rates.py
fits the rates of the cost model to such rows. `planned_us` is what the model says. WORDS, separated by commas, choose
families, cells, loops and dtypes.

Kernels are compiled first. Rows that differ in nothing but their layouts have one package, so each of them gets a copy
of a cache that has nothing but libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_calls import DTYPES
from gpu_cells import PARTS
from gpu_run import Results, in_time, parser_of, part, read_or_measure, words_of
from measured_steps import RESULTS, given_kernel, text_of
from report_text import table as table_text
from torch.profiler import ProfilerActivity, profile

import rnncc
from rnncc.ir.family import FAMILIES, Scope
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import KernelLayout, LoopKernels, from_batch
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule import kernels as scheduling

STEPS = {"bf16": 1024, "fp16": 1024, "fp32": 128}
CALLS = 9
OF_THE_GRID = {family.name for family in FAMILIES if family.scope is Scope.GRID}

Row = dict[str, Any]
# What decides which kernel runs: its loop, and the size.
Key = tuple[FusedLoop, int, int, str]


def cases(words: Sequence[str], shard: str) -> list[Row]:
    """The rows that were asked for, without what was measured."""
    known = json.loads((RESULTS / "gpu_kernels.json").read_text(encoding="utf-8"))["results"]
    found = [
        {name: value for name, value in row.items() if name not in ("us", "planned_us")}
        for row in known
        if row["family"] in OF_THE_GRID and row["loop"] in ("forward", "inference", "backward")
    ]
    wanted = [row for row in found if all(any(word in str(v) for v in row.values()) for word in words)]
    return part(wanted, shard)


def variants(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in as few lists as hold no two kernels of a program at one size."""
    taken: Counter[str] = Counter()
    found: list[list[Row]] = []
    for row in rows:
        own = {name: value for name, value in row.items() if name not in ("family", "layout", "batch")}
        own["loop"] = row["loop"].replace("inference", "forward")
        place = taken[json.dumps(own)]
        taken[json.dumps(own)] += 1
        found += [[] for _ in range(place + 1 - len(found))]
        found[place].append(row)
    return found


@contextmanager
def only(kernels: Mapping[Key, KernelLayout]) -> Iterator[None]:
    """Loops have these kernels for all batches, and no others."""

    def schedule(loop: FusedLoop, problem: Problem, target: Target) -> LoopKernels:
        kernel = kernels.get((loop, problem.head_dim, problem.heads, problem.dtype))
        return LoopKernels(from_batch(kernel) if kernel else (), None, (), 0)

    with patch.object(scheduling, "schedule", schedule):
        yield


class Timed:
    """A row's kernel, and a call that runs it."""

    def __init__(self, row: Row, folder: Path) -> None:
        self.row, self.steps = row, STEPS[row["dtype"]]
        self.loop, self.kernel, self.planned_us = given_kernel(row)
        text = text_of(row["cell"], row.get("density"), row.get("block", 1))
        name = row["cell"]
        if text:
            name = f"own_{row['cell']}_{row['density']}_{row.get('block', 1)}".replace(".", "_")
            (folder / f"{name}.rnn").write_text(text, encoding="utf-8")
        self.cell = str(folder / f"{name}.rnn") if text else name

    @property
    def key(self) -> Key:
        """What decides that this kernel runs."""
        return self.loop, self.row["head_dim"], self.row.get("heads", 1), self.row["dtype"]

    def load(self) -> None:
        """Makes the layer."""
        module, heads = rnncc.load(self.cell), self.row.get("heads", 1)
        layers = (v for v in vars(module).values() if isinstance(v, type) and issubclass(v, torch.nn.Module))
        layer_class = next(v for v in layers if not v.__name__.endswith("Cell"))
        hidden = self.row["head_dim"] * heads
        own = {name: hidden // share for name, share in PARTS.get(self.row["cell"], {}).items()}
        dtype = DTYPES[self.row["dtype"]]
        self.layer = layer_class(hidden, hidden, num_heads=heads, device="cuda", dtype=dtype, **own)

    def call(self) -> None:
        """Runs the kernel."""
        batch, size = self.row["batch"], self.row["head_dim"] * self.row.get("heads", 1)
        trains = self.row["loop"] != "inference"
        x = torch.randn(self.steps, batch, size, device="cuda", dtype=DTYPES[self.row["dtype"]], requires_grad=trains)
        with torch.set_grad_enabled(trains):
            output = self.layer(x)[0]
            if self.row["loop"] == "backward":
                output.backward(torch.ones_like(output))

    def us(self) -> float:
        """The median time of the kernel in microseconds per step. Raises RuntimeError where another kernel ran."""
        self.call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(CALLS):
                self.call()
            torch.cuda.synchronize()
        name = f"_{self.row['loop']}_"
        times = [e.device_time for e in found.events() if self.kernel.symbol in e.name and name in e.name]
        if len(times) != CALLS:
            raise RuntimeError(f"{self.kernel.symbol} ran {len(times)} times in {CALLS} calls")
        return float(statistics.median(times)) / self.steps


def load(rows: Sequence[Row], folder: Path) -> list[Timed]:
    """Makes the layers of rows. `folder`: where the texts of cells go that are not shipped."""
    timed = [Timed(row, folder) for row in rows]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Timed.load, timed))
    return timed


def measure(rows: Sequence[Row], results: Results, minutes: float) -> None:
    """Measures the rows of a variant."""
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        timed = load(rows, Path(folder))
        with only({each.key: each.kernel for each in timed}), ThreadPoolExecutor(8) as pool:
            list(pool.map(Timed.call, timed))
        torch.cuda.synchronize()
        for each in in_time(timed, minutes):
            us = each.us()
            print(f"{us:7.3f} us, planned {each.planned_us:7.3f}: {each.row}", flush=True)
            results.add({**each.row, "us": round(us, 3), "planned_us": round(each.planned_us, 3)})


def measure_all(arguments: argparse.Namespace, results: Results) -> None:
    """Measures what the file does not have yet, each variant in a process with a cache of its own."""
    begin = time.monotonic()
    known = [{k: v for k, v in row.items() if k not in ("us", "planned_us")} for row in results.rows]
    left = [row for row in cases(words_of(arguments), arguments.shard) if row not in known]
    if not left:
        return
    with tempfile.TemporaryDirectory() as folder:
        libraries = Path(folder) / "libraries"
        for number, rows in enumerate((left, *variants(left))):
            cache = Path(folder) / str(number) if number else libraries
            if number:
                shutil.copytree(libraries, cache)
            minutes = arguments.minutes - (time.monotonic() - begin) / 60
            command = [sys.executable, __file__, "--rows", json.dumps(rows), "--minutes", str(minutes)]
            command += ["--out", str(arguments.out), "--commit", arguments.commit, *([] if number else ["--load"])]
            # What it measured is in the file, also where it fails.
            subprocess.run(command, check=True, env={**os.environ, "RNNCC_CACHE_DIR": str(cache)})
    if arguments.out.exists():
        results.rows = json.loads(arguments.out.read_text(encoding="utf-8"))["results"]


def table(rows: Sequence[Row]) -> str:
    """What was measured beside what is planned."""
    head = ("kernel", "us per step", "planned")
    found = []
    for row in rows:
        layout = " ".join(f"{name}={size}" for name, size in row["layout"].items())
        what = f"{row['family']} {row['cell']} {row['loop']} {row['head_dim']} [{row['batch']}] {row['dtype']} {layout}"
        found.append((what, f"{row['us']:.3f}", f"{row.get('planned_us', 0):.3f}"))
    return table_text(head, found)


def main() -> int:
    """Measure or show."""
    parser = parser_of(__doc__, Path("gpu_kernels.json"))
    parser.add_argument("--rows", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.load:
            with tempfile.TemporaryDirectory() as folder:
                load(arguments.rows, Path(folder))
            return 0
        if arguments.rows is not None:
            read_or_measure(arguments, lambda results: measure(arguments.rows, results, arguments.minutes))
            return 0
        rows, _ = read_or_measure(arguments, lambda results: measure_all(arguments, results))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
