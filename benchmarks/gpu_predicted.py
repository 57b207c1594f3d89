"""What the cost model expects of a row of benchmarks/gpu_dense.py: it is pure computation, and gives the same on every
machine."""

from __future__ import annotations

from functools import cache

from gpu_cases import Case

from rnncc.ir.lowered import LoweredCell
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule.kernels import call_time


@cache
def predicted_us(case: Case, target: Target) -> float | None:
    """Microseconds a step of a case of ours, called back to back: launches and what comes after the loops included, by
    the kernels that packages have, laid out for a batch of 16. None where the model does not know the loop."""
    problem = Problem(case.head_dim, case.heads, case.dtype)
    found = call_time(
        _plan(case.cell),
        problem,
        target,
        batch=case.batch,
        steps=case.steps,
        training=case.run == "fw+bw",
    )
    return None if found is None else found.total / case.steps


@cache
def _plan(cell: str) -> LoweredCell:
    return compile_cells(read_request(cell), "lower").cells[0].plan
