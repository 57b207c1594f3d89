"""The rows of benchmarks/gpu_scan.py as text and as a picture, beside the bandwidth of a copy and what is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_cases import PASSES, read_case
from gpu_table import best_ms, number
from scan_cases import BANDWIDTH_MUST, CHANNELS, LOG_SPACE, NEWTON, OURS, PEERS, ScanCase, must_of

HEADER = (
    f"{'who':19}{'cell':16}{'B':>4}{'T':>8}{'D':>6} {'dtype':5}{'pass':>6}{'call ms':>10}{'queued':>10}{'ns/step':>10}"
    f"{'of copy':>9}{'x peer':>8}  must"
)
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
Found = dict[ScanCase, dict[str, Any]]


def moved_bytes(case: ScanCase, numbers: int) -> int:
    """Bytes that a pass must move: `numbers` per channel and step."""
    return numbers * case.batch * case.steps * case.channels * BYTES[case.dtype]


def of_copy(case: ScanCase, row: dict[str, Any]) -> float | None:
    """The rate at which a row moved what it must, over that of the copy measured with it; None without a time."""
    time = best_ms(row)
    return moved_bytes(case, row["numbers"]) / time / 1e6 / row["copy_gb_s"] if time else None


def quickest_peer(case: ScanCase, found: Found) -> float | None:
    """The least time of anyone else on the same work; of minGRU in log space also in float32, as users run it. For
    Newton's iterations it is the walk's time."""
    if case.who == NEWTON:
        walk = replace(case, who=OURS[0])
        return best_ms(found[walk]) if walk in found else None
    if case.who not in OURS:
        return None
    others = [replace(case, who=who) for who in (*PEERS, "eager loop")]
    others += [replace(case, who=who, cell="mingru_log", dtype="fp32") for who in LOG_SPACE if "mingru" in case.cell]
    if case.cell in ("mingru", "mingru_log"):
        # They scan what minGRU's gates give, and leave the gates to the user.
        others += [replace(case, who=who, cell="affine") for who in PEERS]
    times = [time for other in others if other in found and (time := best_ms(found[other])) is not None]
    return min(times, default=None)


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines: who is missing, all rows, whether the time grows with the steps, the bandwidth that is asked."""
    found = {read_case(ScanCase, row): row for row in rows}
    missing = {case.who: row["missing"] for case, row in found.items() if "missing" in row}
    yield from (f"missing: {who}: {why}" for who, why in missing.items())
    measured = {case: row for case, row in found.items() if "missing" not in row}
    for rate in sorted({row["copy_gb_s"] for row in measured.values() if "copy_gb_s" in row}):
        yield f"a copy on this device: {rate:.0f} GB/s, read and written"
    yield HEADER
    yield from (line(case, row, measured) for case, row in measured.items())
    yield from linear(measured)
    yield from bandwidth(measured)


def line(case: ScanCase, row: dict[str, Any], found: Found) -> str:
    """A row's line."""
    start = f"{case.who:19}{case.cell:16}{case.batch:4}{case.steps:8}{case.channels:6} {case.dtype:5}{case.run:>6}"
    if "error" in row:
        return f"{start}  cannot run: {row['error']}"
    time, peer, must = best_ms(row), quickest_peer(case, found), must_of(case)
    assert time is not None
    asked = ""
    if must is not None:
        reached = [kind for kind in ("call", "queued") if row[f"{kind}_ms"] <= must]
        asked = f"  {must:.3f} ms: {'yes' if len(reached) == 2 else 'queued only' if 'queued' in reached else 'MISS'}"
    return (
        f"{start}{row['call_ms']:10.4f}{number(row['queued_ms'], 10, 4)}{time * 1e6 / case.steps:10.2f}"
        f"{number(of_copy(case, row), 9, 2)}{number(peer and peer / time, 8, 2)}{asked}"
    )


def linear(found: Found) -> Iterator[str]:
    """The time per step at the two longest sequences, for every line over T."""
    for points in over_steps(found).values():
        long = [(case, time) for case, time in points if case.steps >= 65536]
        if len(long) > 1:
            (one, first), (other, last) = long[-2], long[-1]
            a_step = (first / one.steps, last / other.steps)
            yield (
                f"{other.who} {other.cell} {other.dtype} {other.run}: a step of T={other.steps} takes"
                f" {a_step[1] / a_step[0]:.2f} times one of T={one.steps}"
            )


def over_steps(found: Found) -> dict[tuple[str, ...], list[tuple[ScanCase, float]]]:
    """The measured cases of the axis over T with their times, by who, cell, dtype and pass; T grows."""
    lines: dict[tuple[str, ...], list[tuple[ScanCase, float]]] = {}
    for case in sorted(found, key=lambda case: case.steps):
        time = best_ms(found[case])
        if (case.batch, case.channels) == (1, CHANNELS) and time is not None:
            lines.setdefault((case.who, case.cell, case.dtype, case.run), []).append((case, time))
    return {name: points for name, points in lines.items() if len(points) > 1}


def bandwidth(found: Found) -> Iterator[str]:
    """minGRU's forward beside the copy, where that is asked."""
    (batch, steps, channels, dtype), least = BANDWIDTH_MUST
    for who in OURS:
        case = ScanCase(who, "mingru", batch, steps, channels, dtype, "fw")
        part = of_copy(case, found[case]) if case in found else None
        if part is not None:
            verdict = "yes" if part >= least else "MISS"
            yield f"{who}, minGRU forward: {part:.0%} of the copy's bandwidth, must {least:.0%}: {verdict}"


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the time over T, forward and with backward, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {read_case(ScanCase, row): row for row in rows if "missing" not in row}
    figure, axes = pyplot.subplots(1, len(PASSES), figsize=(14, 6), sharey=True)
    for run, place in zip(PASSES, axes, strict=True):
        for (who, cell, dtype, own), points in over_steps(found).items():
            # Two points are of the axis over sizes.
            if own == run and len(points) > 2:
                style = "o-" if who in OURS else "v:"
                place.plot(
                    [case.steps for case, _ in points],
                    [time for _, time in points],
                    style,
                    label=f"{who} {cell} {dtype}",
                )
        words = "forward" if run == PASSES[0] else "forward + backward"
        place.set(title=f"{words}, one sequence of {CHANNELS} channels", xscale="log", yscale="log", xlabel="steps")
        place.grid(visible=True, which="both", alpha=0.3)
        if place.get_lines():
            place.legend(fontsize="small")
    axes[0].set_ylabel("ms")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
