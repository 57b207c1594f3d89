"""The model of the gather family: operands go to all CTAs of a cluster (GatherShape in gather.cuh)."""

from __future__ import annotations

from rnncc.constrint import Model, by, ceil_div, lookup
from rnncc.constrint.expr import Operand
from rnncc.ir.family import GATHER
from rnncc.ir.layout import ceil
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.cost import LoopCost
from rnncc.stages.schedule.lanes import LaneProduct, Lanes, lane_rows_variable
from rnncc.stages.schedule.layout_model import (
    BASE_REGISTERS,
    MOST_WARPS,
    PAIR_REGISTERS,
    TILE_BATCH,
    LayoutModel,
    batch_variable,
    cluster_group,
    cluster_passes,
    elements,
    fragments_of,
    held_variables,
    kind_of,
    of_kinds,
    of_phases,
    piece_registers,
    registers_of,
    require_registers,
    require_shared,
    require_shared_part,
    summed,
    tensor_products,
)
from rnncc.stages.schedule.parts import times
from rnncc.stages.schedule.rates import rates

_K_WARPS = (1, 2, 4, 8)
_UNIT_BLOCKS = (1, 2, 4)
_MOST_ITEMS = MOST_WARPS * max(_UNIT_BLOCKS)
_SEND_REGISTERS = 8  # per operand but one
_LATER_REGISTERS = 2  # per operand of a later phase, which is made while the sums of the phase before are there
# Per product but one, and per number that reductions give: nvcc moves work of a phase into the one before.
_PRODUCT_REGISTERS, _REDUCTION_REGISTERS = 6, 4
_FLOAT_PRODUCT_REGISTERS, _FLOAT_REDUCTION_REGISTERS = 40, 10
# nvcc 13 takes 18 to 46 registers fewer than `needed` for the LSTM.
_OVERCOUNT = 44


