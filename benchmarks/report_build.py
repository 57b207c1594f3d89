"""The table of how long rnncc compiles: benchmarks/build_time.py's file."""

from __future__ import annotations

from report_text import known, number, table


def _build() -> str:
    about = known("build_time")
    lines = []
    for case, cores in dict.fromkeys((row["case"], row["cores"]) for row in about.rows):
        rows = [about.one(case=case, cores=cores, who="ours", cache=state) for state in ("cold", "cached")]
        lines.append((case, str(cores), *(number(row["seconds"] if row else None, 2) for row in rows)))
    return table(("what", "cores", "first time, s", "again, s"), lines)


TABLES = {"compile times": _build}
