"""What a step of the alternating kernel is expected to take: what templates/include/rnncc/cuda/schedule.h divides among
the multiprocessors, and what bounds each of them."""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import TENTHS_OF_NS, ceil
from rnncc.stages.schedule.facts import Facts, memory_us
from rnncc.stages.schedule.rates import rates

_UNIT_BLOCK, _COLUMN_BLOCK, _CHUNK = 8, 16, 32
_QUARTERS = 4
# Of an mma: [16, 16] @ [16, 8].
_PRODUCT_TERMS = 16
# Unit blocks whose sums a warp holds at once, for one block of columns; the others take another pass over the operands.
_HELD_16, _HELD_32 = 8, 4
# Shared memory that no weight has: partial sums of eight warps and places of operands; of float32 also weights on their
# way.
_OTHER_BYTES = 40_960
# Up to sixteen loads of a lane on their way keep L2 busier than the polls by which its bandwidth was measured.
_DEEP_LOADS = 1.1


@dataclass(frozen=True, slots=True)
class _Division:
    """Of the busiest thread block, one a multiprocessor.

    unit_blocks, column_blocks   of 8 units and 16 columns, of a tile and a chunk of columns
    tiles, chunks                that it visits in a step, each with each
    """

    unit_blocks: int
    column_blocks: int
    tiles: int
    chunks: int


def _division(problem: Problem, target: Target) -> _Division:
    """As plan_stage does it."""
    room, of_head, column_blocks = (
        target.multiprocessors,
        ceil(problem.units, _UNIT_BLOCK),
        ceil(problem.columns, _COLUMN_BLOCK),
    )
    unit_blocks = 2 if of_head * problem.heads > room else 1
    tiles = problem.heads * ceil(of_head, unit_blocks)
    wide = 2 if column_blocks > 1 and tiles * column_blocks > room else 1
    chunks, lanes = ceil(column_blocks, wide), min(tiles, room)
    column_lanes = max(1, min(chunks, room // lanes))
    return _Division(unit_blocks, wide, ceil(tiles, lanes), ceil(chunks, column_lanes))


def alternating_us(facts: Facts, problem: Problem, target: Target) -> float:
    """Microseconds: a barrier of the grid, then visit after visit of a tile and a chunk of columns. A visit waits for
    what it reads, brings its operands and the weights that are not in shared memory from L2, and multiplies."""
    rate, own = rates(target), _division(problem, target)
    full = problem.dtype == "fp32"
    scalar = 4 if full else 2
    terms = facts.operands * ceil(problem.units, _CHUNK) * _CHUNK
    blocks = facts.sums * own.unit_blocks  # of 8 rows of weights, of a tile
    passes = ceil(blocks, (_HELD_32 if full else _HELD_16) // own.column_blocks)
    operand_bytes = passes * own.column_blocks * _COLUMN_BLOCK * terms * scalar

    weight_bytes = blocks * _UNIT_BLOCK * terms * scalar  # of a tile
    resident = min(1.0, (target.shared_bytes - _OTHER_BYTES) / (own.tiles * weight_bytes))
    streamed_bytes = (1 - resident) * weight_bytes
    product = rate.multiply_add if full else rate.mma
    products = blocks * own.column_blocks * ceil(terms, _PRODUCT_TERMS) / _QUARTERS

    visits = own.tiles * own.chunks
    # Tenths of a nanosecond a byte of a multiprocessor; weights that do not fit L2 come from memory.
    l2 = 10 * target.multiprocessors / (_DEEP_LOADS * target.l2_gb_s)
    fits_l2 = streamed_bytes * own.tiles * target.multiprocessors < 1e6 * target.l2_mb
    stream = l2 if fits_l2 else 10 * target.multiprocessors / target.memory_gb_s
    visit = (
        rate.visit
        + rate.touch * facts.item_traffic
        + l2 * operand_bytes
        + stream * streamed_bytes
        + rate.resident * resident * weight_bytes / 1024
        + product * products
    )
    step_us = (rate.barrier + visits * visit) / TENTHS_OF_NS
    return round(max(step_us, memory_us(facts, problem, target)), 3)
