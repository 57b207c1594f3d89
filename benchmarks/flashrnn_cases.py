"""What benchmarks/gpu_flashrnn.py measures, and its rows as text."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_cases import PASSES, STEPS, read_case

# FlashRNN's backends, and cuDNN through torch.nn.
BACKENDS = ("cuda_fused", "cuda", "triton_fused")
PEERS = (*BACKENDS, "cudnn")
CELLS = ("lstm", "slstm")
# How tensors lie in memory: `interface` in the shapes of FlashRNN's function, `own` as each party's kernels take them.
LAYOUTS = ("interface", "own")
# (head_dim, heads, batch) by cell.
SIZES = {
    "lstm": (
        *((64, 12, 16), (128, 6, 16), (256, 3, 16), (512, 1, 16), (768, 1, 16)),
        *((768, 1, 1), (768, 1, 64), (768, 1, 2), (1024, 1, 16)),
    ),
    "slstm": ((64, 12, 16), (128, 6, 16), (256, 3, 16), (512, 1, 16), (768, 1, 16)),
}
QUICK_SIZES = ((64, 12, 16), (768, 1, 16))
# FlashRNN's Triton kernels hold a head in one CTA: its documentation allows head_dim up to 64, and powers of two alone.
TRITON_HEAD_DIM = 128
RESULTS = Path(__file__).parent / "results" / "gpu_flashrnn.json"
HEADER = (
    f"{'cell':6}{'size':>8}{'B':>4} {'pass':6}{'layout':10}{'peer':>13}{'ms':>9}{'rnncc ms':>10}{'ratio':>7}"
    f"{'difference':>12}{'from fp32':>11}{'rnncc':>9}"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One process: rnncc beside a peer, on `batch` sequences of STEPS steps and `heads` heads of `head_dim`."""

    beside: str
    cell: str
    head_dim: int
    heads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.beside}-{self.cell}-{self.head_dim}x{self.heads}-B{self.batch}"


def case_named(name: str) -> Case:
    """The case of a string that `str` gave."""
    beside, cell, size, batch = name.split("-")
    head_dim, heads = size.split("x")
    return Case(beside, cell, int(head_dim), int(heads), int(batch[1:]))


def case_of(row: Mapping[str, Any]) -> Case:
    """The case in which a row was measured."""
    return read_case(Case, dict(row))


def all_cases() -> Iterator[Case]:
    """Every case, the most telling ones first: a run that ends early has those."""
    for beside in ("cuda_fused", "cudnn", "triton_fused", "cuda"):
        for cell in CELLS:
            for head_dim, heads, batch in SIZES[cell]:
                if beside == "triton_fused" and (head_dim > TRITON_HEAD_DIM or batch != 16):
                    continue
                if beside == "cudnn" and (cell == "slstm" or heads > 1):
                    continue
                yield Case(beside, cell, head_dim, heads, batch)


def select(words: Sequence[str], quick: bool) -> list[Case]:
    """The cases that all words allow: peers, cells, sizes (as 64x12) and batch sizes (as B16).

    Raises ValueError for a word that means nothing."""
    found = list(all_cases())
    kinds = [
        {case: case.beside for case in found},
        {case: case.cell for case in found},
        {case: f"{case.head_dim}x{case.heads}" for case in found},
        {case: f"B{case.batch}" for case in found},
    ]
    known = {name for kind in kinds for name in kind.values()}
    if unknown := sorted(set(words) - known):
        raise ValueError(f"{', '.join(unknown)}: not one of {', '.join(sorted(known))}")
    if quick and not words:
        found = [
            case
            for case in found
            if case.beside in ("cuda_fused", "cudnn")
            and case.cell == "lstm"
            and (case.head_dim, case.heads, case.batch) in QUICK_SIZES
        ]
    for kind in kinds:
        chosen = set(words) & set(kind.values())
        found = [case for case in found if not chosen or kind[case] in chosen]
    return found


def row_of(case: Case, who: str, **measured: Any) -> dict[str, Any]:
    """A row of `who`: what was measured, and in which case."""
    return {"who": who, **asdict(case), "steps": STEPS, **measured}


def failure(case: Case, error: str, run: str | None = None, layout: str | None = None) -> dict[str, Any]:
    """The row of a peer that could not be measured, in one pass or at all."""
    who, dtype = party_of(case)
    return row_of(case, who, dtype=dtype, run=run, backend=case.beside, layout=layout, ms=None, error=error)


def party_of(case: Case) -> tuple[str, str]:
    """Who the peer is, and in which dtype it computes."""
    return ("cudnn", "fp16") if case.beside == "cudnn" else ("flashrnn", "bf16")


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines: each peer's time beside rnncc's of the same process, and the ratio of them in summary."""
    yield HEADER
    ours = {place(row): row for row in rows if row["who"] == "rnncc"}
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row["who"] == "rnncc":
            continue
        size = f"{row['head_dim']}x{row['heads']}"
        start = f"{row['cell']:6}{size:>8}{row['batch']:4} "
        if row["ms"] is None:
            yield f"{start}{row['beside']} cannot run: {row['error']}"
            continue
        own = ours[place(row)]
        ratio = row["ms"] / own["ms"]
        ratios.setdefault((row["beside"], row["run"], row["layout"]), []).append(ratio)
        yield (
            f"{start}{row['run']:6}{row['layout']:10}{row['beside']:>13}{row['ms']:9.3f}{own['ms']:10.3f}{ratio:7.2f}"
            f"{shown(row['difference'], 12)}{shown(row['from_float32'], 11)}{shown(own['from_float32'], 9)}"
        )
    if ratios:
        yield "the peer's time over rnncc's, median (least to most)"
    for (peer, run, layout), of in ratios.items():
        yield f"  {peer:13}{run:6}{layout:10}{statistics.median(of):6.2f} ({min(of):.2f} to {max(of):.2f})"


def place(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What a peer's row and rnncc's beside it have in common."""
    return (case_of(row), row["run"], row["layout"])


def shown(value: float | None, width: int) -> str:
    """A difference, or a dash where none was taken."""
    return f"{value:{width}.1e}" if value is not None else f"{'-':>{width}}"


def flashrnn_rows() -> list[dict[str, Any]]:
    """The rows of the run that is kept beside the benchmarks, if there is one."""
    if not RESULTS.is_file():
        return []
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text())["results"]
    return rows


def flashrnn_ms(rows: Sequence[Mapping[str, Any]], backend: str, size: tuple[int, int, int], run: str) -> float | None:
    """FlashRNN's LSTM of a size (head_dim, heads, batch) in milliseconds, in the layout that is quicker; None where no
    row says so."""
    assert run in PASSES
    case = Case(backend, "lstm", *size)
    times = [
        row["ms"]
        for row in rows
        if row["who"] == "flashrnn" and row["ms"] is not None and case_of(row) == case and row["run"] == run
    ]
    return min(times, default=None)
