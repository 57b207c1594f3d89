"""The stepwise family: every step is a product by cuBLAS and a launch of the kernel (stepwise.cuh). It takes loops of
one head whose matrices are one matrix for cuBLAS."""

from __future__ import annotations

from rnncc.ir.family import STEPWISE
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import KernelLayout
from rnncc.ir.problem import Problem
from rnncc.ir.step import Table
from rnncc.ir.target import Target
from rnncc.stages.schedule.cost import LoopCost, memory_us, reached_gb_s
from rnncc.stages.schedule.layout_model import round_up
from rnncc.stages.schedule.rates import product_rate, rates

_THREADS, _REGISTERS = 256, 128
_TILE = 64  # batch entries of a tile of a product, to which the batch is padded


def stepwise_takes(loop: FusedLoop, problem: Problem) -> bool:
    """Whether the loop can be run so."""
    (first, *others) = loop.phases
    has_scalars = bool(loop.row_writes) or any(row.per_head or row.place.table is Table.SAVED for row in loop.rows)
    return problem.heads == 1 and not others and not first.reductions and first.joined and not has_scalars


def stepwise(cost: LoopCost, problem: Problem, target: Target) -> KernelLayout:
    """The kernel, for all batches."""
    return KernelLayout(
        family=STEPWISE,
        ctas=1,
        threads=_THREADS,
        shared_bytes=0,
        registers=_REGISTERS,
        group_batch=None,
        launch_batch=None,
        heads=1,
        concurrent_groups=1,
        step_us=stepwise_us(cost, problem, target),
    )


def stepwise_us(cost: LoopCost, problem: Problem, target: Target) -> float:
    """The time of a step, in microseconds."""
    rate, weights = rates(target), cost.matrix_elements(problem.head_dim, problem.head_dim)
    weight_bytes = problem.element_bytes * weights
    # Weights that do not stay in L2 come from memory at every step, while others are multiplied.
    gb_s = target.l2_gb_s if weight_bytes < 1e6 * target.l2_mb else reached_gb_s(target)
    share = rate.stepwise_float_product_share if problem.is_float else rate.stepwise_product_share
    per_us = share * product_rate(target, problem.dtype)
    product_us = max(weight_bytes / (1000 * gb_s), weights * round_up(problem.batch, _TILE) / per_us)
    # Carries, operands and sums are written and read.
    handed = 2 * (4 * cost.carries + problem.element_bytes * cost.operands + 4 * cost.sums)
    handed_us = problem.batch * problem.head_dim * handed / (1000 * target.l2_gb_s)
    # cuBLAS makes a second launch of a product with many terms, or in float32.
    second_us = rate.stepwise_second_launch_us if cost.operands > 1 or problem.is_float else 0
    launches_us = rate.stepwise_launches_us + second_us
    return round(launches_us + product_us + handed_us + memory_us(cost, problem, target), 3)
