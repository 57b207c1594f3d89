"""Tables of recurrences with products on a GPU: rnncc beside cuDNN, FlashRNN and loops in torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from flashrnn_cases import BACKENDS
from flashrnn_cases import Case as FlashCase
from flashrnn_cases import case_of as flash_case
from gpu_cases import BATCHES, CLASSES, HEAD_DIMS, PASSES, STEPS, TARGETS, Case, case_of
from gpu_table import best_ms, cudnn_ms
from report_text import NOTHING, Row, faster, known, number, pair, table

Found = dict[Case, Row]
CELL_SIZES = ((64, 12), (256, 3), (768, 1))
FLASHRNN_SIZE = "cell, head_dim × heads, batch size"


@cache
def found() -> Found:
    """Every measured row of gpu_dense.json and of its loops in torch, by case."""
    rows = (*known("gpu_dense").rows, *known("gpu_dense_loops").rows)
    return {case_of(row): row for row in rows}


def lstm(head_dim: int, heads: int, batch: int, who: str = "rnncc", dtype: str = "bf16") -> Case:
    """The forward over 1024 steps."""
    return Case(who, "lstm", head_dim, heads, batch, STEPS, dtype, "fw")


def both(case: Case) -> tuple[Case, ...]:
    """The case, forward and with backward."""
    return tuple(replace(case, run=run) for run in PASSES)


def times(case: Case, rows: Found) -> list[float | None]:
    """Milliseconds of a case, forward and with backward."""
    return [best_ms(rows[one]) if one in rows else None for one in both(case)]


def cudnn(case: Case, rows: Found) -> list[float | None]:
    """The same of cuDNN, which has one head."""
    return [cudnn_ms(one, rows) for one in both(case)]


def _sizes() -> str:
    rows = found()
    head = (
        "head_dim × heads, batch size",
        "rnncc, back to back: forward, with backward",
        "cuDNN: forward, with backward",
        "rnncc, one call: forward, with backward",
    )
    lines = []
    for head_dim, heads, batch in TARGETS:
        case = lstm(head_dim, heads, batch)
        calls = [rows[one]["call_ms"] for one in both(case)]
        lines.append((f"{head_dim} × {heads}, {batch}", pair(times(case, rows)), pair(cudnn(case, rows)), pair(calls)))
    return table(head, lines)


def _ratios(run: str) -> str:
    head = ("head_dim × heads", *(f"batch {batch}" for batch in BATCHES))
    return table(head, ([_size(head_dim), *_ratios_of(run, head_dim)] for head_dim in HEAD_DIMS))


def _size(head_dim: int) -> str:
    return f"{head_dim} × {max(1, 768 // head_dim)}"


def _ratios_of(run: str, head_dim: int) -> Iterator[str]:
    rows = found()
    for batch in BATCHES:
        case = replace(lstm(head_dim, max(1, 768 // head_dim), batch), run=run)
        ours, peer = best_ms(rows[case]), cudnn_ms(case, rows)
        if ours is None or peer is None:
            yield NOTHING
        else:
            yield faster(ours / peer, ours > peer)


def _faster() -> str:
    """The cases of the two tables of ratios in which cuDNN is faster, by its dtype."""
    rows = found()
    cases = [
        replace(lstm(head_dim, max(1, 768 // head_dim), batch), run=run)
        for head_dim in HEAD_DIMS
        for batch in BATCHES
        for run in PASSES
    ]
    lines = []
    for dtype, name in (("fp16", "float16"), ("bf16", "bfloat16")):
        faster_in = [case for case in cases if _is_faster(replace(case, who="cudnn", heads=1, dtype=dtype), case, rows)]
        where: dict[str, list[str]] = {}
        for case in faster_in:
            words = "forward" if case.run == PASSES[0] else "forward + backward"
            where.setdefault(f"{_size(case.head_dim)}, batch {case.batch}", []).append(words)
        listed = "; ".join(f"{size}: {' and '.join(words)}" for size, words in where.items())
        lines.append((name, f"{len(faster_in)} of {len(cases)}", listed or NOTHING))
    return table(("cuDNN in", "faster in", "which"), lines)


def _is_faster(peer: Case, case: Case, rows: Found) -> bool:
    """Whether the peer's case took less time than ours."""
    theirs, ours = best_ms(rows[peer]), best_ms(rows[case])
    return theirs is not None and ours is not None and theirs < ours


def _cells() -> str:
    rows = found()
    head = ("cell, head_dim × heads", "rnncc", "cuDNN, one head", "eager loop", "compiled loop")
    lines = []
    for cell in CLASSES:
        for head_dim, heads in CELL_SIZES:
            case = Case("rnncc", cell, head_dim, heads, 16, STEPS, "bf16", "fw")
            loops = [pair(times(replace(case, who=who), rows)) for who in ("eager", "compiled")]
            lines.append(
                (f"{CLASSES[cell]}, {head_dim} × {heads}", pair(times(case, rows)), pair(cudnn(case, rows)), *loops)
            )
    return table(head, lines)


