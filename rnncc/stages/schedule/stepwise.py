"""stepwise: a launch a step, after a product by cuBLAS (templates/include/rnncc/cuda/fused/stepwise.cuh). For one head,
and for loops whose matrices are one for cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import STEPWISE, FusedSchedule
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import ceil, element_bytes
from rnncc.stages.schedule.facts import Facts, memory_us, reached_gb_s
from rnncc.stages.schedule.rates import product_rate

_THREADS, _REGISTERS = 256, 128
# Of columns: the fewest and the distance of what is looked at, and the most, from where on the quickest stays so.
_FEWEST, _MOST = 16, 1024
# Microseconds of a product and a launch by themselves, one after the other in a graph, and of the second launch that
# cuBLAS makes of a product with many terms, or in float32.
_LAUNCHES_US, _SPLIT_US = 5.5, 2.0
# Of the rate of a large product over all steps, in 16 bits and in float32; columns are padded to tiles.
_RATE, _FLOAT_RATE, _TILE = 0.8, 0.85, 64


def takes(loop: FusedLoop, problem: Problem) -> bool:
    """Whether the loop can be run so."""
    return problem.heads == 1 and loop.joined


def stepwise(known: Facts, problem: Problem, target: Target, others: Callable[[int], float]) -> FusedSchedule | None:
    """The kernel for the batch columns from which on it is quicker than `others` [microseconds of a step of so many
    columns], if there are such."""
    fewest = None
    for columns in range(_MOST, 0, -_FEWEST):
        if stepwise_us(known, replace(problem, columns=columns), target) > others(columns):
            break
        fewest = columns
    return None if fewest is None else stepwise_from(fewest, known, problem, target)


def stepwise_from(fewest: int, known: Facts, problem: Problem, target: Target) -> FusedSchedule:
    """The kernel, for so many batch columns and more."""
    pass_us = stepwise_us(known, replace(problem, columns=fewest), target)
    step_us = stepwise_us(known, replace(problem, columns=max(fewest, problem.columns)), target)
    return FusedSchedule(STEPWISE, 1, (), (), _THREADS, 0, _REGISTERS, fewest, None, 1, 1, pass_us, step_us)


def stepwise_us(known: Facts, problem: Problem, target: Target) -> float:
    """Microseconds of a step."""
    scalar_bytes = element_bytes(problem.dtype)
    weights = known.sums * known.operands * problem.units**2
    # Where they do not stay in L2 they come from memory, at every step, while others are multiplied.
    gb_s = target.l2_gb_s if scalar_bytes * weights < 1e6 * target.l2_mb else reached_gb_s(target)
    rate = (_FLOAT_RATE if problem.dtype == "fp32" else _RATE) * product_rate(target, problem.dtype)
    product = max(scalar_bytes * weights / (1000 * gb_s), weights * _TILE * ceil(problem.columns, _TILE) / rate)
    # Carries, operands and sums are written and read.
    handed = 2 * (4 * known.carries + scalar_bytes * known.operands + 4 * known.sums)
    handed_us = problem.columns * problem.units * handed / (1000 * target.l2_gb_s)
    launches = _LAUNCHES_US + (_SPLIT_US if known.operands > 1 or problem.dtype == "fp32" else 0)
    return round(launches + product + handed_us + memory_us(known, problem, target), 3)
