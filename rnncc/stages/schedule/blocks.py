"""The model of the blocks family: warps multiply those squares of matrices that are not zero (BlocksShape in
blocks.cuh)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rnncc.constrint import Expression, Model, by, ceil_div, maximum, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.family import BLOCKS
from rnncc.ir.layout import ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.cost import LoopCost, PhaseCost
from rnncc.stages.schedule.layout_model import (
    EXCHANGE_STEPS,
    LayoutModel,
    batch_variable,
    registers_of,
    require_at_most,
    require_shared,
    round_up,
    share,
    summed,
)
from rnncc.stages.schedule.rates import rates

SQUARE = 16  # rows of a sum, and terms of an operand
_WARPS = (8, 16)
_UNIT_BLOCKS = (2, 4, 6, 8)
_TILES = (1, 2)  # of 8 batch entries, in each turn
_TURNS = (1, 2)
_MOST_HELD = 28  # squares per warp in registers
_MOST_STRIPS = (1 << 12) - 1  # with the one of zeros behind them
_MOST_SQUARES = 60  # per warp
_MESSAGES = 128  # pieces of 16 bytes that a lane of each warp asks for at a time, together
# Registers per thread: while it polls, without the pieces that it asks for; while it multiplies, without the sums; per
# phase but one; per turn but one; and per square that it holds.
_POLL_REGISTERS, _PRODUCT_REGISTERS, _PHASE_REGISTERS, _TURN_REGISTERS, _SQUARE_REGISTERS = 78, 78, 6, 6, 4
# Blocks fall unevenly on CTAs and warps. There is room for the mean plus so many standard deviations.
_DEVIATIONS = 3.7
# Where shared memory is left, there is room for up to so many hundredths more squares and strips. A mask that
# magnitudes have chosen has more blocks in some rows and columns than in others. A CTA that has no room for all its
# blocks reads them from memory at every step.
_SPARE = 30


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a CTA has of a phase.

    bands         bands of 16 rows
    strips        strips of all operands
    taken         the strips that some band is expected to take
    room          the strips for which the CTA has room
    squares       the squares for which a warp has room
    """

    bands: int
    strips: int
    taken: int
    room: int
    squares: int