def _dtypes() -> str:
    rows = found()
    head = ("1024 steps, head_dim × heads", "bfloat16", "float16", "float32", "cuDNN in float32, one head")
    lines = []
    for head_dim, heads in (CELL_SIZES[0], CELL_SIZES[-1]):
        cases = [lstm(head_dim, heads, 16, dtype=dtype) for dtype in ("bf16", "fp16", "fp32")]
        ours = [pair(times(case, rows)) for case in cases]
        lines.append((f"{head_dim} × {heads}", *ours, pair(cudnn(cases[-1], rows))))
    return table(head, lines)


def _steps() -> str:
    rows = found()
    steps = sorted({case.steps for case in rows})
    head = ("bfloat16, head_dim × heads", *(f"T = {count}" for count in steps))
    lines = []
    for head_dim, heads in (CELL_SIZES[0], CELL_SIZES[-1]):
        cases = [replace(lstm(head_dim, heads, 16), steps=count) for count in steps]
        lines.append((f"{head_dim} × {heads}", *(pair(times(case, rows)) for case in cases)))
    return table(head, lines)


def _alternating() -> str:
    rows = found()
    head = ("head_dim × heads", "alternating, bfloat16", "kernel for the size, bfloat16", "alternating, float32")
    lines = []
    for head_dim, heads in ((64, 12), (256, 3), (512, 1), (768, 1), (1024, 1), (2048, 1)):
        case = lstm(head_dim, heads, 16)
        general = replace(case, who="alternating")
        full = pair(times(replace(general, dtype="fp32"), rows))
        lines.append((f"{head_dim} × {heads}", pair(times(general, rows)), pair(times(case, rows)), full))
    return table(head, lines)


def flashrnn_ms(size: FlashCase, who: str, **wanted: object) -> list[float | None]:
    """Milliseconds of `rnncc` (its median) or `flashrnn` (its least) on a size, forward and with backward."""
    about, typical = known("gpu_flashrnn"), min if who == "flashrnn" else statistics.median
    rows = (about.all(who=who, run=run, **_like(size), **wanted) for run in PASSES)
    return [typical([row["ms"] for row in of_run]) if of_run else None for of_run in rows]


def _flashrnn() -> str:
    head = (FLASHRNN_SIZE, "rnncc's op", "rnncc's `flashrnn`", *(f"`{name}`" for name in BACKENDS))
    lines = []
    for size in _flashrnn_sizes():
        ours = [flashrnn_ms(size, "rnncc", layout=layout) for layout in ("own", "interface")]
        theirs = [flashrnn_ms(size, "flashrnn", backend=backend) for backend in BACKENDS]
        lines.append((_flashrnn_name(size), *map(pair, (*ours, *theirs))))
    return table(head, lines)


def _flashrnn_errors() -> str:
    lines = []
    for size in _flashrnn_sizes():
        like = _like(size) | {"run": "fw", "layout": "interface"}
        parties = ({"who": "rnncc"}, *({"who": "flashrnn", "backend": backend} for backend in BACKENDS))
        rows = [known("gpu_flashrnn").one(**like, **party) for party in parties]
        lines.append((_flashrnn_name(size), *(number(row["from_float32"] if row else None, 2) for row in rows)))
    return table((FLASHRNN_SIZE, "rnncc", *(f"`{name}`" for name in BACKENDS)), lines)


def _flashrnn_sizes() -> list[FlashCase]:
    """The sizes that were measured, each once."""
    rows = known("gpu_flashrnn").all(who="flashrnn")
    return list(dict.fromkeys(replace(flash_case(row), beside="") for row in rows))


def _flashrnn_name(size: FlashCase) -> str:
    return f"{CLASSES[size.cell]}, {size.head_dim} × {size.heads}, {size.batch}"


def _like(size: FlashCase) -> Row:
    """What the rows of a size have in common."""
    return {"cell": size.cell, "head_dim": size.head_dim, "heads": size.heads, "batch": size.batch}


def _kernel_steps() -> str:
    about = known("gpu_steps")
    sizes = sorted({(row["head_dim"], row["heads"], row["batch"]) for row in about.rows})
    names = dict.fromkeys((row["what"], row["dtype"]) for row in about.rows)
    lines = []
    for head_dim, heads, batch in sizes:
        like = {"head_dim": head_dim, "heads": heads, "batch": batch}
        rows = [about.one(what=what, dtype=dtype, **like) for what, dtype in names]
        figures = [f"{row['us']:g}" if row else NOTHING for row in rows]
        lines.append((f"{head_dim} × {heads}, {batch}", *figures))
    return table(("head_dim × heads, batch size", *(f"{what}, {dtype}" for what, dtype in names)), lines)


TABLES = {
    "lstm on an H200": _sizes,
    "beside cuDNN, forward": lambda: _ratios("fw"),
    "beside cuDNN, forward + backward": lambda: _ratios("fw+bw"),
    "cases in which cuDNN is faster": _faster,
    "cells and loops on an H200": _cells,
    "dtypes": _dtypes,
    "sequence lengths": _steps,
    "alternating": _alternating,
    "FlashRNN": _flashrnn,
    "FlashRNN, errors": _flashrnn_errors,
    "steps of kernels": _kernel_steps,
}
