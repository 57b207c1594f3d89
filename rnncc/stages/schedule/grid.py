"""The model of the grid family: operands go through L2 to all CTAs of a head (GridShape in grid.cuh)."""

from __future__ import annotations

from rnncc.constrint import Model, ceil_div, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.family import GRID
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import ceil
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import (
    BASE_REGISTERS,
    PAIR_REGISTERS,
    TILE_BATCH,
    Draft,
    by,
    elements,
    fragments_of,
    held_variables,
    of_kinds,
    of_phases,
    piece_registers,
    registers_of,
    require_registers,
    require_shared,
    share,
    summed,
)
from rnncc.stages.schedule.facts import Facts, PhaseFacts
from rnncc.stages.schedule.rates import rates

_K_WARPS = 8  # such a CTA may use all registers of its SM, and each thread 255, the most there are
_UNIT_BLOCKS = (1, 2, 3, 4)
_TILES = (1, 2, 4)
_POLLED = 8  # pieces of 16 bytes that a lane asks for at a time
# Registers per thread beside its part of the matrix: for what it always has and the words it polls; per tile of the
# batch; per sums of 16 rows; per operand of an item, and more where an index is divided by 3. Half of an item's
# registers live while products run. These numbers are fitted to 386 kernels of 16-bit numbers that nvcc 13 made (LSTM,
# GRU, sLSTM and Elman, both ways, head_dim 768 to 4096): no kernel with at most 255 spills. Later 160 kernels were
# planned with them: three spill one register, and NAS's inference at 768 in float16 spills 24. (The model does not
# count how far nvcc interleaves an item's two elements.)
_BASE_REGISTERS, _TILE_REGISTERS, _SUM_REGISTERS, _OPERAND_REGISTERS, _ODD_REGISTERS = 33, 14, 5, 13, 8
_PHASE_REGISTERS = 6  # per phase but one
_RECEIVED_REGISTERS = 8  # where the reductions of a phase give several numbers
# In float32 a lane has its sums for all batch entries of a tile while it multiplies. With several operands nvcc keeps
# addresses, and more of them for each chunk beyond some.
_FLOAT_SUM_REGISTERS, _FLOAT_REGISTERS, _FLOAT_OPERAND_REGISTERS = 10, 16, 16
_ADDRESS_REGISTERS, _FAR_REGISTERS, _NEAR_CHUNKS = 2, 6, 16


