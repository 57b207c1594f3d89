"""Tables of whole layers and models: a language model's step, packed sequences, the host's time of small calls."""

from __future__ import annotations

import statistics
from typing import Any

from report_text import NOTHING, known, number, pair, ratio, ratios, results, table

MIXERS = {
    "attention": "attention, 12 heads",
    "mingru": "minGRU",
    "lstm": "LSTM, 12 heads",
    "slstm": "sLSTM, 12 heads",
    "cudnn": "nn.LSTM (cuDNN, float16), one head",
}
WAYS = ("uncompiled", "compiled", "warmed")


def _model() -> str:
    about = known("gpu_model")
    head = (
        "mixer",
        "step, ms",
        "compiled, ms",
        "compiled after a first step, ms",
        "tokens/s, best",
        "peak memory, GiB",
    )
    lines = []
    for mixer, name in MIXERS.items():
        ways = {way: about.one(mixer=mixer, way=way) for way in WAYS}
        rows = [row for row in ways.values() if row]
        steps = [number(row["step_ms"] if row else None) for row in ways.values()]
        best = number(max(row["tokens_per_s"] for row in rows), 3)
        lines.append((name, *steps, best, number(max(row["peak_gib"] for row in rows), 2)))
    return table(head, lines)


def _packed(lengths: str) -> str:
    about = known("gpu_packed")
    others = ("`offsets`", "PackedSequence", "padded, with `lengths`", "torch.nn, PackedSequence")
    head = ("layer, heads × head_dim, batch × T", *others)
    lines = []
    for row in about.all(lengths=lengths, backward=False):
        name = f"{row['cell']}, {row['heads']} × {row['H'] // row['heads']}, {row['B']} × {row['T']}"
        like = {key: row[key] for key in ("cell", "H", "heads", "T", "B", "lengths")}
        passes = [about.one(**like, backward=backward) for backward in (False, True)]
        whole = [found["queued_ms"] for found in passes if found]
        figures = [_beside(whole, who, "rows") for who in ("offsets", "packed", "padded", "nn_packed")]
        lines.append((name, *figures))
    return table(head, lines)


def _beside(passes: list[dict[str, Any]], who: str, beside: str) -> str:
    """How many times as long one takes as the other, in both passes."""
    if any(who not in found for found in passes):
        return NOTHING
    return ratios([found[who] / found[beside] for found in passes])


def _packed_cpu() -> str:
    about = known("cpu_packed")
    head = ("lengths, T × batch × hidden size", "PackedSequence", "padded", "torch.nn, PackedSequence")
    lines = []
    for row in about.all(backward=False):
        like = {key: row[key] for key in ("T", "B", "H", "lengths")}
        whole = [found["ms"] for found in (about.one(**like, backward=way) for way in (False, True)) if found]
        words = "1 to T" if row["lengths"] == "even" else "one long"
        name = f"{words}, {row['T']} × {row['B']} × {row['H']}"
        lines.append((name, *(_beside(whole, who, "rows") for who in ("packed", "padded", "nn_packed"))))
    return table(head, lines)


def _host() -> str:
    head = ("call", "device", "rnncc: forward, with backward", "torch.nn: forward, with backward", "times as long")
    lines = []
    for about in map(known, ("host", "host_cuda")):
        for row in about.all(backward=False):
            second = about.one(module=row["module"], T=row["T"], backward=True)
            assert second is not None
            steps = "one step of a cell" if row["T"] is None else f"a layer, T = {row['T']}"
            medians = [pair([one["median_us"][who] for one in (row, second)]) for who in ("rnncc", "nn")]
            longer = ratios([one["ratio"] for one in (row, second)])
            lines.append((f"`{row['module']}`: {steps}", row["device"], *medians, longer))
    return table(head, lines)


def _short_calls() -> str:
    head = ("call", "device", "pass", "sizes", "times as long: median, most", "at most 1.1")
    lines = []
    for about in filter(None, map(results, ("latency", "latency_cuda"))):
        kinds = {(row["T"], row["mode"], row["pass"]): None for row in about.rows}
        for steps, mode, run in kinds:
            found = [row["ratio"] for row in about.all(**{"T": steps, "mode": mode, "pass": run})]
            call = "one step of a cell" if steps == "cell" else f"a layer, T = {steps[1:]}"
            call += "" if mode == "eager" else {"compiled": ", torch.compile", "graph": ", in a CUDA graph"}[mode]
            share = f"{sum(value <= 1.1 for value in found) / len(found):.0%}"
            times = f"{ratio(statistics.median(found))}, {ratio(max(found))}"
            name = {"infer": "forward", "train": "forward + backward"}[run]
            lines.append((call, about.about["device"], name, str(len(found)), times, share))
    return table(head, lines)


def _single_steps() -> str:
    about = known("steps")
    head = ("cells", "how many", "us per step: median", "times as long: median, most", "above 1.1")
    lines = []
    for name, has_matrix in (("a state is a matrix", True), ("other cells", False)):
        found = about.all(matrix=has_matrix)
        ratios = [row["ratio"] for row in found]
        above = ", ".join(f"`{row['cell']}` {ratio(row['ratio'])}" for row in found if row["ratio"] > 1.1)
        times = f"{ratio(statistics.median(ratios))}, {ratio(max(ratios))}"
        lines.append(
            (name, str(len(found)), number(statistics.median(row["us"] for row in found)), times, above or NOTHING)
        )
    return table(head, lines)


def _matrices() -> str:
    head = ("cell, V × K", "from", "pass", "ms", "chunks, ms", "loop, ms", "faster than chunks", "than the loop")
    lines = []
    for row in known("cpu_matrix").rows:
        cell = f"`{row['cell']}`, 64 × {row['K']}"
        figures = [number(row[f"{who}_ms"]) for who in ("rnncc", "chunks", "loop")]
        faster = [ratio(row[f"over_{who}"]) for who in ("chunks", "loop")]
        made_of, passes = row.get("from", "x"), "forward + backward" if row["backward"] else "forward"
        lines.append((cell, made_of, passes, *figures, *faster))
    return table(head, lines)


def _pruned() -> str:
    about = known("sparse_training")
    head = ("steps × batch", "times through the text", "seed", "dense: nats, ms a step", "pruned: nats, ms a step",
            "difference, nats")  # fmt: skip
    lines = []
    for row in about.rows:
        each = [f"{row[f'{who}_nats']:.4f}, {number(row[f'{who}_ms'])}" for who in ("dense", "sparse")]
        times = row["steps"] * row["B"] * row["T"] / row["characters"]
        taken = (f"{row['steps']} × {row['B']}", f"{times:.1f}", str(row["seed"]))
        lines.append((*taken, *each, f"{row['sparse_nats'] - row['dense_nats']:+.4f}"))
    return table(head, lines)


def _pruned_setup() -> str:
    about = known("sparse_training")
    head = ("hidden size", "elements kept", "batch", "T", "kernels of the pruned layer")
    found = {row["B"]: row for row in about.rows}
    return table(head, [
        (str(row["H"]), f"{row['density']:.1%}", str(batch), str(row["T"]), "; ".join(row["kernels"]) or NOTHING)
        for batch, row in found.items()
    ])  # fmt: skip


TABLES = {
    "language model": _model,
    "packed, even": lambda: _packed("even"),
    "packed, one long": lambda: _packed("one long"),
    "packed on a CPU": _packed_cpu,
    "small calls": _host,
    "short calls": _short_calls,
    "single steps": _single_steps,
    "matrix states on a CPU": _matrices,
    "sparse training": _pruned,
    "sparse training, sizes": _pruned_setup,
}
