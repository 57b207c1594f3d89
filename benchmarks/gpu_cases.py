"""What benchmarks/gpu_dense.py measures: the cases by axis, and the times that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AnyCase = TypeVar("AnyCase", bound="DataclassInstance")

PASSES = ("fw", "fw+bw")
# Who runs a case: our kernels for the size, our kernels for every size, and what users have otherwise.
WHO = ("rnncc", "alternating", "cudnn", "eager", "compiled")
CLASSES = {"lstm": "LSTM", "gru": "GRU", "elman": "Elman", "slstm": "sLSTM"}
GATES = {"lstm": 4, "gru": 3, "elman": 1, "slstm": 4}
AXES = ("targets", "cells", "dtypes", "steps", "loops", "full")


@dataclass(frozen=True, slots=True)
class Case:
    """One row: `steps` steps of a batch of `batch`, `heads` heads with `head_dim`; `run` is one of PASSES.

    fw+bw is the training forward and the backward to the gradients of pre-activations, recurrent weights, biases in
    the loop and initial states."""

    who: str
    cell: str
    head_dim: int
    heads: int
    batch: int
    steps: int
    dtype: str
    run: str


@dataclass(frozen=True, slots=True)
class Target:
    """Times of the LSTM in 16 bits over 1024 steps, in milliseconds, each of (fw, fw+bw): what must be reached, and
    what is aimed at."""

    must: tuple[float, float]
    aim: tuple[float, float]


# By (head_dim, heads, batch).
TARGETS = {
    (64, 12, 16): Target((0.40, 1.1), (0.28, 0.75)),
    (128, 6, 16): Target((0.65, 1.7), (0.42, 1.1)),
    (256, 3, 16): Target((0.85, 2.3), (0.60, 1.6)),
    (512, 1, 16): Target((1.15, 3.2), (0.85, 2.2)),
    (768, 1, 16): Target((1.9, 5.0), (1.1, 3.0)),
    (768, 1, 2): Target((1.6, 4.5), (0.9, 2.5)),
    (768, 1, 64): Target((4.0, 11), (1.8, 5)),
    (1024, 1, 16): Target((2.1, 5.8), (1.3, 3.5)),
    (2048, 1, 16): Target((5, 13), (2.5, 7)),
}
STEPS = 1024
BASE = ((64, 12), (768, 1))
HEAD_DIMS = (16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def target_of(case: Case) -> Target | None:
    """The target that a case of ours is held to."""
    is_asked = (case.who, case.cell, case.steps, case.dtype) == ("rnncc", "lstm", STEPS, "bf16")
    return TARGETS.get((case.head_dim, case.heads, case.batch)) if is_asked else None


def select(words: Sequence[str], quick: bool) -> list[Case]:
    """The cases of the axes, cells and parties named in `words`; where none of a kind is named, all of that kind. An
    axis named is run in full, also when quick. Each case once, ours first.

    Raises ValueError for a word that means nothing."""
    unknown = set(words) - {*AXES, *WHO, *CLASSES}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: not one of {', '.join((*AXES, *WHO, *CLASSES))}")
    axes = [axis for axis in AXES if axis in words] or [axis for axis in AXES if axis != "full" or not quick]
    who = [name for name in WHO if name in words] or WHO
    cells = [cell for cell in CLASSES if cell in words] or list(CLASSES)
    found = dict.fromkeys(case for axis in axes for case in cases_of(axis, quick))
    return sorted((c for c in found if c.who in who and c.cell in cells), key=lambda case: WHO.index(case.who))


def cases_of(axis: str, quick: bool) -> Iterator[Case]:
    """The cases of one axis, in both passes."""
    match axis:
        case "targets":
            for head_dim, heads, batch in TARGETS:
                yield from everybody("lstm", head_dim, heads, batch, STEPS, "bf16")
                yield from everybody("lstm", head_dim, 1, batch, STEPS, "fp16", ("cudnn",))
        case "cells":
            for cell in ("gru", "elman", "slstm"):
                for head_dim, heads in (*BASE, (256, 3)):
                    yield from everybody(cell, head_dim, heads, 16, STEPS, "bf16")
                    if cell != "slstm":
                        yield from everybody(cell, head_dim, 1, 16, STEPS, "fp16", ("cudnn",))
        case "dtypes":
            for head_dim, heads in BASE:
                yield from everybody("lstm", head_dim, heads, 16, STEPS, "fp16")
                yield from everybody("lstm", head_dim, heads, 16, STEPS, "fp32")
        case "steps":
            for steps in (1, 128) if quick else (1, 16, 128, 4096, 16384):
                for head_dim, heads in BASE:
                    yield from everybody("lstm", head_dim, heads, 16, steps, "bf16")
        case "loops":
            for cell in ("lstm",) if quick else CLASSES:
                for head_dim, heads in BASE[1:] if quick else BASE:
                    yield from both("eager", cell, head_dim, heads, 16, STEPS, "bf16")
                    yield from both("compiled", cell, head_dim, heads, 16, STEPS, "bf16")
        case "full":
            for head_dim in HEAD_DIMS:
                for batch in BATCHES:
                    yield from everybody("lstm", head_dim, max(1, 768 // head_dim), batch, STEPS, "bf16")
                    yield from everybody("lstm", head_dim, 1, batch, STEPS, "fp16", ("cudnn",))


def everybody(
    cell: str, head_dim: int, heads: int, batch: int, steps: int, dtype: str, who: Sequence[str] = WHO[:3]
) -> Iterator[Case]:
    """The case by each of `who`: cuDNN has one head and no sLSTM."""
    for name in who:
        if (name, cell) == ("cudnn", "slstm"):
            continue
        yield from both(name, cell, head_dim, 1 if name == "cudnn" else heads, batch, steps, dtype)


def both(who: str, cell: str, head_dim: int, heads: int, batch: int, steps: int, dtype: str) -> Iterator[Case]:
    """The case in both passes."""
    for run in PASSES:
        yield Case(who, cell, head_dim, heads, batch, steps, dtype, run)


def case_of(row: dict[str, Any]) -> Case:
    """The case of a row as it was written."""
    return read_case(Case, row)


def read_case(kind: type[AnyCase], row: dict[str, Any]) -> AnyCase:
    """Makes the case of a row, also of another benchmark's kind."""
    return kind(**{field.name: row[field.name] for field in fields(kind)})


def missing(cases: Sequence[AnyCase], rows: Sequence[dict[str, Any]]) -> list[AnyCase]:
    """The cases that no row is of yet."""
    done = {read_case(type(case), row) for case in cases[:1] for row in rows}
    return [case for case in cases if case not in done]


def row_of(case: DataclassInstance, **measured: Any) -> dict[str, Any]:
    """A row: the case, and what was measured of it."""
    return asdict(case) | measured
