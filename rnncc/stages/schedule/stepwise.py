"""The stepwise family: every step is a product by cuBLAS and a launch of the kernel (stepwise.cuh). It takes loops of
one head whose matrices are one matrix for cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

from rnncc.ir.family import STEPWISE
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import FusedSchedule
from rnncc.ir.step import Table
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import round_up
from rnncc.stages.schedule.facts import Facts, memory_us, reached_gb_s
from rnncc.stages.schedule.rates import product_rate, rates

_THREADS, _REGISTERS = 256, 128
# The largest batch that is tried, and the distance to the next one.
_MOST, _APART = 1024, 16
_TILE = 64  # batch entries of a tile of a product, to which the batch is padded


def stepwise_takes(loop: FusedLoop, problem: Problem) -> bool:
    """Whether the loop can be run so."""
    (first, *others) = loop.phases
    has_scalars = bool(loop.row_writes) or any(row.per_head or row.place.table is Table.SAVED for row in loop.rows)
    return problem.heads == 1 and not others and not first.reductions and first.joined and not has_scalars


def first_stepwise(
    known: Facts, problem: Problem, target: Target, others: tuple[Callable[[int], float], ...]
) -> int | None:
    """The batch from which on the kernel is quicker than the other kernels, or None if there is none. `others`: two
    functions that tell the microseconds of a step of a batch by the other kernels. By the first it must be worth its
    compilation, and by the second the first batch is found."""
    worth, quick = others

    def down(first: int, apart: int, than: Callable[[int], float]) -> int:
        """The last of the batches below `first` for which the kernel is quicker than that."""
        batches = range(first - apart, 0, -apart)
        quicker = (stepwise_us(known, replace(problem, batch=each), target) <= than(each) for each in batches)
        return first - apart * sum(takewhile(bool, quicker))

    first = down(_MOST + _APART, _APART, worth)
    return None if first > _MOST else down(down(first, _APART, quick), 1, quick)


def stepwise(first: int, first_denser: int, known: Facts, problem: Problem, target: Target) -> FusedSchedule:
    """The kernel for all batches from `first` on, or where masks are denser than planned, from `first_denser` on."""
    return FusedSchedule(
        family=STEPWISE,
        ctas=1,
        threads=_THREADS,
        shared_bytes=0,
        registers=_REGISTERS,
        group_batch=None,
        smallest_batch=first,
        smallest_denser=first_denser,
        launch_batch=None,
        heads=1,
        places=1,
        pass_us=stepwise_us(known, replace(problem, batch=first), target),
        step_us=stepwise_us(known, replace(problem, batch=max(first, problem.batch)), target),
    )


def stepwise_us(known: Facts, problem: Problem, target: Target) -> float:
    """The time of a step, in microseconds."""
    rate, weights = rates(target), known.matrix_elements(problem.head_dim, problem.head_dim)
    weight_bytes = problem.element_bytes * weights
    # Weights that do not stay in L2 come from memory at every step, while others are multiplied.
    gb_s = target.l2_gb_s if weight_bytes < 1e6 * target.l2_mb else reached_gb_s(target)
    share = rate.stepwise_float_product_share if problem.is_float else rate.stepwise_product_share
    per_us = share * product_rate(target, problem.dtype)
    product_us = max(weight_bytes / (1000 * gb_s), weights * round_up(problem.batch, _TILE) / per_us)
    # Carries, operands and sums are written and read.
    handed = 2 * (4 * known.carries + problem.element_bytes * known.operands + 4 * known.sums)
    handed_us = problem.batch * problem.head_dim * handed / (1000 * target.l2_gb_s)
    # cuBLAS makes a second launch of a product with many terms, or in float32.
    second_us = rate.stepwise_second_launch_us if known.operands > 1 or problem.is_float else 0
    launches_us = rate.stepwise_launches_us + second_us
    return round(launches_us + product_us + handed_us + memory_us(known, problem, target), 3)
