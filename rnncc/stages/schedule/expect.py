"""What a call is expected to take by kernels that are there, whatever its batch columns: its steps, and what comes
before and after them. (`Draft.expected_us` has the step.)"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import STEPWISE, FusedSchedule, Schedule
from rnncc.ir.target import Target
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.draft import ceil, element_bytes
from rnncc.stages.schedule.facts import Facts, facts, reached_gb_s
from rnncc.stages.schedule.families import FAMILIES
from rnncc.stages.schedule.rates import product_rate, slower
from rnncc.stages.schedule.stepwise import stepwise_us

# Microseconds of a launch until its first step, besides the matrix of a thread block: by KB, as it lies in memory and
# transposed (element by element).
_LAUNCH_US, _FILL_US, _TRANSPOSED_FILL_US = 3.5, 0.05, 0.09
# Of a copy, and of a product's launch; of what autograd and the gradients' tensors take besides, a backward.
_COPY_US, _PRODUCT_US, _BACKWARD_US = 2.0, 3.0, 3.0
# Products of heads: thread blocks, fewer than multiprocessors, each go through all rows, nanoseconds a row. In 16 bits
# narrow heads take longer: a row of theirs is less than what memory hands over at a time. Of float32 so many rows are
# dealt out instead, for which a gate's cotangents are copied (templates/include/rnncc/cuda/heads.h).
_ROW_NS, _NARROW_ROW_NS, _FLOAT_ROW_NS = 1.4, (1.0, 20.0), 39.0
_DEALT_ROWS, _TILE, _DEALT_TILES = 1024, 128, 32


@dataclass(frozen=True, slots=True)
class Expected:
    """Microseconds of a call.

    start     from its launch to its first step, of all launches
    step      of the loop's kernel, in all launches
    """

    start: float
    step: float


def expected(loop: FusedLoop, schedule: Schedule, problem: Problem, target: Target) -> Expected:
    """Of the kernel that takes `problem.columns` columns, of a schedule for the same units, heads and dtype; the loop
    may be that of inference, which has the layouts of training."""
    known, kernel = facts(loop, problem.dtype), schedule.kernel_for(problem.columns)
    if kernel is None:
        return Expected(_LAUNCH_US, alternating_us(known, problem, target))
    if kernel.family == STEPWISE:
        return Expected(_LAUNCH_US, stepwise_us(known, problem, target))
    matrix_kb = _matrices(loop) * problem.units**2 * element_bytes(problem.dtype) / (1024 * kernel.blocks)
    fill = _TRANSPOSED_FILL_US if loop.transposed else _FILL_US
    launches = kernel.launches(problem.columns)
    return Expected(launches * (_LAUNCH_US + fill * matrix_kb), step_us(known, kernel, problem, target))


def step_us(known: Facts, kernel: FusedSchedule, problem: Problem, target: Target) -> float:
    """Of a kernel that takes `problem.columns` columns: microseconds of a step of all of its launches."""
    if kernel.family == STEPWISE:
        return stepwise_us(known, problem, target)
    before, columns = kernel.launches(problem.columns) - 1, kernel.launch_columns(problem.columns)
    rest = _launch_us(known, kernel, replace(problem, columns=problem.columns - before * columns), target)
    return rest + (before * _launch_us(known, kernel, replace(problem, columns=columns), target) if before else 0)


def _launch_us(known: Facts, kernel: FusedSchedule, problem: Problem, target: Target) -> float:
    draft = FAMILIES[kernel.family](known, problem, target)
    return draft.expected_us(draft.known(kernel), problem, target, kernel.shared_bytes)


def _matrices(loop: FusedLoop) -> int:
    """Recurrent matrices [units, units] of a head."""
    return len(loop.sums) * len(loop.operands)


def after_us(loop: FusedLoop, problem: Problem, steps: int, target: Target) -> float:
    """Microseconds from a backward loop's last step to the gradients of its recurrent matrices: after.h's part."""
    rows, count, size = steps * problem.columns, _matrices(loop), element_bytes(problem.dtype)
    is_float = size == 4
    base, narrow = _NARROW_ROW_NS
    row_ns = _FLOAT_ROW_NS if is_float else max(_ROW_NS, base + narrow / problem.units)
    product_us = rows * problem.heads * problem.units**2 / product_rate(target, problem.dtype)
    # To read a gate's cotangents or the states and write them, or to read both.
    copy_us = 2 * rows * problem.heads * problem.units * size / (1000 * reached_gb_s(target))
    if problem.heads == 1:
        # Gates that lie side by side are one product.
        products = _PRODUCT_US + count * product_us
    elif is_float and rows >= _DEALT_ROWS and problem.heads * ceil(problem.units, _TILE) ** 2 <= _DEALT_TILES:
        products = count * (_PRODUCT_US + _COPY_US + copy_us + product_us + copy_us)
    else:
        products = count * (_PRODUCT_US + max(product_us, slower(target) * row_ns * rows / 1000))
    # The state of the step before, as a tensor of its own.
    return _BACKWARD_US + products + _COPY_US + copy_us


def inference(loop: FusedLoop) -> FusedLoop:
    """A forward loop without what only a backward reads."""
    return replace(loop, writes=loop.inference_writes)
