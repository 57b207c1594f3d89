"""The rows of benchmarks/gpu_dense.py as text, each beside cuDNN, loops in torch, the floor, and what is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from flashrnn_cases import flashrnn_ms, flashrnn_rows
from gpu_cases import PASSES, TARGETS, Case, case_of, target_of
from gpu_predicted import predicted_us

from rnncc.ir.target import Target as GpuTarget

HEADER = (
    f"{'who':12}{'cell':6}{'head_dim':>10}{'B':>5}{'T':>6} {'dtype':5}{'pass':>6}{'call ms':>9}{'queued':>9}"
    f"{'us/step':>9}{'predicted':>10}{'of floor':>9}{'x cuDNN':>9}{'x eager':>9}{'x comp.':>9}  must"
)
# What the GRU is asked for, as parts of the time of cuDNN in fp16.
GRU_PARTS = {64: 1.0, 256: 0.2, 768: 0.2}


def table(rows: Sequence[dict[str, Any]], target: GpuTarget | None) -> Iterator[str]:
    """The lines: all rows, then our LSTM beside what must be reached. `target`: the GPU, if it is known."""
    found = {case_of(row): row for row in rows}
    yield HEADER
    yield from (line(case, row, found, target) for case, row in found.items())
    asked = [case for case in found if target_of(case) is not None]
    if asked:
        yield from ("", *targets(found))


def best_ms(row: dict[str, Any]) -> float | None:
    """A row's time back to back, less cuDNN's input products; of a loop in torch, the time of a call."""
    if "error" in row:
        return None
    kind = "call" if row["queued_ms"] is None else "queued"
    own: float = row[f"{kind}_ms"]
    return own - float(row.get(f"input_{kind}_ms", 0.0))


def cudnn_ms(case: Case, found: dict[Case, dict[str, Any]]) -> float | None:
    """The quickest of cuDNN on the same work, in 16 bits if the case has so many."""
    dtypes = ("fp32",) if case.dtype == "fp32" else ("fp16", "bf16")
    peers = [found.get(replace(case, who="cudnn", heads=1, dtype=dtype)) for dtype in dtypes]
    times = [time for row in peers if row is not None and (time := best_ms(row)) is not None]
    return min(times, default=None)


def other_ms(case: Case, who: str, found: dict[Case, dict[str, Any]]) -> float | None:
    """Another one's time on the same work, None for its own."""
    row = found.get(replace(case, who=who))
    return None if row is None or case.who == who else best_ms(row)


def line(case: Case, row: dict[str, Any], found: dict[Case, dict[str, Any]], target: GpuTarget | None) -> str:
    """A row's line."""
    size = f"{case.head_dim}x{case.heads}"
    start = f"{case.who:12}{case.cell:6}{size:>10}{case.batch:5}{case.steps:6} {case.dtype:5}{case.run:>6}"
    if "error" in row:
        return f"{start}  cannot run: {row['error']}"
    time = best_ms(row)
    assert time is not None
    step = time * 1e3 / case.steps
    expected = predicted_us(case, target) if case.who == "rnncc" and target else None
    # Two exchanges a step with backward: of states, and of what comes back.
    floor = row["floor_us"] and row["floor_us"] * (1 + (case.run == "fw+bw")) / step
    others = [cudnn_ms(case, found), other_ms(case, "eager", found), other_ms(case, "compiled", found)]
    ratios = [None if other is None or case.who == "cudnn" else other / time for other in others]
    return (
        f"{start}{row['call_ms']:9.3f}{number(row['queued_ms'], 9, 3)}{step:9.3f}{number(expected, 10, 3)}"
        f"{number(floor, 9, 2)}"
        f"{''.join(number(ratio, 9, 2) for ratio in ratios)}{asked(case, row, others[0])}"
    )


def number(value: float | None, width: int, digits: int) -> str:
    """A number, or a dash where there is none."""
    return f"{value:{width}.{digits}f}" if value is not None else f"{'-':>{width}}"


def asked(case: Case, row: dict[str, Any], cudnn: float | None) -> str:
    """What must be reached, if anything is asked of the case, and whether it is."""
    target = target_of(case)
    most: float | None = None
    if target is not None:
        most = target.must[PASSES.index(case.run)]
    elif (case.who, case.cell) == ("rnncc", "gru") and case.head_dim in GRU_PARTS and cudnn is not None:
        most = GRU_PARTS[case.head_dim] * cudnn
    if most is None:
        return ""
    reached = [kind for kind in ("call", "queued") if row[f"{kind}_ms"] <= most]
    return f"  {most:.2f} ms: {'yes' if len(reached) == 2 else 'queued only' if reached else 'MISS'}"


def targets(found: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Our LSTM in bf16 over 1024 steps: times, must and aim, cuDNN in this run, FlashRNN in its own."""
    peers = flashrnn_rows()
    yield "LSTM bf16, T=1024, ms; call and queued | must | aim | cuDNN here | FlashRNN fused, alternating (another run)"
    for (head_dim, heads, batch), target in TARGETS.items():
        for index, run in enumerate(PASSES):
            case = Case("rnncc", "lstm", head_dim, heads, batch, 1024, "bf16", run)
            row = found.get(case)
            if row is None or "error" in row:
                continue
            size = (head_dim, heads, batch)
            known = [flashrnn_ms(peers, backend, size, run) for backend in ("cuda_fused", "cuda")]
            yield (
                f"  {f'{head_dim}x{heads}':>8} B={batch:<3} {run:5} {row['call_ms']:8.3f} {row['queued_ms']:8.3f} |"
                f"{target.must[index]:6.2f} |{target.aim[index]:6.2f} |{number(cudnn_ms(case, found), 7, 2)} |"
                f"{number(known[0], 7, 2)},{number(known[1], 6, 1)}"
            )
