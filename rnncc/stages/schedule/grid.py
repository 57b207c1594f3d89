"""The model of the grid family: operands go through L2 to all CTAs of a head (GridShape in grid.cuh)."""

from __future__ import annotations

from collections.abc import Callable

from rnncc.constrint import Expression, Model, by, ceil_div, maximum, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.family import GRID
from rnncc.ir.layout import ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.cost import LoopCost
from rnncc.stages.schedule.lanes import LaneProduct, Lanes, float_sum_registers, lane_rows_variable
from rnncc.stages.schedule.layout_model import (
    BASE_REGISTERS,
    EXCHANGE_STEPS,
    PAIR_REGISTERS,
    TILE_BATCH,
    LayoutModel,
    batch_variable,
    elements,
    held_variables,
    of_kinds,
    of_phases,
    piece_registers,
    registers_of,
    require_registers,
    require_shared,
    share,
    summed,
    tensor_products,
)
from rnncc.stages.schedule.parts import K_WARPS, Part, phase_parts
from rnncc.stages.schedule.rates import rates

_UNIT_BLOCKS = (1, 2, 3, 4)
_MORE_UNIT_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8)  # where relayed sums are dealt out: then units hold less of the matrices
_TILES = (1, 2, 4)
_POLLED = 8  # pieces of 16 bytes that a lane asks for at a time
_MORE_POLLED = (8, 16)  # the same where relayed sums are dealt out
_POLLED_REGISTERS = 4  # for each piece beyond _POLLED
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
_FLOAT_REGISTERS, _FLOAT_OPERAND_REGISTERS = 16, 16
_ADDRESS_REGISTERS, _FAR_REGISTERS, _NEAR_CHUNKS = 2, 6, 16


