"""Which kernels are chosen where a sparse and a dense one were measured on an H200 (benchmarks/gpu_kernels.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rnncc.ir.family import GRID, SPARSE, Family
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.sparse import sparse

H200 = GPUS["h200"]
EQUATIONS = {
    "elman": "state h\nweights R: {kind}\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    "lstm": (
        "state h, c\nweights R: {kind}\ni, f, o = sigmoid(W@x + R@h[t-1] + b)\ng = tanh(W@x + R@h[t-1] + b)\n"
        "c[t] = f*c[t-1] + i*g\nh[t] = o*tanh(c[t])\n"
    ),
}


class Measured(NamedTuple):
    """Microseconds per step of a launch, in bfloat16 over 1024 steps."""

    cell: str
    kind: str
    head_dim: int
    batch: int
    density: float
    us: float

    @property
    def problem(self) -> Problem:
        return Problem(self.head_dim, 1, "bf16", self.batch)

    def __str__(self) -> str:
        return f"{self.cell} {self.kind} {self.head_dim} [{self.batch}] {self.density}"


RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "gpu_kernels.json"


def rows_of(family: Family) -> list[dict[str, Any]]:
    """The measured steps of that family of cells with sparse matrices."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    return [row for row in rows if row["family"] == family.name and "density" in row]


def place_of(row: dict[str, Any]) -> tuple[str, str, int, int]:
    return row["cell"], row["loop"], row["head_dim"], row["batch"]


ROWS = [Measured(*place_of(row), row["density"], row["us"]) for row in rows_of(SPARSE)]
# Dense kernels, with the layout that the model chooses.
DENSE = {place_of(row): row["us"] for row in rows_of(GRID)}
BESIDE_DENSE = [row for row in ROWS if (row.cell, row.kind, row.head_dim, row.batch) in DENSE]
# The rows of BESIDE_DENSE that are chosen.
CHOSEN = {
    "lstm inference 2048 [16] 0.01",
    "lstm backward 2048 [16] 0.01",
}


@cache
def loops_of(cell: str, density: float) -> tuple[FusedLoop, FusedLoop]:
    """The loops of a cell in training."""
    text = f"cell Own\n{EQUATIONS[cell]}".format(kind=f"sparse(density={density})")
    loop = compile_cells(Request(Source("own.rnn", text), "own"), "lower").cells[0].plan.loops[0]
    assert isinstance(loop.fused_forward, FusedLoop) and isinstance(loop.fused_backward, FusedLoop)
    return loop.fused_forward, loop.fused_backward


def planned_loop(row: Measured) -> FusedLoop:
    """The loop that the row's kernel is planned for: inference has the layouts of training."""
    ahead, back = loops_of(row.cell, row.density)
    return back if row.kind == "backward" else ahead


@pytest.mark.long
def test_what_is_chosen_is_not_slower_than_the_dense_kernel() -> None:
    """Where both were measured. Some rows that are not chosen were quicker too, by less than a tenth: the model is not
    sure of them."""
    chosen = set()
    for row in BESIDE_DENSE:
        kernel = schedule(planned_loop(row), row.problem, H200).kernel_for(row.batch)
        part = row.us / DENSE[row.cell, row.kind, row.head_dim, row.batch]
        assert kernel is not None
        if kernel.family is SPARSE:
            assert part < 1
            chosen.add(str(row))
        else:
            assert part > 0.9
    assert chosen == CHOSEN


@pytest.mark.parametrize("row", [row for row in ROWS if row.head_dim > 2304], ids=str)
def test_where_no_dense_kernel_fits_a_sparse_one_is_chosen(row: Measured) -> None:
    kernel = schedule(planned_loop(row), row.problem, H200).kernel_for(row.batch)
    assert kernel is not None and kernel.family is SPARSE


def test_lists_that_are_too_short_for_some_cta_are_the_last_resort() -> None:
    """The backward at 8192 units and 2 %: longer lists do not fit, and what has no room takes time at every step."""
    ahead, back = loops_of("lstm", 0.02)
    # Rows of the forward have equally many elements.
    for loop, head_dim, expected in ((back, 4096, 0), (back, 8192, 1), (ahead, 8192, 0)):
        layout_model = sparse(cost_of(loop, "bf16"), Problem(head_dim, 1, "bf16", 4), H200)
        solution = layout_model.best(4)
        (short,) = (each for each in layout_model.model.variables if each.name == "short")
        assert solution.value(short) == expected
