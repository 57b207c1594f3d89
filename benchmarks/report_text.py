"""Files of results, and the Markdown that the pages of figures are made of. Imports neither torch nor a stage."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).resolve().parent / "results"
WIDTH = 120
# What stands in a table where nothing was measured.
NOTHING = "—"
# Each file of results, and the command that measures it.
COMMANDS = {
    "gpu_dense": "gpu_dense.py",
    "gpu_dense_loops": "gpu_dense.py --only loops",
    "gpu_cells": "gpu_cells.py",
    "gpu_flashrnn": "gpu_flashrnn.py",
    "gpu_model": "gpu_model.py",
    "gpu_sparse": "gpu_sparse.py",
    "sparse_training": "sparse_training.py",
    "gpu_scan": "gpu_scan.py --only targets",
    "gpu_scan_peers": "gpu_scan.py",
    "gpu_scan_newton": "gpu_scan.py --only newton",
    "gpu_packed": "gpu_packed.py",
    "gpu_steps": "",
    "gpu_kernels": "gpu_kernels.py",
    "scan_cs179": "scan_cs179.py",
    "latency": "latency.py",
    "latency_cuda": "latency.py --device cuda",
    "steps": "steps.py",
    "cpu_matrix": "cpu_matrix.py",
    "gpu_targets": "gpu_targets.py",
    "gpu_families": "gpu_families.py scatter blocks --most 20",
    "host_cuda": "host.py --device cuda",
    "host": "host.py",
    "cpu": "cpu.py",
    "cpu_scan": "cpu_scan.py --threads 1",
    "cpu_packed": "cpu_packed.py",
    "cpu_threads": "cpu.py --threads 1,2,4,8,16",
    "cpu_sparse": "cpu_sparse.py --quick --threads 1",
    "constrint": "constrint.py --every 4",
    "build_time": "build_time.py --all --installed SITE --beside CHECKOUT",
    "build_time_cuda": "build_time.py --all --cores 2,16 --installed SITE --beside CHECKOUT",
}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of one file, and `about`: the machine, the versions and the commit that they were measured with."""

    name: str
    about: Row
    rows: tuple[Row, ...]

    def one(self, **wanted: Any) -> Row | None:
        """The row with these values, None where there is none or where it could not be measured."""
        found = self.all(**wanted)
        return found[0] if found else None

    def all(self, **wanted: Any) -> list[Row]:
        """All such rows."""
        return [row for row in self.rows if is_measured(row) and all(row.get(k) == v for k, v in wanted.items())]


def is_measured(row: Row) -> bool:
    """Whether a row holds times: one whose case could not run says why instead."""
    return "error" not in row and "missing" not in row


@cache
def results(name: str) -> Results | None:
    """The file of that name, None where nothing was measured yet."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    return Results(name, data["environment"], tuple(data["results"]))


def known(name: str) -> Results:
    """The same of a file that is always there."""
    found = results(name)
    assert found is not None, f"{name}.json is missing"
    return found


def link(found: Results) -> str:
    """A file, as a page in docs/ links it."""
    return f"[{found.name}.json](../benchmarks/results/{found.name}.json)"


def sources() -> str:
    """A table of all files: what measured them, on which machine."""
    head = ("file", "`python benchmarks/…`", "machine", "versions", "commit")
    lines = []
    for name, command in COMMANDS.items():
        if found := results(name):
            about = found.about
            line = (link(found), f"`{command}`" if command else NOTHING, machine(about), versions(about))
            commits = dict.fromkeys(each["commit"] for each in (about, *found.rows) if "commit" in each)
            lines.append((*line, ", some rows ".join(f"`{commit}`" for commit in commits) or NOTHING))
    return table(head, lines)


def machine(about: Row) -> str:
    """What it ran on."""
    if "gpu" in about:
        return str(about["gpu"])
    return (
        f"{about['processor']}, {about['capability']}, {about['threads']} thread{'s' if about['threads'] > 1 else ''}"
    )


def versions(about: Row) -> str:
    """What it ran with."""
    found = [f"torch {about['torch']}"] if "torch" in about else []
    if "cuda" in about:
        found += [f"CUDA {about['cuda']}", f"driver {about['driver']}"]
    if "cudnn" in about:
        found.append(f"cuDNN {about['cudnn'] // 10000}.{about['cudnn'] // 100 % 100}")
    if "flashrnn" in about:
        found.append(f"FlashRNN {about['flashrnn']}")
    return ", ".join(found) or NOTHING


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits, without an exponent; a dash where there is no value."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{round(value, digits - 1 - exponent):.{max(0, digits - 1 - exponent)}f}"


def pair(values: Sequence[float | None], digits: int = 3) -> str:
    """Two figures, forward and with backward; one dash where neither is known."""
    if all(value is None for value in values):
        return NOTHING
    return ", ".join(number(value, digits) for value in values)


def ratio(value: float) -> str:
    """Two significant digits, and a third where they would say 1.0."""
    two = number(value, 2)
    return number(value, 3) if two == "1.0" else two


def ratios(values: Sequence[float | None]) -> str:
    """Two ratios, forward and with backward; one dash where neither is known."""
    if all(value is None for value in values):
        return NOTHING
    return ", ".join(NOTHING if value is None else ratio(value) for value in values)


def faster(value: float, other_is_faster: bool) -> str:
    """A ratio, bold where the other one is faster."""
    return f"**{ratio(value)}**" if other_is_faster else ratio(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Its first column names the row."""
    lines = [" | ".join(line) for line in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)


def fill(text: str) -> str:
    """An entry of a list in lines."""
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