def grid(cost: LoopCost, problem: Problem, target: Target) -> LayoutModel:
    """Make the model for one loop, problem and GPU."""
    rate, element = rates(target), elements(problem)
    model = Model()
    narrow = cost.narrow(problem)
    if narrow:
        cost = cost.dealt(problem)
    choices = _MORE_UNIT_BLOCKS if narrow else _UNIT_BLOCKS
    batch = batch_variable(model)
    unit_blocks = model.choice("unit_blocks", choices)  # blocks of 8 units per CTA
    tiles = model.choice("tiles", _TILES)  # tiles of 8 batch entries per group
    polled = model.choice("polled", _MORE_POLLED) if narrow else _POLLED  # pieces that a lane asks for at a time
    phases = len(cost.phases)

    def ctas_of(unit_block_count: int) -> int:
        return ceil(problem.head_dim, 8 * unit_block_count)

    parted = [*phase_parts(cost, problem.head_dim, narrow, ctas_of)]
    products = [part for phase in parted for part in phase.parts]  # what warps hold and multiply
    kinds = {part.kind: part for part in products}
    own_chunks = [part.chunks for part in products]
    chunks = of_kinds([part.kind for part in products], own_chunks)
    register_chunks = held_variables(model, "register_chunks", chunks)
    lane_rows = lane_rows_variable(model, element.is_float)

    def seats(unit_block_count: int) -> int:
        return target.sms // (problem.heads * ctas_of(unit_block_count))

    def chunks_at_a_time(tile_count: int, product_chunks: int, most: int = _POLLED) -> int:
        polls = tile_count * element.size // 2
        return product_chunks if product_chunks * polls <= most else max(1, most // polls)

    reducing = [phase for phase in cost.phases if phase.reductions]
    pieces = ceil(problem.head_dim, 32)  # of each reduction: what four blocks of units give, in a piece of 16 bytes
    phase_chunks = [phase.chunks for phase in parted if phase.parts]

    def received_polls(tile_count: int) -> int:
        own = tile_count * ceil(pieces, 4 * K_WARPS)  # pieces that a lane receives for each number of a reduction
        return sum(ceil(own, max(1, _POLLED // phase.reductions)) for phase in reducing)

    def polls_of_products(tile_count: int, most: int) -> int:
        return sum(ceil(each, chunks_at_a_time(tile_count, each, most)) for each in phase_chunks)

    def by_polls(function: Callable[[int, int], int]) -> Expression:
        """A function of the tiles, and of how many pieces a lane asks for at a time."""
        return by((tiles, polled), function)

    def fragments_of(part: Part) -> Expression:
        return by(unit_blocks, lambda u: element.fragments(part.halves(u)))

    ctas = by(unit_blocks, ctas_of)
    model.require(
        problem.heads * ctas <= target.sms, because="residency: the CTAs of all heads run at once, one per SM"
    )
    launch_batch = TILE_BATCH * tiles * by(unit_blocks, seats)
    model.require(launch_batch >= batch, because="batch: all groups of a launch must run at once")
    if (runs := max(phase.runs for phase in parted)) > 1:
        model.require(ctas >= runs, because="runs: each CTA has relayed sums that take the same operands")

    fragments = [*map(fragments_of, kinds.values())]

    def sums_of(unit_block_count: int) -> int:
        """The most sums of 16 rows that a warp has of a phase, or of 8 rows in float32."""
        return max(sum(element.fragments(part.halves(unit_block_count)) for part in phase.parts) for phase in parted)

    def sum_registers(unit_block_count: int, row_limit: int) -> int:
        """The registers for them in float32."""
        return max(float_sum_registers(phase.halves_of_warp(unit_block_count), row_limit) for phase in parted)

    most_fragments = by(unit_blocks, sums_of)
    most_chunks = max(phase_chunks, default=0)
    most_operands = max(phase.made for phase in parted)
    items = unit_blocks * tiles
    owned = ceil_div(items, K_WARPS)
    received_registers = _RECEIVED_REGISTERS * any(phase.reductions > 1 for phase in reducing)
    received_bytes = max((128 * ceil(phase.reductions * pieces, 4) for phase in reducing), default=0)  # per tile
    halves = [by(unit_blocks, part.halves) for part in kinds.values()]
    matrix_registers = PAIR_REGISTERS * summed(f * held for f, held in zip(fragments, register_chunks, strict=True))
    spilled: Operand = 0
    if element.is_float:
        several = most_operands > 1
        needed = (
            BASE_REGISTERS
            + cost.item_registers * owned
            + piece_registers(cost, items, K_WARPS)
            + by((unit_blocks, lane_rows), sum_registers) * tiles
            + _FLOAT_REGISTERS
            + by_polls(lambda n, most: 2 * element.size * n * chunks_at_a_time(n, most_chunks, most))
            + (_FLOAT_OPERAND_REGISTERS + _ADDRESS_REGISTERS * most_chunks * tiles if several else 0)
            + _FAR_REGISTERS * max(0, most_chunks - _NEAR_CHUNKS)
            + PAIR_REGISTERS * most_fragments
            + received_registers
            + matrix_registers
        )
        spilled = require_registers(model, needed, registers_of(K_WARPS))
    else:
        needed = (
            _BASE_REGISTERS
            + (ceil(cost.item_registers, 2) + _OPERAND_REGISTERS * most_operands) * owned
            + by(unit_blocks, lambda u: _ODD_REGISTERS * most_operands if u & (u - 1) else 0)
            + _TILE_REGISTERS * tiles
            + _SUM_REGISTERS * most_fragments * tiles
            + _PHASE_REGISTERS * (phases - 1)
            + by_polls(lambda n, most: _POLLED_REGISTERS * max(0, n * chunks_at_a_time(n, most_chunks, most) - _POLLED))
            + received_registers
            + matrix_registers
        )
        model.require(
            needed <= registers_of(K_WARPS),
            because="registers: a thread holds its part of the matrix, sums, operands and items",
        )
    shared_chunks = [most - held for most, held in zip(chunks, register_chunks, strict=True)]
    matrix_bytes = element.half_bytes * K_WARPS * summed(h * own for h, own in zip(halves, shared_chunks, strict=True))
    staged = K_WARPS * element.operand_bytes * tiles if element.is_float else 0
    traffic_bytes = by((unit_blocks, tiles), lambda u, n: cost.traffic_bytes(u, TILE_BATCH * n))
    most_parts = by(unit_blocks, lambda u: max(phase.halves(u) * phase.sharers for phase in parted))
    shared_bytes = 256 * most_parts * tiles + received_bytes * tiles + matrix_bytes + staged + traffic_bytes
    require_shared(model, shared_bytes, target)

    group = minimum(TILE_BATCH * tiles, share(batch, by(unit_blocks, seats)))
    # It is as if the two SMs of a TPC shared their way to L2: where both have CTAs of a head, they ask for the same
    # lines, which come once, but later. It was measured in 16 bits alone, and with one phase.
    alone = target.sms if element.is_float else target.sms // 2
    readers = problem.heads * minimum(ctas, alone) * ceil_div(batch, group)
    item = rate.grid_piece * cost.read_pieces + rate.item_operation * cost.operations
    polls = by_polls(polls_of_products)
    received_bytes_per_entry = element.size * sum(phase.terms for phase in parted)
    waits = (
        rate.grid_poll * polls
        # Reads of L2 hide each other in part.
        + ceil_div(rate.grid_l2_byte * received_bytes_per_entry * group * readers, target.l2_gb_s)
        + phases * rate.grid_entry * group
    )
    if element.is_float:
        lanes = Lanes(rate, K_WARPS, unit_blocks, lane_rows)
        of_phase = {part.kind: phase.halves_of_warp for phase in parted for part in phase.parts}
        own = [LaneProduct(part.halves, phase.halves_of_warp, part.chunks) for phase in parted for part in phase.parts]
        folded = lanes.folded(LaneProduct(phase.halves_of_warp, phase.halves_of_warp) for phase in parted)
        product_time = (lanes.products(own) + folded) * tiles
        shared = zip(kinds.values(), shared_chunks, strict=True)
        matrix_time = lanes.matrices(LaneProduct(part.halves, of_phase[part.kind], left) for part, left in shared)
    else:
        fragments_and_chunks = [(fragments_of(part), part.chunks) for phase in parted for part in phase.parts]
        product_time = tensor_products(rate, K_WARPS, fragments_and_chunks) * tiles
        matrix_time = ceil_div(rate.matrix_read_per_kb * matrix_bytes, 1024)
    # Two warps share a quarter of an SM, and one multiplies while the other one waits. A step takes what one of them
    # waits and multiplies, or the wait for the first operands of each phase, and the products of both.
    multiplied: Operand = waits + product_time
    if not element.is_float and any(polls_of_products(n, _POLLED) > len(phase_chunks) for n in _TILES):
        first = ceil_div(len(phase_chunks) * waits, polls)
        multiplied = maximum(waits + ceil_div(product_time, ceil(K_WARPS, 4)), first + product_time)
    step = (
        multiplied
        + rate.grid_poll * by(tiles, received_polls)
        + phases * rate.grid_phase
        + rate.reduction_part * cost.reductions * pieces
        + matrix_time
        + rate.register_spill * spilled
        + item * owned
    )
    held_kinds = [kind for phase in parted for kind in ([part.kind for part in phase.parts] or [None])]
    return LayoutModel(
        family=GRID,
        cost=cost,
        model=model,
        batch=batch,
        step=step,
        total=step,
        busy=step,
        needed=needed,
        overcount=0,
        shape=(unit_blocks, K_WARPS, tiles, lane_rows, *of_phases(held_kinds, own_chunks, register_chunks)),
        tiles={
            "ctas": ctas,
            "unit_tile": 8 * unit_blocks,
            "k_warps": K_WARPS,
            "batch_tile": TILE_BATCH * tiles,
            "register_pairs": summed(register_chunks),
            "shared_pairs": summed(shared_chunks),
            "spilled_registers": spilled,
            **({"lane_rows": lane_rows} if element.is_float else {}),
            **({"narrow": narrow, "polled": polled} if narrow else {}),
        },
        ctas=ctas,
        threads=32 * K_WARPS,
        shared_bytes=shared_bytes,
        registers=registers_of(K_WARPS),
        group_batch=TILE_BATCH * tiles,
        launch_batch=launch_batch,
        exchange_steps=EXCHANGE_STEPS,
        relayed=(narrow, polled) if narrow else (),
    )