def _expected(phase: PhaseCost, head_dim: int, unit_blocks: int, warps: int) -> _Expected:
    assert phase.sparsity is not None
    density = phase.sparsity.density
    bands = max(1, phase.sums * unit_blocks // 2)
    strips = phase.operands * round_up(head_dim, 32) // SQUARE
    if bands > warps:
        return _Expected(bands, strips, 1, 1, 1)

    def at_most(count: int, probability: float) -> int:
        """How many of `count` things there are, each with this probability, but for rare cases."""
        deviation = math.sqrt(count * probability * (1 - probability))
        return min(count, math.ceil(count * probability + _DEVIATIONS * deviation))

    some = 1 - (1 - density) ** bands  # the probability that some band takes a strip
    # There is also room where bands have as many squares as the density says, and all in different strips.
    room = max(at_most(strips, some), min(strips, math.ceil(strips * density * bands)))
    squares = 4 * ceil(at_most(bands * strips, density), 4 * warps)
    return _Expected(bands, strips, math.ceil(strips * some), room, squares)


def blocks(cost: LoopCost, problem: Problem, target: Target) -> LayoutModel:
    """Make the model for one loop, problem and GPU."""
    rate = rates(target)
    model = Model()
    batch = batch_variable(model)
    warps = model.choice("warps", _WARPS)
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # blocks of 8 units per CTA
    tiles = model.choice("entry_tiles", _TILES)
    turns = model.choice("turns", _TURNS)
    require_at_most(
        model,
        "bytes per element",
        problem.element_bytes,
        2,
        "tensor cores multiply 16-bit numbers; choose bf16 or fp16",
    )

    def ctas_of(unit_block_count: int) -> int:
        return ceil(problem.head_dim, 8 * unit_block_count)

    def seats(unit_block_count: int) -> int:
        return target.sms // (problem.heads * ctas_of(unit_block_count))

    def each(phase: PhaseCost, number: Callable[[_Expected, int], int]) -> Expression:
        """A number that follows from what a CTA has of a phase and from its warps, for each choice of both."""

        def of(unit_block_count: int, warp_count: int) -> int:
            return number(_expected(phase, problem.head_dim, unit_block_count, warp_count), warp_count)

        return by((unit_blocks, warps), of)

    ctas = by(unit_blocks, ctas_of)
    model.require(
        problem.heads * ctas <= target.sms, because="residency: the CTAs of all heads run at once, one per SM"
    )
    group_batch = 8 * tiles * turns
    launch_batch = group_batch * by(unit_blocks, seats)
    model.require(launch_batch >= batch, because="batch: all groups of a launch must run at once")
    model.require(cost.sums * unit_blocks <= 2 * warps, because="rows: each band of 16 rows of a CTA has a warp")
    products = cost.products
    warp_squares = [each(phase, lambda own, _: own.squares) for phase in products]
    model.require(
        maximum(*warp_squares, 1) <= _MOST_SQUARES, because="squares: a warp has few enough to know where bands begin"
    )
    room = [each(phase, lambda own, _: own.room) for phase in products]
    model.require(maximum(*room, 1) <= _MOST_STRIPS, because="strips: a place among them has twelve bits")
    held = 4 * model.integer("held_fours", 0, _MOST_HELD // 4)
    left: Expression = held
    in_registers: list[Expression] = []
    for squares in warp_squares:
        in_registers.append(minimum(squares, left))
        left = left - in_registers[-1]
    in_shared = [squares - own_held for squares, own_held in zip(warp_squares, in_registers, strict=True)]
    model.require(left == 0, because="held: no more squares than there are")

    reducing = [phase for phase in cost.phases if phase.reductions]
    pieces = ceil(problem.head_dim, 32)  # of each reduction: what four blocks of units give, in a piece of 16 bytes
    received_bytes = max((128 * ceil(phase.reductions * pieces, 4) for phase in reducing), default=0) * tiles
    needed = (
        maximum(_POLL_REGISTERS + 4 * _MESSAGES // warps, _PRODUCT_REGISTERS + 8 * tiles)
        + _PHASE_REGISTERS * (len(cost.phases) - 1)
        + _TURN_REGISTERS * (turns - 1)
        + _SQUARE_REGISTERS * held
    )
    model.require(needed <= by(warps, registers_of), because="registers: a warp holds some of its squares")
    info_bytes = [each(phase, lambda own, _: own.bands * (ceil(own.strips, 32) * 4 + 4)) for phase in products]
    strip_bytes = 256 * tiles
    traffic_bytes = by((unit_blocks, tiles, turns), lambda u, n, turn_count: cost.traffic_bytes(u, 8 * n * turn_count))
    square_bytes = 512 * warps

    def shared_with(more_squares: Sequence[Operand], more_strips: Sequence[Operand]) -> Expression:
        """Shared memory with room for so many more squares per warp, and strips, of each phase."""
        strips = [own + more for own, more in zip(room, more_strips, strict=True)]
        info = summed(
            8 * ceil_div(before + 2 * own_strips, 8) + 2 * warps * (squares + more + 4)
            for before, own_strips, squares, more in zip(info_bytes, strips, warp_squares, more_squares, strict=True)
        )
        return (
            512 * tiles * (warps + by(unit_blocks, lambda n: cost.sums * n // 2))
            + received_bytes
            + strip_bytes * (maximum(*strips, 1) + 1)
            + square_bytes * summed([*in_shared, *more_squares])
            + 16 * ceil_div(info, 16)
            + traffic_bytes
        )

    none: list[Operand] = [0 for _ in products]
    needed_bytes = shared_with(none, none)
    require_shared(model, needed_bytes, target)
    # What is left goes to squares, four at a time, then to strips. The places of each phase, and of all, are padded.
    padding = 8 * len(products) + 16
    left_bytes: Expression = target.shared_bytes - needed_bytes - padding
    more_squares: list[Operand] = []
    more_strips: list[Operand] = []
    for squares in warp_squares:
        four_bytes = 4 * (square_bytes + 2 * warps)
        fours = minimum(
            ceil_div(_SPARE * squares, 400),
            (_MOST_SQUARES - squares) // 4,
            left_bytes // (len(products) * four_bytes),
        )
        more_squares.append(4 * maximum(fours, 0))
    left_bytes = left_bytes - (square_bytes + 2 * warps) * summed(more_squares)
    for phase, strips in zip(products, room, strict=True):
        most = minimum(each(phase, lambda own, _: own.strips), _MOST_STRIPS)
        more = minimum(ceil_div(_SPARE * strips, 100), most - strips, left_bytes // (strip_bytes + 2 * len(products)))
        more_strips.append(maximum(more, 0))
    shared_bytes = shared_with(more_squares, more_strips)
    shape: list[Operand] = []
    numbers = iter(zip(in_registers, in_shared, more_squares, room, more_strips, strict=True))
    for phase in cost.phases:
        if phase.operands:
            own_held, own_shared, squares_too, strips, strips_too = next(numbers)
            shape += [own_held, own_shared + squares_too, strips + strips_too]
        else:
            shape += [0, 0, 0]

    readers = problem.heads * ctas
    group = minimum(group_batch, share(batch, by(unit_blocks, seats)))
    item = rate.grid_piece * cost.read_pieces + rate.item_operation * cost.operations
    owned = ceil_div(unit_blocks * tiles, warps)
    asked_for = [each(phase, lambda own, _: own.taken) for phase in products]
    polls = summed(ceil_div(tiles * ceil_div(strips, 2), _MESSAGES) for strips in asked_for)
    entries = minimum(8 * tiles, group)
    phase_wait = rate.sparse_phase_wait + rate.sparse_entry_wait * entries
    waiting = len(cost.phases) * phase_wait
    asked_bytes = SQUARE * problem.element_bytes * summed(asked_for)  # per batch entry
    # Squares in shared memory, and for each square its operands, which have half of its bytes.
    read_squares = summed(in_shared) + ceil_div(tiles * summed(warp_squares), 2)
    work = (
        len(cost.phases) * rate.sparse_turn
        + rate.sparse_poll * polls
        # Reads of L2 hide each other for the most part.
        + ceil_div(rate.sparse_l2_byte * asked_bytes * entries * readers, target.l2_gb_s)
        + ceil_div(rate.sparse_operand_store_per_kb * asked_bytes * 8 * tiles, 1024)
        + rate.reduction_part * cost.reductions * pieces
        # A quarter of the SM multiplies for a fourth of the warps.
        + ceil_div(warps, 4) * (rate.blocks_square + rate.tensor_core_product * tiles) * summed(warp_squares)
        + ceil_div(rate.matrix_read_per_kb * square_bytes * read_squares, 1024)
        + item * owned
    )
    step = maximum(waiting + work, turns * work)
    return LayoutModel(
        family=BLOCKS,
        cost=cost,
        model=model,
        batch=batch,
        step=step,
        total=step,
        busy=step,
        needed=needed,
        overcount=0,
        shape=(unit_blocks, warps, tiles, turns, *shape),
        tiles={
            "ctas": ctas,
            "unit_tile": 8 * unit_blocks,
            "warps": warps,
            "batch_tile": 8 * tiles,
            "turns": turns,
            "squares_per_warp": summed(warp_squares),
            "register_squares": held,
            "spilled_registers": 0,
        },
        ctas=ctas,
        threads=32 * warps,
        shared_bytes=shared_bytes,
        registers=by(warps, registers_of),
        group_batch=group_batch,
        launch_batch=launch_batch,
        exchange_steps=EXCHANGE_STEPS,
    )
