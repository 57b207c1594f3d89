"""The model of the scatter family: partial sums go to the CTA of their units (ScatterShape in scatter.cuh)."""

from __future__ import annotations

from rnncc.constrint import Model, by, ceil_div
from rnncc.ir.family import SCATTER
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
    cluster_passes,
    elements,
    piece_registers,
    registers_of,
    require_at_most,
    require_registers,
    require_shared,
    require_shared_part,
    tensor_products,
)
from rnncc.stages.schedule.parts import times
from rnncc.stages.schedule.rates import rates

_K_WARPS = (1, 2, 4)
_MOST_ROWS = 16  # row tiles per warp: more have no room for their sums
_MOST_ITEMS = 256  # items per CTA: more have no room for their matrix
# nvcc 13 takes 20 to 33 registers fewer than `needed` for the LSTM.
_OVERCOUNT = 20


def scatter(cost: LoopCost, problem: Problem, target: Target) -> LayoutModel:
    """Make the model for one loop, problem and GPU."""
    rate, element = rates(target), elements(problem)
    model = Model()
    batch = batch_variable(model)
    ctas = model.choice("ctas", dict(target.clusters))  # per cluster
    k_warps = model.choice("k_warps", _K_WARPS)
    row_warps = model.integer("row_warps", 1, MOST_WARPS)
    most = min(ceil(problem.head_dim, 8) + 2, _MOST_ITEMS)
    items = model.integer("items", 1, most)  # per CTA, of 8 units each
    rows = model.integer("rows", 1, _MOST_ROWS)  # tiles of 16 sums per warp
    register_pairs = model.integer("register_pairs", 0, ceil(cost.operands * most, 4))
    warps = model.integer("warps", 1, MOST_WARPS)
    lane_rows = lane_rows_variable(model, element.is_float)

    require_at_most(model, "phases", len(cost.phases), 1, "its kernels run steps of one product")
    require_at_most(model, "reductions", cost.reductions, 0, "its kernels have none")
    dim = ctas * items  # in blocks of 8 units
    model.require(dim * 8 >= problem.head_dim, because="head_dim: the CTAs cover it")
    model.require(dim * 8 - problem.head_dim < 16 * ctas, because="padding: no CTA is without work")
    model.require(warps == row_warps * k_warps, because="warps: a thread of a larger CTA has too few registers")
    model.require(2 * rows * row_warps == cost.sums * dim, because="rows: the row warps share them in tiles of 16")

    pairs = ceil_div(cost.operands * items, 4 * k_warps)
    shared_pairs = require_shared_part(model, register_pairs, pairs)
    owned = ceil_div(items, warps)
    registers = by(warps, registers_of)
    needed = (
        BASE_REGISTERS
        + cost.item_registers * owned
        + piece_registers(cost, items, warps)
        + by(
            (rows, lane_rows),
            lambda r, row_limit: (
                element.accumulator_registers(2 * r, row_limit) + PAIR_REGISTERS * element.fragments(2 * r)
            ),
        )
        + PAIR_REGISTERS * element.fragments(2) * rows * register_pairs
    )
    spilled = require_registers(model, needed, registers)
    matrix_bytes = element.half_bytes * warps * 2 * rows * shared_pairs
    shared_bytes = (
        2 * element.operand_bytes * k_warps * pairs
        + 512 * cost.sums * dim * k_warps
        + matrix_bytes
        + by(items, lambda i: cost.traffic_bytes(i, TILE_BATCH))
        + 16
    )
    require_shared(model, shared_bytes, target)

    item = rate.scatter_piece * cost.pieces + rate.item_operation * cost.operations
    if element.is_float:
        lanes = Lanes(rate, warps, rows, lane_rows)
        halves = times(2)
        multiplied = (
            lanes.products([LaneProduct(halves, halves, pairs)])
            + lanes.folded([LaneProduct(halves, halves)])
            + lanes.matrices([LaneProduct(halves, halves, shared_pairs)])
        )
    else:
        product_time = tensor_products(rate, warps, [(element.fragments(2) * rows, pairs)])
        multiplied = product_time + ceil_div(rate.matrix_read_per_kb * matrix_bytes, 1024)
    sent = cost.sums * dim * k_warps * by(ctas, lambda c: rate.scatter_remote_sum if c > 1 else rate.scatter_local_sum)
    latencies = rate.scatter_step + rate.scatter_warp_barrier * warps
    step = latencies + item * owned + multiplied + rate.register_spill * spilled + sent
    return LayoutModel(
        family=SCATTER,
        cost=cost,
        model=model,
        batch=batch,
        step=step,
        total=step * cluster_passes(batch, ctas, problem, target),
        busy=ceil_div(warps * (rate.warp_issue + item * owned), 4) + multiplied + sent,
        needed=needed,
        overcount=_OVERCOUNT,
        shape=(ctas, 8 * items, row_warps, k_warps, 1, lane_rows, 2 * register_pairs),
        tiles={
            "ctas": ctas,
            "unit_tile": 8 * items,
            "row_warps": row_warps,
            "k_warps": k_warps,
            "batch_tile": TILE_BATCH,
            "register_pairs": register_pairs,
            "shared_pairs": shared_pairs,
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
