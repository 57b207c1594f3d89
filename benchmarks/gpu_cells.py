"""Every shipped cell as a whole layer on a GPU, with what its equations allow.

    python benchmarks/gpu_cells.py [--quick] [--only WORDS] [--shard I/N] [--out FILE]
    python benchmarks/gpu_cells.py --show FILE

A layer runs a batch of 16 over 1024 steps in bfloat16, its input as wide as its hidden size. There are three sizes: one
head of 768, three heads of 256, twelve of 64. `queued_ms` is the median time of a call between CUDA events, in
milliseconds, one call after the other without a wait of the host. `call_ms` is that of a single call. `path` names the
kernels that ran each loop. `exchanges` is how often the units of a state must wait for each other in a step, by the
cell's equations alone (rnncc/analysis/exchanges.py). For cells with a recurrent matrix it bounds the time that a step
may take (MUST), and the table sets that bound beside the measured time.

WORDS, separated by commas, choose cells and sizes (768x1, 256x3, 64x12). A run that is started again goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from gpu_run import Results, in_time, parser_of, part, read_or_measure, words_of
from measure import Function, gpu_ms
from report_text import table as table_text

from rnncc.analysis.exchanges import exchanges
from rnncc.driver import build_package
from rnncc.ir.problem import Problem
from rnncc.ir.recurrence import MIXING
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import read_request
from rnncc.machine.paths import shipped_cells
from rnncc.pipeline import compile_cells
from rnncc.verify.runner import runner_of

BATCH, STEPS, DTYPE = 16, 1024, "bf16"
SIZES = ((768, 1), (256, 3), (64, 12))
PASSES = ("fw", "fw+bw")
# Sizes of a cell's own, as parts of the hidden size. Others have their defaults.
PARTS = {"cfc": {"N": 4}, "lowrankrnn": {"K": 8}, "lstmp": {"P": 2}, "nn_lstmp": {"P": 2}, "onlstm": {"K": 4}}
# What a layer with a recurrent matrix must keep to, by size: microseconds per exchange, and microseconds per step
# besides. With the backward it may take so much longer than forward alone.
MUST = {(768, 1): (1.2, 0.8), (256, 3): (0.65, 0.45), (64, 12): (0.45, 0.35)}
TRAINING_FACTOR = 2.9


@dataclass(frozen=True, slots=True)
class Case:
    """A cell at a size."""

    cell: str
    head_dim: int
    heads: int

    @property
    def size(self) -> str:
        """`768x1`."""
        return f"{self.head_dim}x{self.heads}"


@dataclass(frozen=True, slots=True)
class Known:
    """What the equations of a cell say. `dense`: it has a recurrent matrix, or works across the units. `one_head`: it
    takes one head only."""

    name: str
    exchanges: int
    dense: bool
    one_head: bool


@cache
def known(cell: str) -> Known:
    """What the equations of a shipped cell say."""
    made = compile_cells(read_request(cell), "classify").cells[0]
    dense = any(loop.kind in MIXING for loop in made.recurrences)
    return Known(made.name, exchanges(made.typed), dense, bool(made.cell.single_head_because))


def must_ms(case: Case, about: Known, run: str) -> float | None:
    """The time that the case must keep to, in milliseconds."""
    if not about.dense:
        return None
    each, step = MUST[case.head_dim, case.heads]
    return STEPS / 1000 * (each * about.exchanges + step) * (1 if run == "fw" else TRAINING_FACTOR)


def select(words: Sequence[str], shard: str, quick: bool) -> list[Case]:
    """The cases that were asked for. Raises ValueError for a word or a shard that means nothing."""
    cells = [path.stem for path in shipped_cells()]
    sizes = {f"{head_dim}x{heads}": (head_dim, heads) for head_dim, heads in SIZES}
    if unknown := set(words) - {*cells, *sizes}:
        raise ValueError(f"{', '.join(sorted(unknown))}: neither a cell nor one of {', '.join(sizes)}")
    wanted = [size for name, size in sizes.items() if name in words] or list(sizes.values())[: 1 if quick else None]
    found = [Case(cell, *size) for cell in cells if cell in words or not set(words) & set(cells) for size in wanted]
    return part(found, shard)


def build(cases: Sequence[Case], folder: Path) -> None:
    """A package for each cell, with the kernels of its cases. Raises RnnccError."""
    problems: dict[str, list[Problem]] = {}
    for case in cases:
        wanted = problems.setdefault(case.cell, [])
        if case.heads == 1 or not known(case.cell).one_head:
            wanted.append(Problem(case.head_dim, case.heads, DTYPE, BATCH))

    def make(cell: str) -> Path:
        request = replace(read_request(cell), name=f"{cell}_sized", problems=tuple(problems[cell]))
        return build_package(request, folder)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, problems))
    sys.path.insert(0, str(folder))


def layer_of(case: Case, about: Known) -> torch.nn.Module:
    """The layer of a case, on the GPU."""
    hidden = case.head_dim * case.heads
    own = {name: hidden // part for name, part in PARTS.get(case.cell, {}).items()}
    made: torch.nn.Module = getattr(import_module(f"{case.cell}_sized"), about.name)(
        hidden, hidden, num_heads=case.heads, device="cuda", dtype=torch.bfloat16, backend="cuda", **own
    )
    return made


def call_of(case: Case, layer: Any, run: str) -> Function:
    """A call of the layer, and of its backward."""
    x = torch.randn(STEPS, BATCH, case.head_dim * case.heads, device="cuda", dtype=torch.bfloat16)
    extra = {}
    for item in layer.spec.inputs[1:]:
        times = () if item.per_sequence else (STEPS,)
        extra[item.name] = torch.rand(*times, BATCH, item.width(layer._sizes[0]), device="cuda").to(x)

    def forward() -> torch.Tensor:
        output: torch.Tensor = layer(x, **extra)[0]
        return output

    if run == "fw":
        return torch.no_grad()(forward)
    x.requires_grad_()
    gradient = torch.randn_like(forward())
    leaves = [x, *layer.parameters()]

    def both() -> object:
        return torch.autograd.grad(forward(), leaves, gradient, allow_unused=True)

    return both


def measure(case: Case, ways: Sequence[str], quick: bool) -> Iterator[dict[str, Any]]:
    """The rows of a case. One that cannot run has `error` instead of times."""
    about = known(case.cell)
    for run in ways:
        row: dict[str, Any] = asdict(case)
        row |= {"run": run, "exchanges": about.exchanges, "must_ms": must_ms(case, about, run)}
        try:
            torch.manual_seed(0)
            layer = layer_of(case, about)
            call, queued = gpu_ms(call_of(case, layer, run), 5 if quick else 15, 10)
            row |= {"call_ms": call, "queued_ms": queued, "path": list(runner_of(layer).loops)}
        except (RuntimeError, ValueError) as error:
            row["error"] = str(error).splitlines()[0]
        torch.cuda.empty_cache()
        yield row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows by how far they are from what they must keep to, the worst last."""
    lines = []
    for row in sorted(rows, key=ratio):
        size, must = f"{row['head_dim']}x{row['heads']}", row["must_ms"]
        time = row.get("error") or f"{row['queued_ms']:.3f}"
        bound = ("", "") if must is None else (f"{must:.2f}", f"{ratio(row):.2f}")
        path = "; ".join(row.get("path", ()))
        lines.append((row["cell"], size, row["run"], str(row["exchanges"]), time, *bound, path))
    return table_text(("cell", "size", "run", "exchanges", "ms", "must", "ratio", "kernels"), lines)


