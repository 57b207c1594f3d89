"""The grid family: operands go through L2 to all blocks of a head (GridShape in grid.cuh)."""

from __future__ import annotations

from rnncc.constrint import Model, ceil_div, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import (
    BASE_REGISTERS,
    PAIR_BYTES,
    PAIR_REGISTERS,
    TILE_COLUMNS,
    Draft,
    by,
    ceil,
    elements,
    piece_registers,
    registers_of,
    require_registers,
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
# takes, half lives while products run. Fitted to 386 kernels of 16-bit numbers that nvcc 13 made (LSTM, GRU, sLSTM,
# Elman, both ways, 768 to 4096 units): none within 255 spills. Of 160 planned ones since, three spill one register;
# NAS's inference of 768 units in float16 spills 24: how far nvcc interleaves an item's two elements is not counted.
_BASE_REGISTERS, _TILE_REGISTERS, _SUM_REGISTERS, _OPERAND_REGISTERS, _ODD_REGISTERS = 33, 14, 5, 13, 8
# float32: a lane has all columns of its sums while it multiplies. With several operands nvcc keeps addresses, more of
# them for each chunk beyond some.
_FLOAT_SUM_REGISTERS, _FLOAT_REGISTERS, _FLOAT_OPERAND_REGISTERS = 10, 16, 16
_ADDRESS_REGISTERS, _FAR_REGISTERS, _NEAR_CHUNKS = 2, 6, 16


def grid(facts: Facts, problem: Problem, target: Target) -> Draft:
    """The model of the family."""
    rate, of = rates(target), elements(problem)
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
        polls = tile_count * of.size // 2
        return chunks if chunks * polls <= _POLLED else max(1, _POLLED // polls)

    blocks = by(unit_blocks, _UNIT_BLOCKS, blocks_of)
    model.require(
        problem.heads * blocks <= target.multiprocessors,
        because="residency: the blocks of all heads run at once, one a multiprocessor",
    )
    capacity = TILE_COLUMNS * tiles * by(unit_blocks, _UNIT_BLOCKS, seats)
    model.require(capacity >= problem.columns, because="columns: all groups of a launch must run at once")

    fragments = by(unit_blocks, _UNIT_BLOCKS, lambda u: of.fragments(facts.sums * u))
    items = unit_blocks * tiles
    owned = ceil_div(items, _K_WARPS)
    matrix_registers = PAIR_REGISTERS * fragments * register_chunks
    spilled: Operand = 0
    if of.is_float:
        several = facts.operands > 1
        needed = (
            BASE_REGISTERS
            + facts.item_registers * owned
            + piece_registers(facts, items, _K_WARPS)
            + _FLOAT_SUM_REGISTERS * fragments * tiles
            + _FLOAT_REGISTERS
            + by(tiles, _TILES, lambda n: 2 * of.size * n * batch_of(n))
            + (_FLOAT_OPERAND_REGISTERS + _ADDRESS_REGISTERS * chunks * tiles if several else 0)
            + _FAR_REGISTERS * max(0, chunks - _NEAR_CHUNKS)
            + PAIR_REGISTERS * fragments
            + matrix_registers
        )
        spilled = require_registers(model, needed, registers_of(_K_WARPS))
    else:
        needed = (
            _BASE_REGISTERS
            + (ceil(facts.item_registers, 2) + _OPERAND_REGISTERS * facts.operands) * owned
            + by(unit_blocks, _UNIT_BLOCKS, lambda u: _ODD_REGISTERS * facts.operands if u == 3 else 0)
            + _TILE_REGISTERS * tiles
            + _SUM_REGISTERS * fragments * tiles
            + matrix_registers
        )
        model.require(
            needed <= registers_of(_K_WARPS),
            because="registers: of a thread, for its part of the matrix beside sums, operands and items",
        )
    halves = facts.sums * items
    matrix_kilobytes = _K_WARPS * fragments * (chunks - register_chunks)
    staged = _K_WARPS * of.operand_bytes * tiles if of.is_float else 0
    # One table of both, as the digits of a number in base 8.
    both = range(8 * max(_UNIT_BLOCKS) + 8)
    traffic_bytes = by(
        8 * unit_blocks + tiles, both, lambda key: facts.traffic_bytes(key // 8, TILE_COLUMNS * (key % 8))
    )
    shared_bytes = 256 * _K_WARPS * halves + PAIR_BYTES * matrix_kilobytes + staged + traffic_bytes
    require_shared(model, shared_bytes, target)

    columns = minimum(TILE_COLUMNS * tiles, by(unit_blocks, _UNIT_BLOCKS, lambda u: share(problem.columns, seats(u))))
    readers = problem.heads * blocks * ceil_div(problem.columns, columns)
    item = rate.grid_piece * facts.pieces + rate.operation * facts.operations
    step = (
        rate.poll * by(tiles, _TILES, lambda n: ceil(chunks, batch_of(n)))
        # Reads of L2 hide each other to a part.
        + ceil_div(6 * of.size * facts.operands * problem.units * columns * readers, target.l2_gb_s)
        + rate.grid_column * columns
        + rate.half * halves
        + of.product(rate) * ceil(_K_WARPS, 4) * chunks * fragments * tiles
        + rate.matrix * matrix_kilobytes
        + rate.spill * spilled
        + item * owned
    )
    return Draft(
        "grid",
        facts,
        model,
        step,
        step,
        step,
        needed,
        0,
        (unit_blocks, _K_WARPS, tiles, 2 * register_chunks),
        {
            "blocks": blocks,
            "unit_tile": 8 * unit_blocks,
            "k_warps": _K_WARPS,
            "column_tile": TILE_COLUMNS * tiles,
            "register_pairs": register_chunks,
            "shared_pairs": chunks - register_chunks,
            "spilled_registers": spilled,
        },
        blocks,
        32 * _K_WARPS,
        shared_bytes,
        registers_of(_K_WARPS),
        TILE_COLUMNS * tiles,
        capacity,
    )
