"""The model of the sparse family: threads gather the operands of the elements that are not zero (SparseShape in
sparse.cuh)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import NormalDist

from rnncc.constrint import Expression, Model, by, ceil_div, maximum, minimum
from rnncc.constrint.expr import Operand
from rnncc.ir.family import SPARSE
from rnncc.ir.layout import ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.cost import LoopCost, PhaseCost
from rnncc.stages.schedule.layout_model import (
    EXCHANGE_STEPS,
    LayoutModel,
    batch_variable,
    elements,
    registers_of,
    require_registers,
    require_shared,
    round_up,
    share,
    summed,
)
from rnncc.stages.schedule.rates import rates

_WARPS = 16
_LISTS = 32 * _WARPS  # what one thread multiplies is a list
_UNIT_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8)
_ENTRIES = (4, 8)  # of a group, in each turn
_TURNS = (1, 2)
_MOST_SPLIT = 2  # CTAs per cluster
_QUAD = 4  # words
_STAGED = (1, 2, 4, 6, 8, 10, 12)
_MOST_HELD = 12  # quads per thread in registers
_POLLED = 4  # pieces of 16 bytes that a lane asks for at a time
_MOST_PLACES = 1 << 16  # of operands in shared memory: a word names one in 16 bits
# Registers per thread besides the words that it holds: while it polls, without the pieces that it asks for; while it
# multiplies, without the sums; per phase but one; per turn but one; and per operand but one.
_POLL_REGISTERS, _PRODUCT_REGISTERS, _PHASE_REGISTERS, _TURN_REGISTERS, _OPERAND_REGISTERS = 54, 72, 6, 6, 5
# Where operands come in waves, a second turn takes more of them. So many may go to memory and back at every step.
_WAVE_TURN_REGISTERS = _MOST_SPILLED = 16
_NORMAL = NormalDist()
# A row has about as many elements as the density says. Lists have room for so many hundredths of that number.
_ROOM = 103
# Where shared memory is left, lists have room for up to so many hundredths more. A mask that magnitudes have chosen has
# more elements in some rows and columns than in others, and what has no room is read from memory at every step.
_SPARE = 30


def _parts(count: int) -> list[int]:
    """Into how many parts a count may be divided, so that each gives another size of the largest part."""
    return sorted({ceil(count, ceil(count, parts)) for parts in range(1, count + 1)})


def _banked(sums: Expression) -> Expression:
    """For so many sums of a pair of entries there is room (SparseShape::banked)."""
    return 16 * ceil_div(sums, 16) + 4


def sparse(cost: LoopCost, problem: Problem, target: Target) -> LayoutModel:
    """Make the model for one loop, problem and GPU."""
    rate, element = rates(target), elements(problem)
    model = Model()
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # blocks of 8 units per CTA
    batch = batch_variable(model)
    entries = model.choice("entries", _ENTRIES)  # batch entries per turn
    turns = model.choice("turns", _TURNS)
    products = cost.products
    # The CTAs of a cluster split the terms of all operands among them. A CTA's slice of the most operands comes into
    # shared memory in so many waves.
    clusters = {ctas: ctas * count for ctas, count in target.clusters if ctas <= _MOST_SPLIT}
    most_operands = max((phase.operands for phase in products), default=1)
    divisions = [(ctas, waves) for ctas in clusters for waves in _parts(most_operands)]
    division = model.choice("division", range(len(divisions)))
    depth = round_up(problem.head_dim, 32)

    def slice_of(operands: int, ctas: int) -> int:
        """The terms of so many operands in a CTA's slice."""
        return 32 * ceil(operands * depth // 32, ctas)

    def wave_of(ctas: int, waves: int) -> int:
        """The terms of a wave."""
        return 32 * ceil(slice_of(most_operands, ctas) // 32, waves)

    def waves_of(operands: int, ctas: int, waves: int) -> int:
        return ceil(slice_of(operands, ctas), wave_of(ctas, waves))

    def divided(function: Callable[[int, int], int]) -> Expression:
        """What follows from the CTAs of a cluster and the number of waves."""
        return by(division, lambda key: function(*divisions[key]))

    def own_slice(operands: int) -> Expression:
        return divided(lambda ctas, _: slice_of(operands, ctas))

    split, most_waves = divided(lambda ctas, _: ctas), divided(lambda _, waves: waves)

    def ctas_of(unit_block_count: int) -> int:
        return ceil(problem.head_dim, 8 * unit_block_count)

    ctas = by(unit_blocks, ctas_of)
    model.require(ctas % split == 0, because="clusters: all have as many CTAs")
    at_once = divided(lambda ctas, _: clusters[ctas])
    model.require(problem.heads * ctas <= at_once, because="residency: the CTAs of all heads run at once, one per SM")
    seats = at_once // (problem.heads * ctas)
    launch_batch = turns * entries * seats
    model.require(launch_batch >= batch, because="batch: all groups of a launch must run at once")
    most_rows = 8 * unit_blocks * cost.sums * split
    model.require(most_rows <= _LISTS, because="rows: each row that a CTA has elements of has a thread")
    most_terms = divided(wave_of)
    if not element.is_float:
        model.require(most_terms <= _MOST_PLACES - 128, because="terms: a word names its operand in 16 bits")

    # The columns of a drawn mask have different numbers of elements, and so have its rows in each wave. Lists may be so
    # short that some CTA has no room for all of its own, if longer ones do not fit.
    varies = any(phase.uneven or phase.operands > 1 for phase in products) or len(clusters) > 1
    short = model.choice("short", (0, 1)) if varies else None
    if short is not None:
        model.require(
            short * (split - 1) == 0,
            because="lists: CTAs that split terms have few lists per row, so short ones lack room for many elements",
        )

    def quads_of(phase: PhaseCost, own_division: int, unit_block_count: int, is_short: int) -> int:
        """The longest list of a wave, in quads of words."""
        ctas, most = divisions[own_division]
        rows = 8 * unit_block_count * phase.sums * ctas
        if not 0 < rows <= _LISTS:
            return 1  # there is no such layout, or the requirement of rows rules it out
        assert phase.sparsity is not None
        waves, in_slice = waves_of(phase.operands, ctas, most), slice_of(phase.operands, ctas)
        density, terms = phase.sparsity.density, ceil(problem.head_dim * min(in_slice, wave_of(ctas, most)), depth)
        # A row has as many lists as the longest of its waves needs: so many standard deviations beyond the mean.
        longest = _NORMAL.inv_cdf((waves - 0.375) / (waves + 0.25))
        of_row = math.ceil(terms * density + longest * math.sqrt(terms * density * (1 - density)))
        # A row has whole lists. Rows alike have equally many; others leave half of their last list empty on average.
        lists = _LISTS - rows // 2
        if is_short or not (phase.uneven or waves * ctas > 1):
            lists = max(lists, _LISTS // rows * rows)
        words = max(ceil(of_row, _LISTS // rows), ceil(_ROOM * rows * of_row, 100 * lists))
        return max(1 if waves > 1 else 2, ceil(words, _QUAD))

    waves = [divided(partial(waves_of, phase.operands)) for phase in products]
    wave_quads = [by((division, unit_blocks, short or 0), partial(quads_of, phase)) for phase in products]
    quads = [own_waves * own_quads for own_waves, own_quads in zip(waves, wave_quads, strict=True)]
    poll_terms = by(entries, lambda n: 32 * 8 // n)  # that a warp asks for with a piece per lane
    held = model.integer("held_quads", 0, _MOST_HELD)
    left: Expression = held
    staged = model.choice("staged_quads", _STAGED)  # that go into registers in a round
    rounds = ceil_div(held, staged)
    shape: list[Operand] = []
    own = iter(quads)
    shared_quads: list[Expression] = []
    places: list[int] = []  # of these numbers in the shape
    for phase in cost.phases:
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

    reducing = [phase for phase in cost.phases if phase.reductions]
    pieces = ceil(problem.head_dim, 32)  # of each reduction: what four blocks of units give, in a piece of 16 bytes
    received_bytes = max((128 * ceil(phase.reductions * pieces, 4) for phase in reducing), default=0)
    slices = [own_slice(phase.operands) for phase in products]
    polls = [ceil_div(minimum(own, most_terms), poll_terms) for own in slices]  # in a wave
    own_polls = maximum(*(ceil_div(own, _WARPS) for own in polls), 1)  # of a warp
    has_waves = minimum(most_waves - 1, 1)
    needed = (
        maximum(
            _POLL_REGISTERS + 2 * element.size * minimum(_POLLED * 2 // element.size, own_polls),
            _PRODUCT_REGISTERS + entries,
        )
        + _PHASE_REGISTERS * (len(cost.phases) - 1)
        + (_TURN_REGISTERS + _WAVE_TURN_REGISTERS * has_waves) * (turns - 1)
        + _OPERAND_REGISTERS * (max(phase.operands for phase in cost.phases) - 1)
        + 2 * _QUAD * element.size // 4 * held
    )
    # Only kernels with waves may spill registers.
    spilled = require_registers(model, needed, registers_of(_WARPS), _MOST_SPILLED * has_waves)
    term_bytes = element.size * entries
    terms = poll_terms * ceil_div(most_terms, poll_terms)
    operand_bytes = terms * term_bytes + 128  # with zeros behind them, in all banks
    partial_bytes = 4 * entries * (_LISTS + most_rows)
    info_bytes = (
        4 * 8 * unit_blocks * split * summed(phase.sums * (1 + own) for phase, own in zip(products, waves, strict=True))
    )
    # What the CTAs of a cluster give each other, in two buffers, and two barriers for it.
    given_bytes = minimum(split - 1, 1) * 16 * len(cost.phases) + 2 * 4 * (split - 1) * entries * summed(
        _banked(8 * unit_blocks * phase.sums) for phase in products
    )
    quad_bytes = _LISTS * 8 * element.size
    traffic_bytes = by((unit_blocks, turns, entries), lambda u, turn_count, n: cost.traffic_bytes(u, turn_count * n))
    shared_bytes = (
        partial_bytes
        + received_bytes
        + given_bytes
        + info_bytes
        + maximum(operand_bytes, 2 * 4 * _LISTS, quad_bytes * staged)
        + quad_bytes * summed(shared_quads)
        + traffic_bytes
    )
    require_shared(model, shared_bytes, target)
    left_bytes: Expression = target.shared_bytes - shared_bytes
    for number, (own_waves, own_quads, in_shared) in enumerate(zip(waves, wave_quads, shared_quads, strict=True)):
        # All waves have room for equally many.
        more = own_waves * minimum(ceil_div(_SPARE * own_quads, 100), left_bytes // (quad_bytes * own_waves))
        left_bytes = left_bytes - quad_bytes * more
        shape[places[number]] = in_shared + more

    group = minimum(turns * entries, share(batch, seats))
    readers = problem.heads * ctas * ceil_div(batch, group)
    item = rate.grid_piece * cost.read_pieces + rate.item_operation * cost.operations
    polled = _WARPS * _POLLED // (element.size // 2)  # so many times poll_terms, by all warps
    asked = summed(own_waves * ceil_div(own, polled) for own_waves, own in zip(waves, polls, strict=True))
    # While operands are on their way, a CTA has no work but that of the other turn.
    phase_wait = rate.sparse_phase_wait + rate.sparse_entry_wait * minimum(entries, group)
    waiting = len(cost.phases) * phase_wait
    slice_terms = summed(slices)
    exchanged = element.size * slice_terms * minimum(entries, group)

    def word_time(n: int) -> int:
        return (rate.sparse_word + rate.sparse_word_entry * n) * element.size // 2

    work = (
        len(cost.phases) * rate.sparse_turn
        + rate.sparse_poll * asked
        + rate.sparse_wave * (summed(waves) - len(products))
        # Reads of L2 hide each other for the most part.
        + ceil_div(rate.sparse_l2_byte * exchanged * readers, target.l2_gb_s)
        + ceil_div(rate.sparse_operand_store_per_kb * element.size * entries * slice_terms, 1024)
        + rate.reduction_part * cost.reductions * pieces
        # A word is multiplied by its operands of all entries.
        + by(entries, word_time) * _QUAD * summed(quads)
        + ceil_div(rate.matrix_read_per_kb * quad_bytes * summed(shared_quads), 1024)
        + rate.sparse_cluster_exchange * len(products) * minimum(split - 1, 1)
        + (0 if element.is_float else rate.sparse_split_sector * by(unit_blocks, lambda n: n == 1))
        + (0 if short is None else rate.sparse_unlisted * short)
        + rate.register_spill * spilled
        + item
    )
    # A round is a pass through the matrices before the first step. It costs a step nothing, but fewer are better.
    step = maximum(waiting + work, turns * work) + rounds
    return LayoutModel(
        family=SPARSE,
        cost=cost,
        model=model,
        batch=batch,
        step=step,
        total=step,
        busy=step,
        needed=needed,
        overcount=0,
        shape=(unit_blocks, _WARPS, turns, entries, split, most_terms, staged, *shape),
        tiles={
            "ctas": ctas,
            "unit_tile": 8 * unit_blocks,
            "batch_tile": entries,
            "turns": turns,
            "split": split,
            "waves": most_waves,
            "words_per_thread": _QUAD * summed(quads),
            "register_words": _QUAD * held,
            "spilled_registers": spilled,
        },
        ctas=ctas,
        cluster=split,
        threads=32 * _WARPS,
        shared_bytes=target.shared_bytes - left_bytes,
        registers=registers_of(_WARPS),
        group_batch=turns * entries,
        launch_batch=launch_batch,
        exchange_steps=EXCHANGE_STEPS,
    )