def grid(facts: Facts, problem: Problem, target: Target) -> Draft:
    """Make the model for one loop, problem and GPU."""
    rate, element = rates(target), elements(problem)
    model = Model()
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # blocks of 8 units per CTA
    tiles = model.choice("tiles", _TILES)  # tiles of 8 batch entries per group
    phases = len(facts.phases)
    split = facts.split  # a kernel holds nothing where a sum does not take an operand

    def chunks_of(run: PhaseFacts) -> int:
        """Chunks of 32 terms per warp."""
        return ceil(run.operands * ceil(problem.head_dim, 32), _K_WARPS)

    own_chunks = [chunks_of(run) for run in split.products]
    phase_chunks = [sum(map(chunks_of, phase.runs)) for phase in facts.products]
    chunks = of_kinds(split, own_chunks)
    register_chunks = held_variables(model, "register_chunks", split, chunks)

    def ctas_of(unit_block_count: int) -> int:
        return ceil(problem.head_dim, 8 * unit_block_count)

    def seats(unit_block_count: int) -> int:
        return target.sms // (problem.heads * ctas_of(unit_block_count))

    def chunks_at_a_time(tile_count: int, product_chunks: int) -> int:
        polls = tile_count * element.size // 2
        return product_chunks if product_chunks * polls <= _POLLED else max(1, _POLLED // polls)

    reducing = [phase for phase in facts.phases if phase.reductions]
    parts = ceil(problem.head_dim, 32)  # of each reduction: what four blocks of units give, in a piece of 16 bytes

    def received_polls(tile_count: int) -> int:
        own = tile_count * ceil(parts, 4 * _K_WARPS)  # pieces that a lane receives for each number of a reduction
        return sum(ceil(own, max(1, _POLLED // phase.reductions)) for phase in reducing)

    def polls_of_products(tile_count: int) -> int:
        return sum(ceil(each, chunks_at_a_time(tile_count, each)) for each in phase_chunks)

    ctas = by(unit_blocks, _UNIT_BLOCKS, ctas_of)
    model.require(
        problem.heads * ctas <= target.sms, because="residency: the CTAs of all heads run at once, one per SM"
    )
    launch_batch = TILE_BATCH * tiles * by(unit_blocks, _UNIT_BLOCKS, seats)
    model.require(launch_batch >= problem.batch, because="batch: all groups of a launch must run at once")

    fragments = [by(unit_blocks, _UNIT_BLOCKS, fragments_of(element, sums)) for sums in split.kinds]
    most_fragments = by(
        unit_blocks,
        _UNIT_BLOCKS,
        lambda u: max(sum(element.fragments(run.sums * u) for run in phase.runs) for phase in facts.phases),
    )
    most_chunks, most_operands = max(phase_chunks, default=0), max(phase.operands for phase in facts.phases)
    items = unit_blocks * tiles
    owned = ceil_div(items, _K_WARPS)
    received_registers = _RECEIVED_REGISTERS * any(phase.reductions > 1 for phase in reducing)
    received_bytes = max((128 * ceil(phase.reductions * parts, 4) for phase in reducing), default=0)  # per tile
    halves = [sums * unit_blocks for sums in split.kinds]
    matrix_registers = PAIR_REGISTERS * summed(f * held for f, held in zip(fragments, register_chunks, strict=True))
    spilled: Operand = 0
    if element.is_float:
        several = most_operands > 1
        needed = (
            BASE_REGISTERS
            + facts.item_registers * owned
            + piece_registers(facts, items, _K_WARPS)
            + _FLOAT_SUM_REGISTERS * most_fragments * tiles
            + _FLOAT_REGISTERS
            + by(tiles, _TILES, lambda n: 2 * element.size * n * chunks_at_a_time(n, most_chunks))
            + (_FLOAT_OPERAND_REGISTERS + _ADDRESS_REGISTERS * most_chunks * tiles if several else 0)
            + _FAR_REGISTERS * max(0, most_chunks - _NEAR_CHUNKS)
            + PAIR_REGISTERS * most_fragments
            + received_registers
            + matrix_registers
        )
        spilled = require_registers(model, needed, registers_of(_K_WARPS))
    else:
        needed = (
            _BASE_REGISTERS
            + (ceil(facts.item_registers, 2) + _OPERAND_REGISTERS * most_operands) * owned
            + by(unit_blocks, _UNIT_BLOCKS, lambda u: _ODD_REGISTERS * most_operands if u == 3 else 0)
            + _TILE_REGISTERS * tiles
            + _SUM_REGISTERS * most_fragments * tiles
            + _PHASE_REGISTERS * (phases - 1)
            + received_registers
            + matrix_registers
        )
        model.require(
            needed <= registers_of(_K_WARPS),
            because="registers: a thread holds its part of the matrix, sums, operands and items",
        )
    shared_chunks = [most - held for most, held in zip(chunks, register_chunks, strict=True)]
    matrix_bytes = element.half_bytes * _K_WARPS * summed(h * own for h, own in zip(halves, shared_chunks, strict=True))
    staged = _K_WARPS * element.operand_bytes * tiles if element.is_float else 0
    # One table for the two choices: its key is 8 * unit_blocks + tiles.
    both = range(8 * max(_UNIT_BLOCKS) + 8)
    traffic_bytes = by(8 * unit_blocks + tiles, both, lambda key: facts.traffic_bytes(key // 8, TILE_BATCH * (key % 8)))
    shared_bytes = 256 * _K_WARPS * facts.sums * items + received_bytes * tiles + matrix_bytes + staged + traffic_bytes
    require_shared(model, shared_bytes, target)

    group = minimum(TILE_BATCH * tiles, by(unit_blocks, _UNIT_BLOCKS, lambda u: share(problem.batch, seats(u))))
    readers = problem.heads * ctas * ceil_div(problem.batch, group)
    item = rate.grid_piece * facts.pieces + rate.operation * facts.operations
    step = (
        rate.poll * by(tiles, _TILES, lambda n: polls_of_products(n) + received_polls(n))
        # Reads of L2 hide each other in part.
        + ceil_div(6 * element.size * facts.operands * problem.head_dim * group * readers, target.l2_gb_s)
        + rate.grid
        + phases * rate.grid_entry * group
        + rate.join * len(reducing)
        + rate.part * facts.reductions * parts
        + rate.half * sum(phase.sums for phase in facts.phases) * items
        + element.product(rate)
        * ceil(_K_WARPS, 4)
        * summed(f * n for f, n in zip(fragments, chunks, strict=True))
        * tiles
        + ceil_div(rate.matrix * matrix_bytes, 1024)
        + rate.spill * spilled
        + item * owned
    )
    return Draft(
        family=GRID,
        facts=facts,
        model=model,
        step=step,
        total=step,
        busy=step,
        needed=needed,
        overcount=0,
        shape=(unit_blocks, _K_WARPS, tiles, *of_phases(split, own_chunks, register_chunks)),
        tiles={
            "ctas": ctas,
            "unit_tile": 8 * unit_blocks,
            "k_warps": _K_WARPS,
            "batch_tile": TILE_BATCH * tiles,
            "register_pairs": summed(register_chunks),
            "shared_pairs": summed(shared_chunks),
            "spilled_registers": spilled,
        },
        ctas=ctas,
        threads=32 * _K_WARPS,
        shared_bytes=shared_bytes,
        registers=registers_of(_K_WARPS),
        group_batch=TILE_BATCH * tiles,
        launch_batch=launch_batch,
    )
