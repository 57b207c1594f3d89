"""What the rows of `cpu.py --threads` are: layers and single steps with 1, 2, 4, … threads, beside torch.nn's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from measure import Function, environment, interleaved, median_ms, ratio, write
from torch import Tensor, nn

import rnncc
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells

# (T, B, H), and cells beside the module of torch.nn that computes the same.
SIZES = ((128, 16, 128), (256, 32, 256), (128, 64, 512), (32, 128, 1024), (16, 16, 256), (1, 16, 256))
Rows = list[dict[str, Any]]
Twin = type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]
TWINS: dict[str, Twin] = {"lstm": nn.LSTM, "gru": nn.GRU, "nn_rnn": nn.RNN}
# In bfloat16, and for how times fall with the number of threads: cells beside nn.LSTM.
LARGE = ((256, 32, 256), (128, 64, 512))
SCALING = ("layernormlstm", "slstm", "mingru", "s6")
# A layer without gradients must take no longer than torch.nn's, and with them less.
MUST = {False: 1.0, True: 1.1}


@dataclass(frozen=True, slots=True)
class Case:
    """A cell and its sizes, and what is measured: in which dtype, and whether the backward counts."""

    cell: str
    steps: int
    batch: int
    hidden: int
    dtype: torch.dtype
    backward: bool

    @property
    def beside(self) -> Twin:
        """What it is compared with."""
        return TWINS.get(self.cell, nn.LSTM)


def cases(cells: Sequence[str]) -> Iterator[Case]:
    """The cases of some cells, in the order of the table."""
    for cell in cells:
        for dtype in (torch.float32, torch.bfloat16) if cell in TWINS else (torch.float32,):
            sizes = SIZES if cell in TWINS and dtype == torch.float32 else LARGE
            for steps, batch, hidden in sizes:
                for backward in (False, True):
                    yield Case(cell, steps, batch, hidden, dtype, backward)


def calls(case: Case) -> dict[str, Function]:
    """What to call for ours and for torch.nn's, of the same sizes."""
    module = rnncc.load(case.cell)
    name = compile_cells(read_request(case.cell), "parse").cells[0].name
    given: dict[str, Any] = {"dtype": case.dtype}
    ours = getattr(module, name)(case.hidden, case.hidden, backend="cpu", **given)
    theirs = case.beside(case.hidden, case.hidden, **given)
    x = torch.randn(case.steps, case.batch, case.hidden, **given)
    return {"ours": runner(ours, x, case.backward), "torch": runner(theirs, x, case.backward)}


def runner(layer: Callable[[Tensor], Any], x: Tensor, backward: bool) -> Function:
    """A call of the layer, with the backward of the sum of its output if asked for."""
    if not backward:

        def forward() -> None:
            with torch.no_grad():
                layer(x)

        return forward
    inputs = x.clone().requires_grad_()
    gradient = torch.ones(())

    def both() -> None:
        output, _ = layer(inputs)
        output.sum().backward(gradient)
        inputs.grad = None

    return both


def measure(case: Case, threads: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each number of threads."""
    functions = calls(case)
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            times = interleaved(functions, seconds=seconds)
            yield {
                "cell": case.cell, "beside": case.beside.__name__, "T": case.steps, "B": case.batch, "H": case.hidden,
                "dtype": str(case.dtype).removeprefix("torch."), "backward": case.backward, "threads": count,
                "ms": median_ms(times["ours"]), "torch_ms": median_ms(times["torch"]),
                "speedup": ratio(times["torch"], times["ours"]),
                "must": MUST[case.backward] if case.cell in TWINS else None,
            }  # fmt: skip
    finally:
        torch.set_num_threads(before)


def report(rows: Sequence[dict[str, Any]]) -> str:
    """One line of a case: torch.nn's time over ours at each number of threads."""
    row = rows[0]
    shape = f"{row['T']}x{row['B']}x{row['H']}"
    what = "fw+bw" if row["backward"] else "fw"
    values = "".join(
        f"{each['speedup']:7.2f}{'!' if each['must'] and each['speedup'] < each['must'] else ' '}" for each in rows
    )
    times = "".join(f"{each['ms']:9.2f}" for each in rows)
    return f"{row['cell']:14}{shape:>13} {row['dtype']:9}{what:>6}{values}  ours, ms:{times}"


def head(threads: Sequence[int]) -> str:
    """What stands above the lines."""
    return f"torch.nn's time over ours; threads:\n{'':42}" + "".join(f"{count:7} " for count in threads)


def run(cells: Sequence[str], threads: Sequence[int], quick: bool, path: Path | None) -> Rows:
    """Measure all cases, and print a line of each. Rows go to the file as they come, and an earlier run's rows of other
    cases stay there. Returns all rows of the file."""
    found: Rows = read(path, environment()) if path and path.exists() else []
    print(head(threads))
    for case in cases(cells):
        rows = list(measure(case, threads, 0.15 if quick else 0.6))
        print(report(rows), flush=True)
        found = [row for row in found if case_of(row) != case_of(rows[0])] + rows
        if path:
            write(path, found)
    return found


def read(path: Path, here: dict[str, Any] | None = None) -> Rows:
    """The rows of a file, which was measured `here` where that is said. Else an error."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        rows: Rows = [row for row in known["results"] if (*case_of(row), row["threads"])]
        environment_then = known["environment"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"cpu: {path} has no rows of --threads: {error!r}") from None
    if here is not None and environment_then != here:
        raise SystemExit(f"cpu: {path} was measured on something else: choose another --json, or remove it")
    return rows


def case_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What all rows of a case have in common."""
    return tuple(row[key] for key in ("cell", "T", "B", "H", "dtype", "backward"))


def show(rows: Rows) -> str:
    """The table of some rows."""
    counts = sorted({row["threads"] for row in rows})
    return "\n".join([head(counts), *(report(list(of)) for _, of in groupby(rows, case_of))])


def scaling(rows: Rows, size: tuple[int, int, int], backward: bool) -> dict[str, list[tuple[int, float]]]:
    """How many times as fast as alone so many threads are, in float32: of each cell, and of nn.LSTM."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if (row["T"], row["B"], row["H"]) != size or row["dtype"] != "float32" or row["backward"] != backward:
            continue
        lines.setdefault(row["cell"], []).append((row["threads"], row["ms"]))
        if row["cell"] == "lstm":
            lines.setdefault("nn.LSTM", []).append((row["threads"], row["torch_ms"]))
    found = {}
    for name, points in lines.items():
        (_, alone), *_ = sorted(points)
        found[name] = [(threads, alone / time) for threads, time in sorted(points)]
    return found


def plot(rows: Rows, path: Path) -> None:
    """Draw how times fall with the number of threads, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(LARGE), figsize=(13, 9), sharex=True)
    for backward, rank in zip((False, True), axes, strict=True):
        for size, place in zip(LARGE, rank, strict=True):
            lines = scaling(rows, size, backward)
            for name, points in lines.items():
                place.plot(*zip(*points, strict=True), "k^:" if name == "nn.LSTM" else "o-", label=name)
            counts = sorted({threads for points in lines.values() for threads, _ in points})
            place.plot(counts, counts, color="0.8", zorder=0)
            words = "forward + backward" if backward else "forward"
            place.set(title=f"{words}, {' × '.join(map(str, size))}", xlabel="threads")
            place.grid(visible=True, alpha=0.3)
            if counts:
                place.set(xscale="log", yscale="log")
                place.set_xticks(counts, list(map(str, counts)))
                place.set_yticks(counts, list(map(str, counts)))
                place.minorticks_off()
    for rank in axes:
        rank[0].set_ylabel("times as fast as one thread")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
