"""The rows of benchmarks/gpu_dense.py as a picture: microseconds per step of the LSTM, by head_dim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_cases import PASSES, STEPS, case_of
from gpu_table import best_ms

BATCHES = (1, 16, 64, 256)
# (who, dtype): the line's label and style.
LINES = {
    ("rnncc", "bf16"): ("rnncc, made for the size", "o-"),
    ("alternating", "bf16"): ("rnncc, for every size", "s--"),
    ("cudnn", "fp16"): ("cuDNN fp16, one head", "^:"),
    ("cudnn", "bf16"): ("cuDNN bf16, one head", "v:"),
}
Line = list[tuple[int, float]]


def lines(rows: Sequence[dict[str, Any]], run: str, batch: int) -> dict[str, Line]:
    """(head_dim, microseconds per step) of everybody who was measured, by label; the floor too. Sorted by head_dim."""
    found: dict[str, Line] = {}
    floors: dict[int, float] = {}
    for row in rows:
        case, time = case_of(row), best_ms(row)
        label = LINES.get((case.who, case.dtype))
        if (case.cell, case.run, case.batch, case.steps) != ("lstm", run, batch, STEPS) or not label or time is None:
            continue
        found.setdefault(label[0], []).append((case.head_dim, time * 1e3 / STEPS))
        if row["floor_us"]:
            floors[case.head_dim] = row["floor_us"] * (1 + PASSES.index(run))
    if floors:
        found["exchange of states alone, measured"] = list(floors.items())
    return {label: sorted(points) for label, points in found.items()}


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw it into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    styles = dict(LINES.values())
    figure, axes = pyplot.subplots(len(PASSES), len(BATCHES), figsize=(18, 9), sharex=True, sharey="row", squeeze=False)
    for run, rank in zip(PASSES, axes, strict=True):
        for batch, place in zip(BATCHES, rank, strict=True):
            for label, points in lines(rows, run, batch).items():
                place.plot(*zip(*points, strict=True), styles.get(label, "k-"), label=label)
            words = "forward" if run == PASSES[0] else "forward + backward"
            place.set(title=f"LSTM {words}, batch {batch}", xscale="log", yscale="log")
            place.grid(visible=True, which="both", alpha=0.3)
    for place in axes[-1]:
        place.set_xlabel("head_dim")
    for rank in axes:
        rank[0].set_ylabel("µs per step")
    # The place with most lines names them for all.
    fullest = max(axes.flat, key=lambda place: len(place.get_lines()))
    if fullest.get_lines():
        figure.legend(*fullest.get_legend_handles_labels(), loc="lower center", ncols=len(LINES) + 1)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
