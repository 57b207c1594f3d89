"""The gather family: operands go to all blocks of a cluster (GatherShape in templates/include/rnncc/cuda/fused)."""

from __future__ import annotations

from rnncc.constrint import Model, ceil_div, lookup, maximum
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import (
    BASE_REGISTERS,
    MOST_WARPS,
    PAIR_BYTES,
    PAIR_REGISTERS,
    TILE_COLUMNS,
    Draft,
    by,
    ceil,
    cluster_columns,
    cluster_passes,
    elements,
    piece_registers,
    registers_of,
    require_registers,
    require_shared,
)
from rnncc.stages.schedule.facts import Facts
from rnncc.stages.schedule.rates import rates

_K_WARPS = (1, 2, 4, 8)
_UNIT_BLOCKS = (1, 2, 4)
_MOST_ITEMS = MOST_WARPS * max(_UNIT_BLOCKS)
_SEND_REGISTERS = 8  # for each operand but one
# Of `needed`, what nvcc 13 does without for the LSTM: 18 to 46.
_OVERCOUNT = 44


def gather(facts: Facts, problem: Problem, target: Target) -> Draft:
    """The model of the family."""
    rate, clusters, of = rates(target), dict(target.clusters), elements(problem)
    sizes = tuple(clusters)
    model = Model()
    blocks = model.choice("blocks", sizes)
    k_warps = model.choice("k_warps", _K_WARPS)
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # of 8 units, of a warp
    unit_warps = model.integer("unit_warps", 1, MOST_WARPS)
    most = ceil(problem.units, 32) + 64
    range_length = model.integer("range_length", 1, most)  # terms of a K warp and operand, in 32s
    register_pairs = model.integer("register_pairs", 0, facts.operands * most)

    items = model.integer("items", 1, _MOST_ITEMS)  # of a block: 8 units each
    dim = blocks * items  # in blocks of 8 units
    model.require(dim * 8 >= problem.units, because="units: the blocks cover a head's")
    model.require(
        dim * 8 - problem.units < maximum(8 * blocks * unit_blocks, 32 * k_warps),
        because="padding: no warp could be spared",
    )
    model.require(items == unit_warps * unit_blocks, because="items: the unit warps share them")
    model.require(dim == 4 * k_warps * range_length, because="terms: the K warps share them in pairs of k16 fragments")
    warps = model.integer("warps", 1, MOST_WARPS)
    model.require(warps == unit_warps * k_warps, because="warps: a thread of a larger block has too few registers")

    fragments = by(unit_blocks, _UNIT_BLOCKS, lambda u: of.fragments(facts.sums * u))
    pairs = facts.operands * range_length
    model.require(register_pairs <= pairs, because="matrix: a warp's part of it, in registers or in shared memory")
    sums_and_operands = by(
        unit_blocks,
        _UNIT_BLOCKS,
        lambda u: of.accumulator_registers(facts.sums * u) + PAIR_REGISTERS * of.fragments(facts.sums * u),
    )
    owned = ceil_div(unit_blocks, k_warps)
    registers = by(warps, range(1, MOST_WARPS + 1), registers_of)
    needed = (
        BASE_REGISTERS
        + _SEND_REGISTERS * (facts.operands - 1)
        + sums_and_operands
        + facts.item_registers * owned
        + piece_registers(facts, unit_blocks, k_warps)
        + PAIR_REGISTERS * fragments * register_pairs
    )
    spilled = require_registers(model, needed, registers)
    matrix_kilobytes = warps * fragments * (pairs - register_pairs)
    shared_bytes = (
        2 * of.operand_bytes * facts.operands * k_warps * range_length
        + PAIR_BYTES * matrix_kilobytes
        + 256 * facts.sums * items * (k_warps - 1)
        + by(items, range(1, _MOST_ITEMS + 1), lambda i: facts.traffic_bytes(i, TILE_COLUMNS))
        + 16 * k_warps
    )
    require_shared(model, shared_bytes, target)

    item = rate.gather_piece * facts.pieces + rate.operation * facts.operations
    multiplied = of.product(rate) * ceil_div(warps, 4) * fragments * pairs + rate.matrix * matrix_kilobytes
    posts = facts.operands * owned * by(blocks, sizes, lambda c: rate.post * ceil(c, of.peers) if c > 1 else 0)
    messages = ceil(facts.operands * problem.units * of.size, 16)  # of a column
    step = (
        rate.gather
        + posts
        + lookup(k_warps, {1: 0, 2: rate.merge_2, 4: rate.merge_4, 8: rate.merge_8})
        + by(
            blocks,
            sizes,
            lambda c: rate.message * messages * cluster_columns(problem, clusters[c]) if c > 1 else 0,
        )
        + item * owned
        + multiplied
        + rate.spill * spilled
    )
    return Draft(
        "gather",
        facts,
        model,
        step,
        step * by(blocks, sizes, lambda c: cluster_passes(problem, clusters[c])),
        ceil_div(warps * (rate.issue + posts + item * owned), 4) + multiplied,
        needed,
        _OVERCOUNT,
        (blocks, unit_warps, k_warps, unit_blocks, 1, 2 * register_pairs),
        {
            "blocks": blocks,
            "unit_warps": unit_warps,
            "k_warps": k_warps,
            "unit_tile": 8 * unit_blocks,
            "column_tile": TILE_COLUMNS,
            "register_pairs": register_pairs,
            "shared_pairs": pairs - register_pairs,
            "spilled_registers": spilled,
        },
        blocks,
        32 * warps,
        shared_bytes,
        registers,
        TILE_COLUMNS,
        0,
    )
