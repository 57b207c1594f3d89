"""The expected time of a step of the alternating kernel: templates/include/rnncc/cuda/schedule.h divides the work among
the SMs, and this model says what bounds each SM."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.layout import ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.cost import LoopCost, memory_us
from rnncc.stages.schedule.layout_model import TENTHS_OF_NS, round_up
from rnncc.stages.schedule.rates import rates

_UNIT_BLOCK, _BATCH_BLOCK, _CHUNK = 8, 16, 32
# An mma multiplies the 16 entries of a batch block by so many elements of the weights: 8 rows of 16 terms. Each quarter
# of an SM makes one at a time.
_MMA_ELEMENTS, _QUARTERS = 8 * 16, 4
# A warp holds the sums of so many unit blocks at once, for one batch block, in 16 bits and in float32. The other unit
# blocks take another pass over the operands.
_HELD_16, _HELD_32 = 8, 4
# Shared memory, in bytes, that no weight can have. It holds the partial sums of eight warps and the places of operands,
# and in float32 also weights on their way.
_OTHER_BYTES = 40_960


@dataclass(frozen=True, slots=True)
class _Division:
    """The work of the busiest CTA, where each SM has one CTA. It visits each of its tiles with each of its chunks.

    unit_blocks, tiles    blocks of 8 units per tile, and the tiles of the CTA
    batch_blocks, chunks  blocks of 16 batch entries per chunk of the batch, and the chunks of the CTA
    """

    unit_blocks: int
    tiles: int
    batch_blocks: int
    chunks: int


def _division(problem: Problem, target: Target) -> _Division:
    """The division that plan_stage makes in schedule.h."""
    head_blocks, batch_blocks = ceil(problem.head_dim, _UNIT_BLOCK), ceil(problem.batch, _BATCH_BLOCK)
    unit_blocks = 2 if head_blocks * problem.heads > target.sms else 1
    tiles = problem.heads * ceil(head_blocks, unit_blocks)
    wide = 2 if batch_blocks > 1 and tiles * batch_blocks > target.sms else 1
    chunks, tile_lanes = ceil(batch_blocks, wide), min(tiles, target.sms)
    batch_lanes = max(1, min(chunks, target.sms // tile_lanes))
    return _Division(unit_blocks, ceil(tiles, tile_lanes), wide, ceil(chunks, batch_lanes))


def alternating_us(cost: LoopCost, problem: Problem, target: Target) -> float:
    """The time of a step, in microseconds. At each wait there is a barrier of the grid, and then the visits of tiles
    and chunks follow each other. A visit waits for what it reads, brings its operands from L2, and also the weights
    that are not in shared memory, and multiplies."""
    rate, own = rates(target), _division(problem, target)
    rows, padded = own.unit_blocks * _UNIT_BLOCK, round_up(problem.head_dim, _CHUNK)
    held = (_HELD_32 if problem.is_float else _HELD_16) // own.batch_blocks
    narrow = cost.narrow(problem)
    read = sum(
        ceil(phase.sums * own.unit_blocks, held) * phase.operands * (narrow if narrow and takes_relayed else padded)
        for phase, takes_relayed in cost.after_relays
    )
    operand_bytes = read * own.batch_blocks * _BATCH_BLOCK * problem.element_bytes

    weights = cost.matrix_elements(rows, padded, narrow)  # of a tile
    weight_bytes = weights * problem.element_bytes
    resident = min(1.0, (target.shared_bytes - _OTHER_BYTES) / max(1, own.tiles * weight_bytes))
    streamed_bytes = (1 - resident) * weight_bytes
    product = rate.alternating_float_product if problem.is_float else rate.alternating_product
    products = own.batch_blocks * weights / _MMA_ELEMENTS / _QUARTERS

    # Tenths of a nanosecond per byte and SM. Weights that do not fit in L2 come from memory.
    l2 = 10 * target.sms / (rate.alternating_l2_share * target.l2_gb_s)
    fits_l2 = streamed_bytes * own.tiles * target.sms < 1e6 * target.l2_mb
    stream = l2 if fits_l2 else 10 * target.sms / target.memory_gb_s
    visits = (
        cost.waits * rate.alternating_visit
        + rate.alternating_reduction * sum(phase.reductions > 0 for phase in cost.phases)
        + rate.alternating_tensor_access * cost.item_traffic
        + l2 * operand_bytes
        + stream * streamed_bytes
        + rate.alternating_matrix_read_per_kb * resident * weight_bytes / 1024
        + product * products
    )
    step_us = (cost.waits * rate.alternating_barrier + own.tiles * own.chunks * visits) / TENTHS_OF_NS
    return round(max(step_us, memory_us(cost, problem, target)), 3)