def ratio(row: dict[str, Any]) -> float:
    """Its time over the one that it must keep to; 0 where it is held to none."""
    if row.get("must_ms") is None or row.get("queued_ms") is None:
        return 0.0
    return float(row["queued_ms"] / row["must_ms"])


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print the table. 1 where nothing can be measured."""
    arguments = parser_of(__doc__, Path("gpu_cells.json")).parse_args(words)
    try:
        cases = select(words_of(arguments), arguments.shard, arguments.quick)
        rows, _ = read_or_measure(arguments, partial(measure_all, cases, arguments))
    except (OSError, ValueError, RuntimeError, RnnccError) as error:
        print(f"gpu_cells: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    return 0


def measure_all(cases: Sequence[Case], arguments: argparse.Namespace, results: Results) -> None:
    """Measure what the file does not have yet. Raises as `main` says."""
    done = {(row["cell"], row["head_dim"], row["heads"], row["run"]) for row in results.rows}
    left = {case: [way for way in PASSES if (case.cell, case.head_dim, case.heads, way) not in done] for case in cases}
    left = {case: ways for case, ways in left.items() if ways}
    with tempfile.TemporaryDirectory() as folder:
        build(list(left), Path(folder))
        for case, ways in in_time(list(left.items()), arguments.minutes):
            for row in measure(case, ways, arguments.quick):
                results.add(row)
                print(row["cell"], case.size, row["run"], row.get("error") or f"{row['queued_ms']:.3f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
