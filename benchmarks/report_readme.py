"""The README's table: rnncc beside what people use now, on an H200 and on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

from flashrnn_cases import Case as FlashCase
from gpu_cases import PASSES, STEPS, Case
from report_dense import cudnn, flashrnn_ms, found, times
from report_text import NOTHING, known, machine, number, table, versions

HEAD = ("Time in ms: forward, forward + backward", "rnncc", "torch.nn (H200: cuDNN)", "FlashRNN", "eager loop")
# Milliseconds, forward and with backward.
Figures = list[float | None]
UNKNOWN: Figures = [None, None]
# Name, cell, head_dim, heads, batch size: over 1024 steps, in bfloat16. At some of them others are faster.
ON_GPU = (
    ("LSTM, 12 heads of 64, batch 16", "lstm", 64, 12, 16),
    ("LSTM of 768, batch 16", "lstm", 768, 1, 16),
    ("LSTM of 768, batch 64", "lstm", 768, 1, 64),
    ("LSTM of 2048, batch 128", "lstm", 2048, 1, 128),
    ("LSTM, 48 heads of 16, batch 256", "lstm", 16, 48, 256),
    ("GRU of 768, batch 16", "gru", 768, 1, 16),
    ("sLSTM, 12 heads of 64, batch 16", "slstm", 64, 12, 16),
)
# Cell, its peer in torch.nn, T, batch size, hidden size: in float32, with the input product.
ON_CPU = (
    ("lstm", "LSTM", 128, 16, 128),
    ("lstm", "LSTM", 128, 64, 512),
    ("gru", "GRU", 256, 32, 256),
    ("slstm", "", 128, 16, 128),
    ("mingru", "", 128, 16, 128),
)
NAMES = {"lstm": "LSTM", "gru": "GRU", "slstm": "sLSTM", "mingru": "minGRU"}


def _headline() -> str:
    """The fastest of a row is bold. Below the table stand the machines."""
    gpu, cpu = versions(known("gpu_flashrnn").about), machine(known("cpu").about)
    rows = [(name, *_bold(parties)) for name, *parties in lines()]
    return f"{table(HEAD, rows)}\n\nThe H200 runs with {gpu}. The CPU is an {cpu}."


def lines() -> Iterator[tuple[str, Figures, Figures, Figures, Figures]]:
    """Each row: its name, and what rnncc, torch.nn, FlashRNN and the eager loop take."""
    for name, *size in ON_GPU:
        yield f"H200: {name}", *on_gpu(*size)  # type: ignore[arg-type]
    scans = known("gpu_scan_peers")
    like = {"cell": "mingru", "batch": 16, "steps": STEPS, "channels": 1024, "dtype": "bf16"}
    ours, eager = ([scans.one(who=who, run=run, **like) for run in PASSES] for who in ("rnncc tbd", "eager loop"))
    yield (
        "H200: minGRU of 1024, batch 16",
        [row["queued_ms"] if row else None for row in ours],
        UNKNOWN,
        UNKNOWN,
        [row["call_ms"] if row else None for row in eager],
    )
    for cell, peer, steps, batch, hidden in ON_CPU:
        rows = [known("cpu").one(cell=cell, T=steps, B=batch, H=hidden, backward=back) for back in (False, True)]
        columns = ("rnncc_ms", f"nn.{peer}_ms" if peer else "", "", "eager_ms")
        figures = ([row.get(column) if row else None for row in rows] for column in columns)
        yield f"CPU: {NAMES[cell]} of {hidden}, batch {batch}, T = {steps}", *figures  # type: ignore[misc]


def on_gpu(cell: str, head_dim: int, heads: int, batch: int) -> tuple[Figures, Figures, Figures, Figures]:
    """Where FlashRNN was measured, rnncc's figure is from the same run."""
    case, rows = Case("rnncc", cell, head_dim, heads, batch, STEPS, "bf16", "fw"), found()
    size = FlashCase("", cell, head_dim, heads, batch)
    flashrnn, beside = flashrnn_ms(size, "flashrnn"), flashrnn_ms(size, "rnncc", layout="own")
    loops = Case("eager", cell, head_dim, heads, batch, STEPS, "bf16", "fw")
    return beside if any(flashrnn) else times(case, rows), cudnn(case, rows), flashrnn, times(loops, rows)


def _bold(parties: list[Figures]) -> Iterator[str]:
    least = [
        min((time for time in of_pass if time is not None), default=None) for of_pass in zip(*parties, strict=True)
    ]
    for figures in parties:
        words = [
            f"**{number(a)}**" if a is not None and a == b else number(a) for a, b in zip(figures, least, strict=True)
        ]
        yield NOTHING if set(words) == {NOTHING} else ", ".join(words)


TABLES = {"headline": _headline}
