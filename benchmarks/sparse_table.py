"""The rows of benchmarks/gpu_sparse.py as text and as a picture, each beside the dense kernel and what is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_cases import PASSES, read_case
from gpu_table import best_ms, number
from sparse_cases import CROSSOVER, DENSITIES, Shape, SparseCase, case_of_shape, target_of

HEADER = (
    f"{'who':8}{'cell':>6}{'H':>6}{'B':>4} {'R':32}{'pass':>6}{'us/step':>9}{'dense':>9}{'of dense':>9}{'x csr':>8}"
    f"{'must':>8}{'aim':>7}  kernels"
)
# What is chosen may take at most this part of the dense kernel's time. Two measurements of one kernel differ by less.
MOST_OF_DENSE = 1.03
# The label and the style of each line of the picture.
LINES = {"rnncc": ("chosen", "o-"), "forced": ("kernel for zeros", "x:"), "dense": ("dense", "--")}
Found = dict[SparseCase, dict[str, Any]]


def step_us(case: SparseCase, found: Found) -> float | None:
    """Microseconds per step, back to back; None where it is not known."""
    row = found.get(case)
    time = best_ms(row) if row else None
    return None if time is None else time * 1e3 / case.steps


def cases_of_rows(rows: Sequence[dict[str, Any]]) -> Found:
    """The rows by case."""
    return {read_case(SparseCase, row): row for row in rows}


def of_dense(case: SparseCase, found: Found) -> float | None:
    """A case's time as a part of that of the dense kernel of the same size."""
    own, dense = step_us(case, found), step_us(case.dense, found)
    return own / dense if own and dense else None


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each row."""
    found = cases_of_rows(rows)
    yield HEADER
    yield from (line(case, row, found) for case, row in found.items())


def line(case: SparseCase, row: dict[str, Any], found: Found) -> str:
    """A row's line."""
    start = f"{case.who:8}{case.cell:>6}{case.hidden:6}{case.batch:4} {case.shape.weights:32}{case.run:>6}"
    if "error" in row:
        return f"{start}  cannot run: {row['error']}"
    own, target = step_us(case, found), target_of(case)
    assert own is not None
    is_dense = case == case.dense
    dense = None if is_dense else step_us(case.dense, found)
    csr = step_us(case_of_shape("csr", case.shape, case.run), found) if case.who != "csr" else None
    must = ""
    if target is not None:
        reached = "aim" if own <= target.aim else "yes" if own <= target.must else "MISS"
        must = f"{target.must:8.1f}{target.aim:7.1f} {reached:4}"
    return (
        f"{start}{own:9.2f}{number(dense, 9, 2)}{number(None if is_dense else of_dense(case, found), 9, 2)}"
        f"{number(csr and csr / own, 8, 0)}{must or ' ' * 20} {row.get('kernels', '')}"
    )


def verdict(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Whether what rnncc chooses is ever slower than the dense kernel, what was wrong, and which targets are missed."""
    found = cases_of_rows(rows)
    chosen = [(part, case) for case in found if case.who == "rnncc" and (part := of_dense(case, found)) is not None]
    if chosen:
        part, case = max(chosen, key=lambda each: each[0])
        yield f"worst ratio of what is chosen to dense: {part:.3f}, {case.shape} {case.run}"
    for part, case in chosen:
        if part > MOST_OF_DENSE:
            yield f"FAILED: slower than dense, {part:.3f}: {case.shape} {case.run}: {found[case].get('kernels', '')}"
    for case, row in found.items():
        if "error" in row and not row.get("impossible"):
            yield f"FAILED: {case.who} {case.shape} {case.run}: {row['error']}"
        own, target = step_us(case, found), target_of(case)
        if target is not None and own is not None and own > target.must:
            yield f"MISS: {own:.2f} us, must {target.must:.1f}: {case.who} {case.shape} {case.run}"


def lines(rows: Sequence[dict[str, Any]], run: str, hidden: int, batch: int) -> dict[str, list[tuple[float, float]]]:
    """(density in percent, microseconds per step) of each of LINES that was measured. The dense kernels take the same
    at each density."""
    found, made = cases_of_rows(rows), {}
    for who in LINES:
        points = []
        for density in CROSSOVER[batch].get(hidden, ()):
            shape = Shape("lstm", hidden, batch, 1.0 if who == "dense" else density)
            if time := step_us(case_of_shape(who, shape, run), found):
                points.append((100 * density, time))
        if points:
            made[who] = points
    return made


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the time over the density into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    sizes = sorted({hidden for own in CROSSOVER.values() for hidden in own})
    figure, axes = pyplot.subplots(len(PASSES), len(sizes), figsize=(18, 9), sharex=True, squeeze=False)
    for run, rank in zip(PASSES, axes, strict=True):
        for hidden, place in zip(sizes, rank, strict=True):
            for color, batch in zip(("tab:blue", "tab:orange"), CROSSOVER, strict=True):
                for who, points in lines(rows, run, hidden, batch).items():
                    label, style = LINES[who]
                    place.plot(*zip(*points, strict=True), style, color=color, label=f"{label}, batch {batch}")
            words = "forward" if run == PASSES[0] else "forward + backward"
            place.set(title=f"LSTM of {hidden}, {words}", xscale="log", yscale="log")
            place.set_xticks([100 * density for density in DENSITIES])
            for axis in (place.xaxis, place.yaxis):
                axis.set_major_formatter(ScalarFormatter())
            place.xaxis.set_minor_formatter(NullFormatter())
            place.yaxis.set_minor_formatter(ScalarFormatter())
            place.grid(visible=True, which="both", alpha=0.3)
    for place in axes[-1]:
        place.set_xlabel("elements of R that are not zero, %")
    for rank in axes:
        rank[0].set_ylabel("µs per step")
    # The place with most lines names them for all.
    fullest = max(axes.flat, key=lambda place: len(place.get_lines()))
    if fullest.get_lines():
        figure.legend(*fullest.get_legend_handles_labels(), loc="lower center", ncols=6)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
