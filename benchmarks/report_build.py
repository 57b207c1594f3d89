"""The tables of how long rnncc compiles: benchmarks/build_time.py's files."""

from __future__ import annotations

from report_text import known, number, table


def _times(file: str, figure: str) -> str:
    about = known(file)
    lines = []
    for case, cores in dict.fromkeys((row["case"], row["cores"]) for row in about.rows):
        rows = [about.one(case=case, cores=cores, who="ours", cache=state) for state in ("cold", "cached")]
        lines.append((case, str(cores), *(number(row[figure] if row else None, 2) for row in rows)))
    return table(("what", "cores", "first time, s", "again, s"), lines)


def _processes() -> str:
    return _times("build_time", "seconds")


def _calls() -> str:
    return _times("build_time_cuda", "call")


TABLES = {"compile times": _processes, "first calls on a GPU": _calls}
