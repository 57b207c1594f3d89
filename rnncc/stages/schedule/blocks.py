"""The model of the blocks family: warps multiply those squares of matrices that are not zero (BlocksShape in
blocks.cuh)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from rnncc.constrint import Expression, Model, ceil_div, maximum, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.family import BLOCKS
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import ceil
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import (
    Draft,
    by,
    registers_of,
    require_at_most,
    require_shared,
    round_up,
    share,
    summed,
)
from rnncc.stages.schedule.facts import Facts, PhaseFacts
from rnncc.stages.schedule.rates import rates

SQUARE = 16  # rows of a sum, and terms of an operand
_WARPS = 16
_UNIT_BLOCKS = (2, 4, 6, 8)
_TILES = (1, 2)  # of 8 batch entries, in each turn
_TURNS = (1, 2)
_MOST_HELD = 12  # squares per warp in registers
_MESSAGES = 8  # pieces of 16 bytes that a lane asks for at a time
# Registers per thread: while it polls, but for the pieces; while it multiplies, but for the sums; per phase but one;
# per turn but one; and per square that it holds.
_POLL_REGISTERS, _PRODUCT_REGISTERS, _PHASE_REGISTERS, _TURN_REGISTERS, _SQUARE_REGISTERS = 60, 60, 6, 6, 4
# Blocks fall unevenly on CTAs and warps. There is room for the mean and so many standard deviations.
_DEVIATIONS = 4


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a CTA has of a phase: its bands, the strips of all operands, those of which some band has a square, and the
    squares per warp. `most_…`: what it has room for."""

    bands: int
    strips: int
    taken: int
    most_taken: int
    most_squares: int


