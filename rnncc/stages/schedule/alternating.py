"""What a step of the alternating kernel is expected to take: an estimate, for comparison."""

from __future__ import annotations

from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import TENTHS_OF_NS, TILE_COLUMNS, ceil
from rnncc.stages.schedule.facts import Facts, memory_us
from rnncc.stages.schedule.rates import rates

_TILE_UNITS, _TILE_TERMS = 16, 16
_QUARTERS = 4
_FULL_PRECISION = 8  # times longer than products of 16-bit numbers; an estimate


def alternating_us(facts: Facts, problem: Problem, target: Target) -> float:
    """Microseconds: a barrier of the grid, the matrices from L2, and the products, shared out over all
    multiprocessors. Those of float32 are twice as large and multiplied without tensor cores."""
    rate = rates(target)
    elements = facts.sums * facts.operands * problem.heads * problem.units**2
    stream = 10 * elements * (4 if problem.dtype == "fp32" else 2) / target.l2_gb_s
    tiles = ceil(elements, _TILE_UNITS * _TILE_TERMS) * ceil(problem.columns, TILE_COLUMNS)
    slower = _FULL_PRECISION if problem.dtype == "fp32" else 1
    products = tiles * rate.product * slower / (_QUARTERS * target.multiprocessors)
    step_us = (rate.barrier + stream + products) / TENTHS_OF_NS
    return round(max(step_us, memory_us(facts, problem, target)), 3)
