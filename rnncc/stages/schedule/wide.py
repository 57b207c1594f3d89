"""The model of the wide family: 64 batch entries per CTA are the rows of its products (WideShape in wide.cuh)."""

from __future__ import annotations

from rnncc.constrint import Model, by, ceil_div, maximum, minimum, round_up
from rnncc.ir.family import WIDE
from rnncc.ir.layout import ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.cost import LoopCost
from rnncc.stages.schedule.layout_model import (
    LayoutModel,
    batch_variable,
    elements,
    registers_of,
    require_at_most,
    require_shared,
    share,
)
from rnncc.stages.schedule.rates import rates

_ENTRIES, _TILE, _WARPGROUPS = 64, 16, 2  # a warp takes a tile of batch entries
_WARPS = 4 * _WARPGROUPS
_UNIT_BLOCKS = (2, 4)
_TERMS, _CHUNK = 16, 8  # terms per block of an operand, and blocks per chunk
_BUFFERS = (2, 3, 4)
_EXCHANGE_STEPS = 16
# Registers per thread for addresses and counters, for the rows of entries, and for what elementwise work makes.
_BASE_REGISTERS, _MASK_REGISTERS, _ITEM_REGISTERS = 48, 32, 72


def wide(cost: LoopCost, problem: Problem, target: Target) -> LayoutModel:
    """Make the model for one loop, problem and GPU."""
    rate, element = rates(target), elements(problem)
    model = Model()
    batch = batch_variable(model)
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # blocks of 8 units per CTA
    buffers = model.choice("buffers", _BUFFERS)  # chunks of operands: one is multiplied, the others are on their way
    require_at_most(model, "reductions", cost.reductions, 0, "its kernels have none")
    require_at_most(model, "widths", cost.widths, 1, "its kernels run steps of one width")
    require_at_most(model, "bytes per element", element.size, 2, "its products take 16-bit numbers")
    left_over = problem.head_dim % (_TERMS * _WARPGROUPS)
    require_at_most(
        model, "head_dim beyond a multiple of 32", left_over, 0, "two warpgroups share the terms in blocks of 16"
    )
    is_other = int(not target.has_warpgroups)
    require_at_most(model, "GPUs but those of compute capability 9.0", is_other, 0, "they lack its products")

    def ctas_of(unit_block_count: int) -> int:
        return ceil(problem.head_dim, 8 * unit_block_count)

    def seats(unit_block_count: int) -> int:
        return target.sms // (problem.heads * ctas_of(unit_block_count))

    ctas = by(unit_blocks, ctas_of)
    model.require(
        problem.heads * ctas <= target.sms, because="residency: the CTAs of all heads run at once, one per SM"
    )
    launch_batch = _ENTRIES * by(unit_blocks, seats)
    model.require(launch_batch >= batch, because="batch: all groups of a launch must run at once")

    blocks = [phase.operands * problem.head_dim // _TERMS for phase in cost.products]
    most_chunks = ceil(ceil(max(blocks, default=0), _WARPGROUPS), _CHUNK)
    model.require(buffers <= most_chunks + 1, because="buffers: there are as many chunks")
    columns = 8 * unit_blocks  # per sum
    lane_units = 2 * unit_blocks  # of both its entries
    needed = (
        _BASE_REGISTERS
        + maximum(
            cost.sums * ceil_div(columns, 2) + 4 * _CHUNK * buffers,  # a product, or elementwise work
            _ITEM_REGISTERS + lane_units * max(phase.operands for phase in cost.phases),
        )
        + lane_units * cost.carries
        + unit_blocks * cost.held_pieces
        + _MASK_REGISTERS * cost.masked
    )
    model.require(
        needed <= registers_of(_WARPS), because="registers: a thread holds sums, operands, what it reads, and items"
    )
    matrix_bytes = (
        2 * _TERMS * columns * sum(count * phase.sums for count, phase in zip(blocks, cost.products, strict=True))
    )
    shared_bytes = matrix_bytes + 256 * cost.sums * columns + 4 * cost.vectors * columns
    require_shared(model, shared_bytes, target)

    group = minimum(_ENTRIES, round_up(share(batch, by(unit_blocks, seats)), _TILE))
    readers = problem.heads * ctas * ceil_div(batch, group)
    item = rate.wide_piece * cost.pieces + rate.wide_operation * cost.operations
    step = (
        len(cost.phases) * rate.wide_phase
        + rate.wide_chunk * sum(ceil(ceil(count, _WARPGROUPS), _CHUNK) for count in blocks)
        + rate.wide_product
        * unit_blocks
        * sum(count * phase.sums for count, phase in zip(blocks, cost.products, strict=True))
        # Reads of L2 hide each other, and products, for the most part.
        + ceil_div(rate.wide_l2_byte * cost.operands * problem.head_dim * group * readers, target.l2_gb_s)
        + item * unit_blocks
        + rate.wide_missing_buffer * (max(_BUFFERS) - buffers)
    )
    return LayoutModel(
        family=WIDE,
        cost=cost,
        model=model,
        batch=batch,
        step=step,
        total=step,
        busy=step,
        needed=needed,
        overcount=0,
        shape=(unit_blocks, buffers),
        tiles={
            "ctas": ctas,
            "unit_tile": columns,
            "batch_tile": _ENTRIES,
            "buffers": buffers,
            "spilled_registers": 0,
        },
        ctas=ctas,
        threads=32 * _WARPS,
        shared_bytes=shared_bytes,
        registers=registers_of(_WARPS),
        group_batch=_ENTRIES,
        launch_batch=launch_batch,
        multiple=_TILE,
        exchange_steps=_EXCHANGE_STEPS,
    )
