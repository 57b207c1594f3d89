"""The model of the sparse family: threads gather the operands of the elements that are not zero (SparseShape in
sparse.cuh)."""

from __future__ import annotations

import math
from functools import partial

from rnncc.constrint import Expression, Model, ceil_div, maximum, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.family import SPARSE
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import ceil
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import (
    Draft,
    by,
    elements,
    registers_of,
    require_at_most,
    require_shared,
    round_up,
    share,
    summed,
)
from rnncc.stages.schedule.facts import Facts, PhaseFacts
from rnncc.stages.schedule.rates import rates

_WARPS = 16
_LISTS = 32 * _WARPS  # what one thread multiplies is a list
_UNIT_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8)
_ENTRIES = (4, 8)  # of a group, in each turn
_TURNS = (1, 2)
_QUAD = 4  # words
_STAGED = (1, 2, 4, 6, 8, 10, 12)
_MOST_HELD = 12  # quads per thread in registers
_POLLED = 4  # pieces of 16 bytes that a lane asks for at a time
_MOST_PLACES = 1 << 16  # of operands in shared memory: a word names one in 16 bits
# Registers per thread besides the words that it holds: while it polls, without the pieces that it asks for; while it
# multiplies, without the sums; per phase but one; per turn but one; and per operand but one.
_POLL_REGISTERS, _PRODUCT_REGISTERS, _PHASE_REGISTERS, _TURN_REGISTERS, _OPERAND_REGISTERS = 54, 72, 6, 6, 5
# A row has about as many elements as the density says. Lists have room for so many hundredths of that number.
_ROOM = 103
# Where shared memory is left, lists have room for up to so many hundredths more. A mask that magnitudes have chosen has
# more elements in some rows and columns than in others, and what has no room is read from memory at every step.
_SPARE = 30


