"""The grid family: operands go through L2 to all blocks of a head (GridShape in grid.cuh)."""

from __future__ import annotations

from rnncc.constrint import Model, ceil_div, minimum
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import (
    PAIR_BYTES,
    PAIR_REGISTERS,
    TILE_COLUMNS,
    Draft,
    by,
    ceil,
    registers_of,
    require_shared,
    share,
)
from rnncc.stages.schedule.facts import Facts
from rnncc.stages.schedule.rates import rates

_K_WARPS = 8  # all registers of a multiprocessor, and all of a block's 255 a thread
_UNIT_BLOCKS = (1, 2, 3, 4)
_TILES = (1, 2, 4)
_POLLED = 8  # words of 16 bytes asked for at a time
# Registers of a thread beside its part of the matrix: for what it always has and the words it polls, for a tile of
# columns, for its sums of 16 rows, for an operand of an item (more where an index is divided by 3). Of what an item
# takes, half lives while products run. Fitted to 386 kernels that nvcc 13 made (LSTM, GRU, sLSTM, Elman, both ways, 768
# to 4096 units): none within 255 spills; of those beyond, half do.
_BASE_REGISTERS, _TILE_REGISTERS, _SUM_REGISTERS, _OPERAND_REGISTERS, _ODD_REGISTERS = 33, 14, 5, 13, 8


def grid(facts: Facts, problem: Problem, target: Target) -> Draft:
    """The model of the family."""
    rate = rates(target)
    model = Model()
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # of 8 units, of a thread block
    tiles = model.choice("tiles", _TILES)  # of 8 columns, of a group
    chunks = ceil(facts.operands * ceil(problem.units, 32), _K_WARPS)  # of 32 terms, of a warp
    register_chunks = model.integer("register_chunks", 0, chunks)

    def blocks_of(unit_block_count: int) -> int:
        return ceil(problem.units, 8 * unit_block_count)

    def seats(unit_block_count: int) -> int:
        return target.multiprocessors // (problem.heads * blocks_of(unit_block_count))

    def batch_of(tile_count: int) -> int:
        return chunks if chunks * tile_count <= _POLLED else _POLLED // tile_count

    blocks = by(unit_blocks, _UNIT_BLOCKS, blocks_of)
    model.require(
        problem.heads * blocks <= target.multiprocessors,
        because="residency: the blocks of all heads run at once, one a multiprocessor",
    )
    capacity = TILE_COLUMNS * tiles * by(unit_blocks, _UNIT_BLOCKS, seats)
    model.require(capacity >= problem.columns, because="columns: all groups must run at once")

    rows = by(unit_blocks, _UNIT_BLOCKS, lambda u: ceil(facts.sums * u, 2))
    items = unit_blocks * tiles
    owned = ceil_div(items, _K_WARPS)
    model.require(
        _BASE_REGISTERS
        + (ceil(facts.item_registers, 2) + _OPERAND_REGISTERS * facts.operands) * owned
        + by(unit_blocks, _UNIT_BLOCKS, lambda u: _ODD_REGISTERS * facts.operands if u == 3 else 0)
        + _TILE_REGISTERS * tiles
        + _SUM_REGISTERS * rows * tiles
        + PAIR_REGISTERS * rows * register_chunks
        <= registers_of(_K_WARPS),
        because="registers: of a thread, for its part of the matrix beside sums, operands and items",
    )
    halves = facts.sums * items
    matrix_kilobytes = _K_WARPS * rows * (chunks - register_chunks)
    # One table of both, as the digits of a number in base 8.
    both = range(8 * max(_UNIT_BLOCKS) + 8)
    feed_bytes = by(8 * unit_blocks + tiles, both, lambda key: facts.feed_bytes(key // 8, TILE_COLUMNS * (key % 8)))
    shared_bytes = 512 * _K_WARPS * halves + PAIR_BYTES * matrix_kilobytes + feed_bytes
    require_shared(model, shared_bytes, target)

    columns = minimum(TILE_COLUMNS * tiles, by(unit_blocks, _UNIT_BLOCKS, lambda u: share(problem.columns, seats(u))))
    readers = problem.heads * blocks * ceil_div(problem.columns, columns)
    step = (
        rate.grid
        + rate.poll * by(tiles, _TILES, lambda n: ceil(chunks, batch_of(n)))
        + ceil_div(20 * facts.operands * problem.units * columns * readers, target.l2_gb_s)
        + rate.grid_column * columns
        + 2 * rate.product * ceil(_K_WARPS, 4) * chunks * rows * tiles
        + rate.matrix * matrix_kilobytes
        + rate.half * halves
        + rate.traffic * facts.item_traffic * owned
    )
    return Draft(
        "grid",
        model,
        step,
        step,
        (unit_blocks, _K_WARPS, tiles, 2 * register_chunks),
        {
            "blocks": blocks,
            "unit_tile": 8 * unit_blocks,
            "k_warps": _K_WARPS,
            "column_tile": TILE_COLUMNS * tiles,
            "register_pairs": register_chunks,
            "shared_pairs": chunks - register_chunks,
        },
        blocks,
        32 * _K_WARPS,
        shared_bytes,
        registers_of(_K_WARPS),
        TILE_COLUMNS * tiles,
        capacity,
    )