def gather(cost: LoopCost, problem: Problem, target: Target) -> LayoutModel:
    """Make the model for one loop, problem and GPU."""
    rate, element = rates(target), elements(problem)
    model = Model()
    batch = batch_variable(model)
    ctas = model.choice("ctas", dict(target.clusters))  # per cluster
    k_warps = model.choice("k_warps", _K_WARPS)
    unit_blocks = model.choice("unit_blocks", _UNIT_BLOCKS)  # blocks of 8 units per warp
    unit_warps = model.integer("unit_warps", 1, MOST_WARPS)
    most = ceil(problem.head_dim, 32) + 64
    range_length = model.integer("range_length", 1, most)  # chunks of 32 terms per K warp and operand
    own_pairs = [phase.operands * range_length for phase in cost.products]
    kinds = [phase.sums for phase in cost.products]
    pairs = of_kinds(kinds, own_pairs)
    most_pairs = of_kinds(kinds, [phase.operands * most for phase in cost.products])
    register_pairs = held_variables(model, "register_pairs", most_pairs)
    lane_rows = lane_rows_variable(model, element.is_float)

    items = model.integer("items", 1, _MOST_ITEMS)  # per CTA, of 8 units each
    dim = ctas * items  # in blocks of 8 units
    model.require(dim * 8 >= problem.head_dim, because="head_dim: the CTAs cover it")
    model.require(
        dim * 8 - problem.head_dim
        < by((ctas, unit_blocks, k_warps), lambda c, blocks, warp_count: max(8 * c * blocks, 32 * warp_count)),
        because="padding: no warp is without work",
    )
    model.require(items == unit_warps * unit_blocks, because="items: the unit warps share them")
    model.require(dim == 4 * k_warps * range_length, because="terms: the K warps share them in pairs of k16 fragments")
    warps = model.integer("warps", 1, MOST_WARPS)
    model.require(warps == unit_warps * k_warps, because="warps: a thread of a larger CTA has too few registers")

    fragments = [by(unit_blocks, fragments_of(element, sums)) for sums in cost.kinds]
    halves = [sums * unit_blocks for sums in cost.kinds]
    shared_pairs = [require_shared_part(model, *own) for own in zip(register_pairs, pairs, strict=True)]
    sums_and_operands = by(
        (unit_blocks, lane_rows),
        lambda u, row_limit: (
            max(element.accumulator_registers(sums * u, row_limit) for sums in cost.kinds or (cost.sums,))
            + PAIR_REGISTERS * element.fragments(cost.sums * u)
        ),
    )
    owned = ceil_div(unit_blocks, k_warps)
    phases, buffers = len(cost.phases), 2 if len(cost.phases) == 1 else 1
    registers = by(warps, registers_of)
    needed = (
        BASE_REGISTERS
        + _SEND_REGISTERS * max(0, max(phase.operands for phase in cost.phases) - 1)
        + _LATER_REGISTERS * max((phase.operands for phase in cost.phases[1:]), default=0)
        + max(0, len(cost.products) - 1) * (_FLOAT_PRODUCT_REGISTERS if element.is_float else _PRODUCT_REGISTERS)
        + cost.reductions * (_FLOAT_REDUCTION_REGISTERS if element.is_float else _REDUCTION_REGISTERS)
        + sums_and_operands
        + cost.item_registers * owned
        + piece_registers(cost, unit_blocks, k_warps)
        + PAIR_REGISTERS * summed(f * held for f, held in zip(fragments, register_pairs, strict=True))
    )
    spilled = require_registers(model, needed, registers)
    matrix_bytes = element.half_bytes * warps * summed(h * own for h, own in zip(halves, shared_pairs, strict=True))
    shared_bytes = (
        buffers * element.operand_bytes * cost.operands * k_warps * range_length
        + matrix_bytes
        + 256 * cost.sums * items * (k_warps - 1)
        + by(items, lambda i: cost.traffic_bytes(i, TILE_BATCH))
        + 32 * buffers * cost.reductions * dim
        + 8 * buffers * phases * (k_warps + min(1, cost.reductions))
    )
    require_shared(model, shared_bytes, target)

    item = rate.gather_piece * cost.pieces + rate.item_operation * cost.operations
    if element.is_float:
        lanes = Lanes(rate, warps, unit_blocks, lane_rows)
        shared = zip(cost.kinds, shared_pairs, strict=True)
        multiplied = (
            lanes.products(_products(sums, own) for sums, own in zip(cost.kinds, pairs, strict=True))
            + lanes.folded(_products(phase.sums) for phase in cost.products)
            + lanes.matrices(_products(sums, own) for sums, own in shared)
        )
    else:
        product_time = tensor_products(rate, warps, zip(fragments, pairs, strict=True))
        multiplied = product_time + ceil_div(rate.matrix_read_per_kb * matrix_bytes, 1024)

    def send_time(c: int) -> int:
        return rate.gather_operand_send * ceil(c, element.peers) if c > 1 else 0

    def receipt_time(c: int) -> int:
        return rate.gather_message_receipt * messages if c > 1 else 0

    posts = cost.operands * owned * by(ctas, send_time)
    # Each item gives a part of each reduction.
    joined = rate.reduction_part * cost.reductions * dim
    group = cluster_group(batch, ctas, problem, target)
    messages = ceil(cost.operands * problem.head_dim * element.size, 16)  # per batch entry
    merge_times = {1: 0, 2: rate.gather_merge_of_2, 4: rate.gather_merge_of_4, 8: rate.gather_merge_of_8}
    step = (
        phases * rate.gather_step
        + posts
        + phases * lookup(k_warps, merge_times)
        + by(ctas, receipt_time) * group
        + item * owned
        + joined
        + multiplied
        + rate.register_spill * spilled
    )
    register_tiles = of_phases([*map(kind_of, cost.phases)], own_pairs, register_pairs)
    return LayoutModel(
        family=GATHER,
        cost=cost,
        model=model,
        batch=batch,
        step=step,
        total=step * cluster_passes(batch, ctas, problem, target),
        busy=ceil_div(warps * (rate.warp_issue + posts + item * owned), 4) + joined + multiplied,
        needed=needed,
        overcount=_OVERCOUNT,
        shape=(ctas, unit_warps, k_warps, unit_blocks, 1, lane_rows, *register_tiles),
        tiles={
            "ctas": ctas,
            "unit_warps": unit_warps,
            "k_warps": k_warps,
            "unit_tile": 8 * unit_blocks,
            "batch_tile": TILE_BATCH,
            "register_pairs": summed(register_pairs),
            "shared_pairs": summed(shared_pairs),
            "spilled_registers": spilled,
            **({"lane_rows": lane_rows} if element.is_float else {}),
        },
        ctas=ctas,
        threads=32 * warps,
        shared_bytes=shared_bytes,
        registers=registers,
        group_batch=TILE_BATCH,
        launch_batch=None,
    )


def _products(sums: int, chunks: Operand = 1) -> LaneProduct:
    """Products in float32 of so many sums."""
    return LaneProduct(times(sums), times(sums), chunks)
