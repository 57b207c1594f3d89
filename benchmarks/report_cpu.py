"""Tables of the CPU: layers beside torch.nn's, cells without a recurrent matrix, the solver."""

from __future__ import annotations

import statistics

from report_text import NOTHING, Row, faster, known, number, ratios, table


def _size(row: Row) -> tuple[int, int, int]:
    return row["T"], row["B"], row["H"]


def _layers() -> str:
    about = known("cpu")
    sizes = list(dict.fromkeys(map(_size, about.rows)))
    head = ("T × batch × hidden size", *(" × ".join(map(str, size)) for size in sizes))
    measures = {"x nn.LSTM": "nn.LSTM", "x nn.GRU": "nn.GRU", "x eager": "its eager loop"}
    measures["x nn.LSTM's GFLOP/s"] = "nn.LSTM's rate of products"
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in about.rows):
        for measure, other in measures.items():
            rows = about.all(cell=cell, measure=measure)
            figures = [[faster(row["value"], row["value"] < 1) for row in rows if _size(row) == size] for size in sizes]
            if rows:
                lines.append((f"`{cell}` beside {other}", *(", ".join(of) or NOTHING for of in figures)))
    return table(head, lines)


def _threads() -> str:
    about = known("cpu_threads")
    counts = sorted({row["threads"] for row in about.rows})
    names = {1: "1 thread"} | {n: f"{n} threads" for n in counts if n > 1}
    lines = []
    for cell, dtype, *size in dict.fromkeys((row["cell"], row["dtype"], *_size(row)) for row in about.rows):
        rows = about.all(cell=cell, dtype=dtype, T=size[0], B=size[1], H=size[2])
        figures = [
            ", ".join(faster(row["speedup"], row["speedup"] < 1) for row in rows if row["threads"] == n) or NOTHING
            for n in counts
        ]
        lines.append((f"`{cell}`, {dtype}, {' × '.join(map(str, size))}", *figures))
    return table(("cell, dtype, T × batch × hidden size", *(names[n] for n in counts)), lines)


def _scans() -> str:
    about = known("cpu_scan")
    sizes = list(dict.fromkeys((row["B"], row["H"]) for row in about.rows))
    head = ["cell, recurrence class"]
    head += [
        f"batch {batch}, hidden size {hidden}: {peer}" for batch, hidden in sizes for peer in ("eager", "compiled")
    ]
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in about.rows):
        rows = about.all(cell=cell)
        figures = []
        for batch, hidden in sizes:
            passes = [about.one(cell=cell, B=batch, H=hidden, run=run) for run in ("fw", "fw+bw")]
            for peer in ("eager", "compiled"):
                figures.append(ratios([row[f"speedup_over_{peer}"] if row else None for row in passes]))
        lines.append((f"`{cell}`, {rows[0]['class']}", *figures))
    return table(head, lines)


def _sparse() -> str:
    about = known("cpu_sparse")
    densities = sorted({row["density"] for row in about.rows})
    head = ("hidden size, batch", *(f"{density:.0%} of the elements" for density in densities))
    lines = []
    for hidden, batch in dict.fromkeys((row["H"], row["B"]) for row in about.rows):
        found = [about.all(H=hidden, B=batch, density=density) for density in densities]
        lines.append((f"{hidden}, {batch}", *(ratios([row["ratio"] for row in rows]) for rows in found)))
    return table(head, lines)


def _spread(rows: list[Row], key: str) -> str:
    values = sorted(row[key] for row in rows if row.get(key) is not None)
    if not values:
        return NOTHING
    spread = (statistics.median(values), values[int(0.95 * (len(values) - 1))], values[-1])
    return " / ".join(number(value, 2) for value in spread)


def _schedules() -> str:
    schedules = known("constrint").all(group="schedules")
    feasible = [row for row in schedules if row["answer"] != "infeasible"]
    infeasible = [row for row in schedules if row["answer"] == "infeasible"]
    both = ("constrint_ms", "cpsat_ms")
    lines = [
        (f"{len(feasible)} schedules, the optimum found and proven", *(_spread(feasible, key) for key in both)),
        (f"{len(infeasible)} schedules, proven infeasible", *(_spread(infeasible, key) for key in both)),
        ("a minimal conflict of each of the infeasible ones", _spread(infeasible, "explained_ms"), NOTHING),
    ]
    return table(("kernel schedules", "ConstrINT", "CP-SAT"), lines)


def _problems() -> str:
    rows = known("constrint").all(group="general")
    lines = [(row["name"], *(number(row.get(key), 2) for key in ("constrint_ms", "cpsat_ms"))) for row in rows]
    return table(("problem", "ConstrINT", "CP-SAT"), lines)


TABLES = {
    "layers on a CPU": _layers,
    "threads of a CPU": _threads,
    "scans on a CPU": _scans,
    "sparse matrices on a CPU": _sparse,
    "schedules solved": _schedules,
    "problems solved": _problems,
}
