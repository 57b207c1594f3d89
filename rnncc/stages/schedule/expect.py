"""The expected time of a call by kernels that exist, for any batch: its steps, and what comes before and after them.
(`LayoutModel.expected_us` has the time of a step.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from rnncc.ir.family import Scope
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import KernelLayout, LoopKernels, ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.cost import LoopCost, cost_of, reached_gb_s
from rnncc.stages.schedule.families import MODELS
from rnncc.stages.schedule.layout_model import LayoutModel, round_up
from rnncc.stages.schedule.rates import product_rate, rates
from rnncc.stages.schedule.stepwise import stepwise_us

# If a float32 product has at least so many rows and few tiles, its rows are dealt out to several sums, for which the
# cotangents of a gate are copied. In 16 bits the package's own kernel takes such products, and all narrow ones
# (templates/include/rnncc/cuda/heads.h).
_DEALT_ROWS, _TILE, _DEALT_TILES = 1024, 128, 32
# That kernel's tiles (head_products_call.h).
_TILE_ROWS, _TILE_COLUMNS = 256, (64, 128)


@dataclass(frozen=True, slots=True)
class Expected:
    """Times of a call, in microseconds.

    start     from the launch to the first step, of all launches
    step      a step, in all launches
    """

    start: float
    step: float


def expected(loop: FusedLoop, schedule: LoopKernels, problem: Problem, target: Target) -> Expected:
    """The times of the kernel that runs a batch of `problem.batch`. The schedule is for the same head_dim, heads and
    dtype. The loop may be that of inference, which has the layouts of training."""
    cost, kernel = cost_of(loop, problem.dtype), schedule.kernel_for(problem.batch)
    rate = rates(target)
    if kernel is None:
        return Expected(rate.launch_us, alternating_us(cost, problem, target))
    if kernel.family.scope is Scope.STEP:
        return Expected(rate.launch_us, stepwise_us(cost, problem, target))
    elements = cost.matrix_elements(problem.head_dim, problem.head_dim, cost.narrow(problem))
    matrix_kb = elements * problem.element_bytes / (1024 * kernel.ctas)
    fill = rate.transposed_fill_us_per_kb if loop.phases[0].transposed else rate.fill_us_per_kb
    launches = kernel.launches(problem.batch)
    return Expected(launches * (rate.launch_us + fill * matrix_kb), step_us(cost, kernel, problem, target))


def step_us(cost: LoopCost, kernel: KernelLayout, problem: Problem, target: Target) -> float:
    """The time of a step of a batch of `problem.batch`, in all launches of the kernel, in microseconds."""
    if kernel.family.scope is Scope.STEP:
        return stepwise_us(cost, problem, target)
    layout_model = MODELS[kernel.family](cost, problem, target)
    return step_times(layout_model, kernel, problem, target)(problem.batch)


def step_times(
    layout_model: LayoutModel, kernel: KernelLayout, problem: Problem, target: Target
) -> Callable[[int], float]:
    """The same for any batch, by the model from which the kernel was made."""
    given = layout_model.step_us(layout_model.solution_of(kernel), problem, target, kernel.shared_bytes)
    seats = max(1, kernel.concurrent_groups // kernel.heads)

    @cache
    def launch_us(batch: int) -> float:
        # The values depend on the groups that run side by side, whether or not the last one is full.
        group = kernel.group(batch)
        return given(batch, group * min(seats, ceil(batch, group)))

    @cache
    def us(batch: int) -> float:
        before, each = kernel.launches(batch) - 1, kernel.batch_of_a_launch(batch)
        return launch_us(batch - before * each) + (before * launch_us(each) if before else 0)

    return us


def after_us(loop: FusedLoop, problem: Problem, steps: int, target: Target) -> float:
    """The time from a backward loop's last step to the gradients of its recurrent matrices, in microseconds: what
    after.h does. It is 0 where there are none."""
    rate, cost, rows = rates(target), cost_of(loop, problem.dtype), steps * problem.batch
    if not cost.matrices:
        return 0.0
    elements = cost.matrix_elements(problem.head_dim, problem.head_dim, cost.narrow(problem))
    products_us = rows * problem.heads * elements / product_rate(target, problem.dtype)
    count, product_us = cost.matrices, products_us / cost.matrices
    # To read the cotangents of a gate, or the states, and write them; or to read both.
    copy_us = 2 * rows * problem.hidden * problem.element_bytes / (1000 * reached_gb_s(target))
    # The states of the steps before are copied into a tensor of their own.
    shifted_us = rate.copy_launch_us + copy_us
    if problem.heads == 1:
        # Gates that lie side by side are one product.
        gradients_us = rate.product_launch_us + products_us
    elif problem.is_float and rows >= _DEALT_ROWS and _tiles(problem) <= _DEALT_TILES:
        gradients_us = count * (rate.product_launch_us + rate.copy_launch_us + copy_us + product_us + copy_us)
    elif _has_kernel(problem):
        # It reads all cotangents and the states once, and takes the states as they lie.
        shifted_us = 0.0
        gradients_us = 2 * rate.product_launch_us + max(
            (count + 1) / 2 * copy_us, _tiled_products_us(count, problem, target) * rows
        )
    else:
        # cuBLAS has fewer CTAs than there are SMs, and each goes through all rows. A row of a narrow head is shorter
        # than what memory hands over at a time.
        narrow_us = rate.head_rows_narrow_us + rate.head_rows_narrow_us_units / problem.head_dim
        rows_us = rate.head_rows_float_us if problem.is_float else max(rate.head_rows_us, narrow_us)
        gradients_us = count * (rate.product_launch_us + max(product_us, rows_us * rows / 1000))
    return rate.backward_us + gradients_us + shifted_us


def _tiles(problem: Problem) -> int:
    """The tiles of all heads' products as cuBLAS has them."""
    return problem.heads * ceil(problem.head_dim, _TILE) ** 2


def _has_kernel(problem: Problem) -> bool:
    """Whether the package's own kernel makes the gradients of several heads."""
    fits = not problem.is_float and problem.head_dim % 8 == 0
    return fits and (problem.head_dim <= _TILE or _tiles(problem) < _DEALT_TILES)


def _tiled_products_us(count: int, problem: Problem, target: Target) -> float:
    """The time per row of `count` products of all heads by the package's own kernel, in microseconds: that of whole
    tiles, of which the last ones may be partly empty."""
    columns = next((width for width in _TILE_COLUMNS if problem.head_dim <= width), _TILE_COLUMNS[-1])
    tile_rows = round_up(count * problem.head_dim, _TILE_ROWS)
    elements = problem.heads * tile_rows * round_up(problem.head_dim, columns)
    return elements / (rates(target).head_products_share * product_rate(target, problem.dtype))
