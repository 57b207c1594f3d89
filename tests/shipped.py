"""The shipped cells, checked."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from rnncc.ir.cell import Cell
from rnncc.ir.dim import HEADS, ONE
from rnncc.ir.expr import Apply
from rnncc.ir.structure import diagonal_blocks
from rnncc.language.diagnostics import Diagnostic
from rnncc.language.source import Source
from rnncc.stages.classify import classify
from tests.compiling import front

FOLDER = Path(__file__).parents[1] / "cells"
STEMS = sorted(path.stem for path in FOLDER.glob("*.rnn"))
# The cells whose states the language writes out, one by one.
WRITTEN_OUT = ("s6",)
# The cells whose segments are not all DENSE: the states, the recurrence class and its form, for each segment.
PARALLEL: dict[str, list[tuple[str, str, str]]] = {
    "brc": [("h", "ELEMENTWISE", "")],
    "comba": [("S", "MATRIX", "")],
    "deltanet": [("S", "MATRIX", "")],
    "deltaproduct": [("S", "MATRIX", "")],
    "fastweights": [("h A", "MATRIX", "")],
    "gateddeltanet": [("S", "MATRIX", "")],
    "gla": [("S", "MATRIX", "")],
    "griffinblock": [("h", "AFFINE", "diagonal")],
    "gsa": [("P", "MATRIX", ""), ("S", "MATRIX", "")],
    "hgrn": [("h", "AFFINE", "diagonal")],
    "hgrn2": [("S", "MATRIX", "")],
    "indrnn": [("h", "ELEMENTWISE", "clamp")],
    "kda": [("S", "MATRIX", "")],
    "layernormindrnn": [("h", "ELEMENTWISE", "")],
    "lru": [("p q", "AFFINE", "affine2")],
    "mamba2": [("S", "MATRIX", "")],
    "mamba3": [("ang", "AFFINE", "diagonal"), ("S", "MATRIX", "")],
    "mesanet": [("G", "MATRIX", ""), ("S", "MATRIX", "")],
    "mingru": [("h", "AFFINE", "diagonal")],
    "mingru_log": [("h", "AFFINE", "diagonal")],
    "minlstm": [("h", "AFFINE", "diagonal")],
    "minlstm_log": [("h", "AFFINE", "diagonal")],
    "mlstm": [("m", "ELEMENTWISE", "clamp"), ("S", "MATRIX", ""), ("n", "AFFINE", "diagonal")],
    "ntm": [("h mem rd wr r", "MATRIX", "")],
    "paragru": [("h", "ELEMENTWISE", "")],
    "paralstm": [("h c", "ELEMENTWISE", "")],
    "plasticity": [("h P", "MATRIX", "")],
    "plif": [("v", "ELEMENTWISE", "")],
    "qrnn": [("c", "AFFINE", "diagonal")],
    "retnet": [("S", "MATRIX", "")],
    "rglru": [("h", "AFFINE", "diagonal")],
    "rwkv4": [("p", "ELEMENTWISE", "clamp"), ("a", "AFFINE", "diagonal"), ("s", "AFFINE", "diagonal")],
    "rwkv7": [("S", "MATRIX", "")],
    "s6": [(f"s{n}", "AFFINE", "diagonal") for n in range(1, 17)],
    "scrn": [("s", "AFFINE", "diagonal"), ("h", "DENSE", "")],
    "sru": [("c", "ELEMENTWISE", "")],
    "tgru": [("h", "AFFINE", "diagonal")],
    "titans": [("M S", "MATRIX", "")],
    "tlstm": [("c", "AFFINE", "diagonal")],
    "trnn": [("h", "AFFINE", "diagonal")],
    "ttt_linear": [("S c", "MATRIX", "")],
    "unicornn": [("h z", "ELEMENTWISE", "")],
}

# These have together what is in any shipped cell, which test_cells_oracles.py asks for. What is made of them is
# looked at always, and built and run by a part of them; what is made of the others, with --all.
COVERING = (
    "alif", "antisymmetricrnn", "conditionalgru", "dreamergru", "dsgu", "exprnn", "griffinblock", "gru", "hgrn",
    "izhikevich", "lru", "lstm", "mamba3", "masslstm", "mesanet", "ntm", "onlstm", "phasedlstm", "plasticity", "plif",
    "retnet", "rwkv4", "scornn", "scrn", "skiplstm", "slstm_xlstm", "ternarylstm", "timeawarelstm", "ttt_linear",
)  # fmt: skip


def most_lines(stem: str) -> int:
    """How many lines the file of a cell may have."""
    return 60 if stem in WRITTEN_OUT else 30


def only(kind: str) -> tuple[str, ...]:
    """The cells whose segments are all of this class."""
    return tuple(stem for stem, segments in PARALLEL.items() if {found for _, found, _ in segments} == {kind})


@cache
def cells_and_warnings(stem: str) -> tuple[tuple[Cell, tuple[Diagnostic, ...]], ...]:
    """The cells of `cells/<stem>.rnn`, each with its warnings."""
    path = FOLDER / f"{stem}.rnn"
    return tuple(front(Source(path.name, path.read_text(encoding="utf-8"))))


def cells(stem: str) -> tuple[Cell, ...]:
    """The cells of `cells/<stem>.rnn`."""
    return tuple(cell for cell, _ in cells_and_warnings(stem))


def parts_of(value: object) -> set[str]:
    """What a cell, or a part of one, is made of: names of nodes, structures, places and operators."""
    found = set[str]()
    match value:
        case Enum():
            found.add(str(value))
        case tuple():
            found.update(*map(parts_of, value))
        case Apply():
            found.add(value.operator)
            found |= parts_of(value.arguments)
        case _ if is_dataclass(value):
            found.add(type(value).__name__)
            found.update(*(parts_of(getattr(value, field.name)) for field in fields(value)))
    return found


def traits_of(stem: str) -> set[str]:
    """What there is in the cells of a file: their parts, the classes of their recurrences and their forms, and whether
    there is one segment, input or state, two, or more."""
    found = set[str]()
    for cell in cells(stem):
        found |= parts_of(cell)
        found |= {f"{loop.kind} {loop.form}" for loop in classify(cell)}
        counts = {"segments": len(cell.segments), "inputs": len(cell.inputs), "states": len(cell.states)}
        found |= {f"{min(count, 3)} {name}" for name, count in counts.items()}
    return found


def is_one_head_only(cell: Cell) -> bool:
    """Whether a product on states ends in one number, which no two heads can share (LMU's u)."""
    return any(
        diagonal_blocks(value.structure) == HEADS and ONE in (value.width, value.columns) for value in cell.values
    )
