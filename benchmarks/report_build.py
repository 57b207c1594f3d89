"""The tables of how long rnncc compiles: benchmarks/build_time.py's files."""

from __future__ import annotations

from report_text import known, number, table


def _times(file: str) -> str:
    """What one waits for: the load or the call alone where that was timed, else the whole process."""
    about = known(file)
    lines = []
    for case, cores in dict.fromkeys((row["case"], row["cores"]) for row in about.rows):
        rows = [about.one(case=case, cores=cores, who="ours", cache=state) for state in ("cold", "cached")]
        waited = [row.get("call", row["seconds"]) if row else None for row in rows]
        if rows[0] and "worst" in rows[0]:
            lines.append((f"{case}: median", str(cores), number(waited[0], 2), ""))
            lines.append((f"{case}: {rows[0]['worst_cell']}, the slowest", str(cores), number(rows[0]["worst"], 2), ""))
        else:
            lines.append((case, str(cores), *(number(seconds, 2) for seconds in waited)))
    return table(("what", "cores", "first time, s", "again, s"), lines)


def _processes() -> str:
    return _times("build_time")


def _calls() -> str:
    return _times("build_time_cuda")


TABLES = {"compile times": _processes, "first calls on a GPU": _calls}