def _expected(phase: PhaseFacts, head_dim: int, unit_blocks: int) -> _Expected:
    assert phase.sparsity is not None
    density = phase.sparsity.density
    bands = phase.sums * unit_blocks // 2
    strips = phase.operands * round_up(head_dim, 32) // SQUARE
    if bands > _WARPS:
        return _Expected(bands, strips, 1, 1, 1)

    def at_most(count: int, share: float) -> int:
        """Of so many things each is there with this probability."""
        return min(count, math.ceil(count * share + _DEVIATIONS * math.sqrt(count * share * (1 - share))))

    some = 1 - (1 - density) ** bands
    # Where bands have no more squares than the density says, but all in different strips, there is room, too.
    most = max(at_most(strips, some), min(strips, math.ceil(strips * density * bands)))
    lists = max(_WARPS // bands * bands, _WARPS - bands // 2)
    return _Expected(bands, strips, math.ceil(strips * some), most, ceil(at_most(bands * strips, density), lists))


def blocks(facts: Facts, problem: Problem, target: Target) -> Draft:
    """Make the model for one loop, problem and GPU."""
    rate = rates(target)
    model = Model()
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

    def each(phase: PhaseFacts, name: str) -> Expression:
        """A number of `_Expected` for each unit tile."""
        return by(unit_blocks, _UNIT_BLOCKS, lambda n: getattr(_expected(phase, problem.head_dim, n), name))

    ctas = by(unit_blocks, _UNIT_BLOCKS, ctas_of)
    model.require(
        problem.heads * ctas <= target.sms, because="residency: the CTAs of all heads run at once, one per SM"
    )
    group_batch = 8 * tiles * turns
    launch_batch = group_batch * by(unit_blocks, _UNIT_BLOCKS, seats)
    model.require(launch_batch >= problem.batch, because="batch: all groups of a launch must run at once")
    model.require(facts.sums * unit_blocks <= 2 * _WARPS, because="rows: each band of 16 rows of a CTA has a warp")

    products = facts.products
    most_squares = [each(phase, "most_squares") for phase in products]
    room = [each(phase, "most_taken") for phase in products]
    held = model.integer("held_squares", 0, _MOST_HELD)
    left: Expression = held
    shape: list[Operand] = []
    in_shared: list[Expression] = []
    numbers = iter(zip(most_squares, room, strict=True))
    for phase in facts.phases:
        if not phase.operands:
            shape += [0, 0, 0]
            continue
        squares, strips = next(numbers)
        taken = minimum(squares, left)
        left = left - taken
        shape += [taken, squares - taken, strips]
        in_shared.append(squares - taken)
    model.require(left == 0, because="held: no more squares than there are")

    reductions = [phase for phase in facts.phases if phase.reductions]
    parts = ceil(problem.head_dim, 32)
    received_bytes = max((128 * ceil(phase.reductions * parts, 4) for phase in reductions), default=0) * tiles
    needed = (
        maximum(_POLL_REGISTERS + 4 * _MESSAGES, _PRODUCT_REGISTERS + 8 * tiles)
        + _PHASE_REGISTERS * (len(facts.phases) - 1)
        + _TURN_REGISTERS * (turns - 1)
        + _SQUARE_REGISTERS * held
    )
    model.require(needed <= registers_of(_WARPS), because="registers: a warp holds some of its squares")
    info_bytes = summed(
        by(unit_blocks, _UNIT_BLOCKS, partial(_info_bytes, phase, problem.head_dim)) for phase in products
    )
    strip_bytes = 256 * tiles
    traffic_bytes = by(
        8 * unit_blocks + tiles * turns,
        range(8 * max(_UNIT_BLOCKS) + 5),
        lambda key: facts.traffic_bytes(key // 8, 8 * (key % 8)),
    )
    square_bytes = 512 * _WARPS
    shared_bytes = (
        square_bytes * tiles
        + received_bytes
        + strip_bytes * (maximum(*room, 1) + 1)
        + square_bytes * summed(in_shared)
        + 16 * ceil_div(info_bytes, 16)
        + traffic_bytes
    )
    require_shared(model, shared_bytes, target)

    readers = problem.heads * ctas
    group = minimum(group_batch, by(unit_blocks, _UNIT_BLOCKS, lambda n: share(problem.batch, seats(n))))
    item = (rate.grid_piece * facts.pieces + rate.operation * facts.operations) * ceil_div(unit_blocks * tiles, _WARPS)
    asked_for = [each(phase, "taken") for phase in products]
    polls = summed(ceil_div(tiles * ceil_div(strips, 2 * _WARPS), _MESSAGES) for strips in asked_for)
    waiting = len(facts.phases) * rate.sparse + rate.poll * polls + rate.join * len(reductions)
    work = (
        len(facts.phases) * rate.turn
        + ceil_div(
            6 * SQUARE * problem.element_bytes * summed(asked_for) * minimum(8 * tiles, group) * readers, target.l2_gb_s
        )
        + rate.part * facts.reductions * parts
        # The four warps of a quarter of the SM.
        + _WARPS // 4 * rate.product * tiles * summed(most_squares)
        + ceil_div(rate.matrix * square_bytes * (summed(in_shared) + ceil_div(tiles * summed(most_squares), 2)), 1024)
        + item
    )
    step = maximum(waiting + work, turns * work)
    return Draft(
        family=BLOCKS,
        facts=facts,
        model=model,
        step=step,
        total=step,
        busy=step,
        needed=needed,
        overcount=0,
        shape=(unit_blocks, _WARPS, tiles, turns, *shape),
        tiles={
            "ctas": ctas,
            "unit_tile": 8 * unit_blocks,
            "batch_tile": 8 * tiles,
            "turns": turns,
            "squares_per_warp": summed(most_squares),
            "register_squares": held,
            "spilled_registers": 0,
        },
        ctas=ctas,
        threads=32 * _WARPS,
        shared_bytes=shared_bytes,
        registers=registers_of(_WARPS),
        group_batch=group_batch,
        launch_batch=launch_batch,
    )


def _info_bytes(phase: PhaseFacts, head_dim: int, unit_blocks: int) -> int:
    """Shared memory for the places of a phase's squares."""
    found = _expected(phase, head_dim, unit_blocks)
    bits = found.bands * ceil(found.strips, 32) * 4
    return bits + 4 * found.bands + 4 * ceil(found.most_taken, 2) + 4 * _WARPS * ceil(found.most_squares, 2)
