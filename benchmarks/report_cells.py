"""The shipped cells: equations, class, the kernels that run them, and how fast they are on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from gpu_cases import PASSES
from report_text import Results, Row, fill, known, ratios, table

from rnncc.ir.compilation import CompiledCell
from rnncc.ir.lowered import LoweredCell, NoForm
from rnncc.language.read import read_request, read_source
from rnncc.machine.paths import shipped_cells
from rnncc.pipeline import compile_cells
from rnncc.show.catalogue import Entry, catalogue
from rnncc.stages.schedule.kernels import family_names

HEAD = ("`rnncc.load(…)`", "class", "recurrence", "phases", "GPU kernels", "CPU")


def _cells() -> str:
    entries = [entry for path in shipped_cells() for entry in catalogue(read_source(path))]
    return table(HEAD, map(_line, entries))


def _definitions() -> str:
    return "\n\n".join(_definition(path, entry) for path in shipped_cells() for entry in catalogue(read_source(path)))


def _line(entry: Entry) -> tuple[str, ...]:
    name = entry.file
    facts = (entry.kinds, str(entry.phases), kernels_of(name), ratios(cpu_factors(name)))
    return f"[`{name}`](#{name})", f"`{entry.cell}`", *facts


def kernels_of(name: str) -> str:
    """The families of GPU kernels that run a cell's loops."""
    return families_of(compile_cells(read_request(name), "lower").cells[0])


def families_of(cell: CompiledCell) -> str:
    """The families that run the loops of a cell, which `lower` made a plan of."""
    return " + ".join(dict.fromkeys(_families(cell.plan)))


def _families(plan: LoweredCell) -> Iterator[str]:
    for loop, family in family_names(plan):
        forms = ((loop.fused_forward, loop.scan_forward), (loop.fused_backward, loop.scan_backward))
        has_own = all(any(not isinstance(form, NoForm) for form in ways) for ways in forms)
        if family == "alternating":
            yield "fused, alternating" if has_own else "alternating"
        else:
            yield family.replace("forward ", "").replace("backward ", "")


def cpu_rows(name: str) -> tuple[Results, list[Row | None]]:
    """What was measured of a cell on the CPU, with 128 units and a batch of 16: the file, and its row of each pass."""
    scan, dense = known("cpu_scan"), known("cpu")
    rows = [scan.one(cell=name, B=16, H=128, run=run) for run in PASSES]
    if any(rows):
        return scan, rows
    return dense, [dense.one(cell=name, T=128, B=16, H=128, backward=backward) for backward in (False, True)]


def cpu_factors(name: str) -> list[float | None]:
    """How many times as fast as its eager loop a cell is on the CPU."""
    return [row.get("speedup_over_eager") if row else None for row in cpu_rows(name)[1]]


def _definition(path: Path, entry: Entry) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = list(takewhile(lambda line: line.startswith("#"), lines))
    _, _, form = " ".join(line.removeprefix("#").strip() for line in comment).partition("Form: ")
    notes = (f"- Source: {entry.citation}", f"- Form: {form.rstrip('.')}")
    text = "\n".join(lines[len(comment) :]).strip("\n")
    return "\n\n".join((f"## {entry.file}", "\n".join(map(fill, notes)), f"```rnn\n{text}\n```"))


TABLES = {"cells": _cells, "definitions": _definitions}
