"""Every shipped cell as a whole layer on an H200, beside what its equations allow."""

from __future__ import annotations

import statistics

from gpu_cases import PASSES
from report_text import NOTHING, Row, known, pair, ratio, ratios, table

Size = tuple[int, int]
NAMES = {"fw": "forward", "fw+bw": "forward + backward"}
WORST = 25


def _sizes() -> list[Size]:
    """The sizes that were measured, head_dim and heads, in order."""
    return list(dict.fromkeys((row["head_dim"], row["heads"]) for row in known("gpu_cells").rows))


def _name(size: Size) -> str:
    return "{} × {}".format(*size)


def _of_bound(row: Row) -> float:
    """The measured time over the bound."""
    return float(row["queued_ms"] / row["must_ms"])


def _bounded(**wanted: object) -> list[Row]:
    """The rows of cells that have a bound."""
    return [row for row in known("gpu_cells").all(**wanted) if row["must_ms"] is not None]


def _cells() -> str:
    about = known("gpu_cells")
    head = ["cell", "exchanges"]
    for size in _sizes():
        head += [f"{_name(size)}, ms", "of its bound"]
    lines = []
    for cell, exchanges in {row["cell"]: row["exchanges"] for row in about.rows}.items():
        line = [f"[`{cell}`](#{cell})", str(exchanges)]
        for head_dim, heads in _sizes():
            rows = [about.one(cell=cell, head_dim=head_dim, heads=heads, run=run) for run in PASSES]
            line.append(pair([row["queued_ms"] if row else None for row in rows]))
            line.append(ratios([_of_bound(row) if row and row["must_ms"] is not None else None for row in rows]))
        lines.append(line)
    return table(head, lines)


def _bounds() -> str:
    bounds = {
        (row["exchanges"], (row["head_dim"], row["heads"]), row["run"]): row["must_ms"]
        for row in known("gpu_cells").rows
        if row["must_ms"] is not None
    }
    lines = []
    for exchanges in sorted({count for count, _, _ in bounds}):
        of_sizes = [pair([bounds.get((exchanges, size, run)) for run in PASSES]) for size in _sizes()]
        lines.append((str(exchanges), *of_sizes))
    return table(("exchanges", *(f"{_name(size)}, ms" for size in _sizes())), lines)


def _beside_bounds() -> str:
    lines = []
    for head_dim, heads in _sizes():
        for run in PASSES:
            found = sorted(map(_of_bound, _bounded(head_dim=head_dim, heads=heads, run=run)))
            above = sum(value > 1 for value in found)
            figures = (ratio(statistics.median(found)), ratio(found[-1]), str(above) if above else NOTHING)
            lines.append((f"{_name((head_dim, heads))}, {NAMES[run]}", str(len(found)), *figures))
    return table(("head_dim × heads, pass", "cells", "median", "largest", "above the bound"), lines)


def _worst() -> str:
    lines = []
    for row in sorted(_bounded(), key=_of_bound)[-WORST:]:
        name = f"`{row['cell']}`, {_name((row['head_dim'], row['heads']))}, {NAMES[row['run']]}"
        times = (pair([row["queued_ms"]]), pair([row["must_ms"]]), ratio(_of_bound(row)))
        lines.append((name, str(row["exchanges"]), *times))
    return table(("cell, head_dim × heads, pass", "exchanges", "ms", "bound, ms", "of its bound"), lines)


TABLES = {
    "layers on an H200": _cells,
    "bounds": _bounds,
    "beside the bounds": _beside_bounds,
    "furthest from the bounds": _worst,
}
