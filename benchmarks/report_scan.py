"""Tables of recurrences without a recurrent matrix on a GPU: scans, walks, Newton's iterations, and others' scans."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from gpu_cases import PASSES, read_case
from gpu_table import best_ms
from report_text import NOTHING, Row, faster, is_measured, known, number, pair, ratios, table
from scan_cases import CHANNELS, MUSTS, NEWTON, OURS, PEERS, ScanCase
from scan_table import of_copy

Found = dict[ScanCase, Row]
NEWTON_STEPS, NEWTON_CHANNELS = (1024, 16384, 65536), (64, 256, 1024, 2048)
NAMES = {"bf16": "bfloat16", "fp32": "float32"}


@cache
def found(name: str) -> Found:
    """Every measured row of a file, by case."""
    return {read_case(ScanCase, row): row for row in known(name).rows if is_measured(row)}


def times(case: ScanCase, rows: Found) -> list[float | None]:
    """Milliseconds back to back, forward and with backward."""
    cases = (replace(case, run=run) for run in PASSES)
    return [best_ms(rows[one]) if one in rows else None for one in cases]


def _bandwidth() -> str:
    rows = found("gpu_scan")
    head = ("batch × steps × channels", "dtype", "forward", "forward + backward", "minLSTM: forward, with backward")
    lines = []
    for batch, steps, channels, dtype in MUSTS:
        case = ScanCase(OURS[0], "mingru", batch, steps, channels, dtype, "fw")
        figures = []
        for run in PASSES:
            one = replace(case, run=run)
            figures.append(f"{number(best_ms(rows[one]))} ({of_copy(one, rows[one]):.0%})")
        other = pair(times(replace(case, cell="minlstm"), rows))
        lines.append((f"{batch} × {steps} × {channels}", NAMES[dtype], *figures, other))
    return table(head, lines)


def _peers() -> str:
    """Others scan what minGRU's gates give, `affine`; in log space they have minGRU whole, in float32."""
    rows = found("gpu_scan_peers")
    present = {case.who for case in rows}
    others = [(who, "affine") for who in PEERS if who in present]
    others += [(who, "mingru_log") for who in ("log eager", "log compiled") if who in present]
    words = {"torch scan": "torch's associative_scan", "log eager": "minGRU in log space, eager"}
    words["log compiled"] = "minGRU in log space, compiled by torch"
    head = ("batch × steps × channels, dtype", *(words.get(who, who) for who, _ in others))
    lines = []
    for batch, steps, channels, dtype in MUSTS:
        figures = []
        for who, cell in others:
            kind = "fp32" if cell == "mingru_log" else dtype
            case = ScanCase(who, cell, batch, steps, channels, kind, "fw")
            ours = times(replace(case, who=OURS[0], cell="affine" if cell == "affine" else "mingru", dtype=dtype), rows)
            theirs = times(case, rows)
            figures.append(ratios([b / a if a and b else None for a, b in zip(ours, theirs, strict=True)]))
        lines.append((f"{batch} × {steps} × {channels}, {NAMES[dtype]}", *figures))
    absent = sorted({row["who"] for row in known("gpu_scan_peers").rows if "missing" in row})
    return table(head, lines) + (f"\n\nThe run had no {', '.join(absent)} installed." if absent else "")


def _lengths() -> str:
    rows = found("gpu_scan_peers")
    cases = [c for c in rows if (c.who, c.cell, c.batch, c.channels) == (OURS[0], "mingru", 1, CHANNELS)]
    steps = sorted({case.steps for case in cases})
    lines = []
    for dtype, name in NAMES.items():
        of_steps = (ScanCase(OURS[0], "mingru", 1, count, CHANNELS, dtype, "fw") for count in steps)
        lines.append((name, *(pair(times(case, rows)) for case in of_steps)))
    return table((f"{CHANNELS} channels", *(f"T = {count}" for count in steps)), lines)


def _newton() -> str:
    rows = found("gpu_scan_newton")
    cells = dict.fromkeys(case.cell for case in rows)
    lines = []
    for cell in sorted(cells):
        figures = []
        for channels in NEWTON_CHANNELS:
            walks = [ScanCase(OURS[0], cell, 1, steps, channels, "fp32", "fw") for steps in NEWTON_STEPS]
            ratios = [(best_ms(rows[w]), best_ms(rows[replace(w, who=NEWTON)])) for w in walks]
            figures.append(" / ".join(faster(a / b, a < b) if a and b else NOTHING for a, b in ratios))
        lines.append((f"`{cell}`", *figures))
    return table(("cell", *(f"{channels} channels" for channels in NEWTON_CHANNELS)), lines)


def _project() -> str:
    head = ("cell, T", "rnncc on a CPU thread", "plain scan there", "rnncc on the GPU: one call, back to back")
    lines = []
    for row in known("scan_cs179").rows:
        gpu = pair([row["scan_gpu_ms"], row["scan_gpu_queued_ms"]])
        lines.append((f"{row['cell']}, {row['T']}", number(row["sequential_cpu_ms"]), number(row["scan_cpu_ms"]), gpu))
    return table(head, lines)


TABLES = {
    "minGRU on an H200": _bandwidth,
    "beside other scans": _peers,
    "minGRU by length": _lengths,
    "Newton's iterations": _newton,
    "scans on a GPU and a CPU": _project,
}