def sparse(facts: Facts, problem: Problem, target: Target) -> Draft:
    """Make the model for one loop, problem and GPU."""
    rate, element = rates(target), elements(problem)
    model = Model()
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # blocks of 8 units per CTA
    entries = model.choice("entries", _ENTRIES)  # batch entries per turn
    turns = model.choice("turns", _TURNS)

    def ctas_of(unit_block_count: int) -> int:
        return ceil(problem.head_dim, 8 * unit_block_count)

    def seats(unit_block_count: int) -> int:
        return target.sms // (problem.heads * ctas_of(unit_block_count))

    ctas = by(unit_blocks, _UNIT_BLOCKS, ctas_of)
    model.require(
        problem.heads * ctas <= target.sms, because="residency: the CTAs of all heads run at once, one per SM"
    )
    launch_batch = turns * entries * by(unit_blocks, _UNIT_BLOCKS, seats)
    model.require(launch_batch >= problem.batch, because="batch: all groups of a launch must run at once")
    most_rows = 8 * unit_blocks * facts.sums
    model.require(most_rows <= _LISTS, because="rows: each row of a CTA has a thread")
    depth = round_up(problem.head_dim, 32)
    most_terms = depth * max((phase.operands for phase in facts.products), default=0)
    if not element.is_float:
        require_at_most(model, "terms", most_terms, _MOST_PLACES - 128, "a word names its operand in 16 bits")

    def quads_of(phase: PhaseFacts, unit_block_count: int) -> int:
        """The longest list, in quads of words."""
        rows = 8 * unit_block_count * phase.sums
        if rows > _LISTS:
            return 1  # the requirement of rows rules this layout out
        assert phase.sparsity is not None
        of_row = math.ceil(phase.sparsity.density * problem.head_dim * phase.operands)
        # A row has whole lists. Rows alike have equally many; others leave half of their last list empty on average.
        lists = max(_LISTS // rows * rows, _LISTS - rows // 2)
        return max(2, ceil(max(ceil(of_row, _LISTS // rows), ceil(_ROOM * rows * of_row, 100 * lists)), _QUAD))

    products = facts.products
    quads = [by(unit_blocks, _UNIT_BLOCKS, partial(quads_of, phase)) for phase in products]
    poll_terms = by(entries, _ENTRIES, lambda n: 32 * 8 // n)  # that a warp asks for with a piece per lane
    held = model.integer("held_quads", 0, _MOST_HELD)
    left: Expression = held
    staged = model.choice("staged_quads", _STAGED)  # that go into registers in a round
    rounds = ceil_div(held, staged)
    shape: list[Operand] = []
    own = iter(quads)
    shared_quads: list[Expression] = []
    places: list[int] = []  # of these numbers in the shape
    for phase in facts.phases:
        if not phase.operands:
            shape += [0, 0]
            continue
        needed_quads = next(own)
        own_held = minimum(needed_quads - 1, left)
        left = left - own_held
        places.append(len(shape) + 1)
        shape += [own_held, needed_quads - own_held]
        shared_quads.append(needed_quads - own_held)
    model.require(left == 0, because="held: no more quads than there are")

    reducing = [phase for phase in facts.phases if phase.reductions]
    pieces = ceil(problem.head_dim, 32)  # of each reduction: what four blocks of units give, in a piece of 16 bytes
    received_bytes = max((128 * ceil(phase.reductions * pieces, 4) for phase in reducing), default=0)
    own_polls = maximum(
        *(ceil_div(ceil_div(phase.operands * depth, poll_terms), _WARPS) for phase in products), 1
    )  # of a warp, in a phase
    needed = (
        maximum(
            _POLL_REGISTERS + 2 * element.size * minimum(_POLLED * 2 // element.size, own_polls),
            _PRODUCT_REGISTERS + entries,
        )
        + _PHASE_REGISTERS * (len(facts.phases) - 1)
        + _TURN_REGISTERS * (turns - 1)
        + _OPERAND_REGISTERS * (max(phase.operands for phase in facts.phases) - 1)
        + 2 * _QUAD * element.size // 4 * held
    )
    model.require(needed <= registers_of(_WARPS), because="registers: a thread holds some of its words, sums and items")
    term_bytes = element.size * entries
    terms = by(entries, _ENTRIES, lambda n: round_up(most_terms, 32 * 8 // n))
    operand_bytes = 16 * ceil_div((terms + 1) * term_bytes, 16)
    partial_bytes = 4 * entries * (_LISTS + most_rows)
    info_bytes = 8 * 8 * unit_blocks * sum(phase.sums for phase in products)
    quad_bytes = _LISTS * 8 * element.size
    traffic_bytes = by(
        4 * unit_blocks + turns * entries // 4 - 1,
        range(4, 4 * max(_UNIT_BLOCKS) + 4),
        lambda key: facts.traffic_bytes(key // 4, 4 * (key % 4 + 1)),
    )
    shared_bytes = (
        partial_bytes
        + received_bytes
        + info_bytes
        + maximum(operand_bytes, 2 * 4 * _LISTS, quad_bytes * staged)
        + quad_bytes * summed(shared_quads)
        + traffic_bytes
    )
    require_shared(model, shared_bytes, target)
    left_bytes: Expression = target.shared_bytes - shared_bytes
    for number, (own_quads, in_shared) in enumerate(zip(quads, shared_quads, strict=True)):
        more = minimum(ceil_div(_SPARE * own_quads, 100), left_bytes // quad_bytes)
        left_bytes = left_bytes - quad_bytes * more
        shape[places[number]] = in_shared + more

    group = minimum(turns * entries, by(unit_blocks, _UNIT_BLOCKS, lambda u: share(problem.batch, seats(u))))
    readers = problem.heads * ctas * ceil_div(problem.batch, group)
    item = rate.grid_piece * facts.pieces + rate.operation * facts.operations
    at_once = _WARPS * _POLLED // (element.size // 2)  # so many times poll_terms, by all warps
    polls = summed(ceil_div(ceil_div(phase.operands * depth, poll_terms), at_once) for phase in products)
    # While operands are on their way, a CTA has no work but that of the other turn.
    waiting = len(facts.phases) * rate.sparse + rate.poll * polls + rate.join * len(reducing)
    work = len(facts.phases) * rate.turn + (
        # Reads of L2 hide each other in part.
        ceil_div(
            6 * element.size * facts.operands * problem.head_dim * minimum(entries, group) * readers, target.l2_gb_s
        )
        + rate.part * facts.reductions * pieces
        # A word is multiplied by its operands of all entries.
        + by(entries, _ENTRIES, lambda n: rate.word * (2 + 3 * n) * element.size // 2) * _QUAD * summed(quads)
        + ceil_div(rate.matrix * quad_bytes * summed(shared_quads), 1024)
        + item
    )
    # A round is a pass through the matrices before the first step. It costs a step nothing, but fewer are better.
    step = maximum(waiting + work, turns * work) + rounds
    return Draft(
        family=SPARSE,
        facts=facts,
        model=model,
        step=step,
        total=step,
        busy=step,
        needed=needed,
        overcount=0,
        shape=(unit_blocks, _WARPS, turns, entries, staged, *shape),
        tiles={
            "ctas": ctas,
            "unit_tile": 8 * unit_blocks,
            "batch_tile": entries,
            "turns": turns,
            "words_per_thread": _QUAD * summed(quads),
            "register_words": _QUAD * held,
            "spilled_registers": 0,
        },
        ctas=ctas,
        threads=32 * _WARPS,
        shared_bytes=target.shared_bytes - left_bytes,
        registers=registers_of(_WARPS),
        group_batch=turns * entries,
        launch_batch=launch_batch,
    )
