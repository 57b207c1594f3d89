"""The rates of the cost model: how long each part of a step or call takes. rates_h200.toml has those of an H200, and
says of each its unit, to what it was fitted, and how well.

On other GPUs, what happens on the chip scales with the clock, and products with their own rates.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rnncc.ir.target import GPUS, Target

TABLE = Path(__file__).with_name("rates_h200.toml")
_TENTHS = 10  # of a nanosecond


@dataclass(frozen=True, slots=True)
class Rates:
    """The rows of the table. A time `…_ns` or `…_ns_per_kb` is a whole number of tenths of a nanosecond, because models
    are of integers, and its field is named without `_ns`. The others are as they stand in the table."""

    # All fused families.
    tensor_core_product: int
    float_product: int
    float_operand_load: int
    float_waiting_product: int
    float_lane_sum: int
    matrix_read_per_kb: int
    float_matrix_read_per_kb: int
    register_spill: int
    item_operation: int
    reduction_part: int
    # Clusters.
    warp_issue: int
    gather_step: int
    gather_piece: int
    gather_operand_send: int
    gather_message_receipt: int
    gather_merge_of_2: int
    gather_merge_of_4: int
    gather_merge_of_8: int
    scatter_step: int
    scatter_piece: int
    scatter_remote_sum: int
    scatter_local_sum: int
    scatter_warp_barrier: int
    # Grids. The sparse and the blocks family also have grid_piece, and blocks most rates of sparse.
    grid_phase: int
    grid_piece: int
    grid_poll: int
    grid_l2_byte: int
    grid_entry: int
    wide_phase: int
    wide_chunk: int
    wide_product: int
    wide_l2_byte: int
    wide_operation: int
    wide_piece: int
    wide_missing_buffer: int
    sparse_phase_wait: int
    sparse_poll: int
    sparse_split_sector: int
    sparse_entry_wait: int
    sparse_turn: int
    sparse_wave: int
    sparse_operand_store_per_kb: int
    sparse_l2_byte: int
    sparse_word: int
    sparse_word_entry: int
    sparse_cluster_exchange: int
    sparse_unlisted: int
    blocks_square: int
    # The alternating and the stepwise kernel.
    alternating_barrier: int
    alternating_visit: int
    alternating_tensor_access: int
    alternating_product: int
    alternating_float_product: int
    alternating_matrix_read_per_kb: int
    alternating_l2_share: float
    alternating_reduction: int
    stepwise_launches_us: float
    stepwise_second_launch_us: float
    stepwise_product_share: float
    stepwise_float_product_share: float
    # What is no kernel's own.
    library_product_share: float
    library_float_product_share: float
    memory_share: float
    hiding_exponent: float
    # Calls.
    launch_us: float
    fill_us_per_kb: float
    transposed_fill_us_per_kb: float
    copy_launch_us: float
    product_launch_us: float
    backward_us: float
    head_products_share: float
    head_rows_us: float
    head_rows_narrow_us: float
    head_rows_narrow_us_units: float
    head_rows_float_us: float


def read_table() -> dict[str, dict[str, Any]]:
    """The rows of the table by name, in its order."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def field_of(name: str) -> str:
    """The field of Rates for a row of the table."""
    return name.replace("_ns", "")


def rates_of(values: Mapping[str, float]) -> Rates:
    """The rates of an H200 from the values of the table's rows, by their names."""
    return Rates(**{field_of(name): _held(name, value) for name, value in values.items()})


def _held(name: str, value: float) -> Any:
    return value if field_of(name) == name else round(_TENTHS * value)


_ROWS = read_table()
H200 = rates_of({name: row["value"] for name, row in _ROWS.items()})


def rates(target: Target) -> Rates:
    """The rates of a GPU, made from those of the H200."""
    return _scaled(H200, target)


@cache
def _scaled(measured: Rates, target: Target) -> Rates:
    h200 = GPUS["h200"]
    slower = h200.clock_mhz / target.clock_mhz
    factors = {
        "clock": slower,
        "tensor cores": slower * target.product_cycles / h200.product_cycles,
        "float lanes": slower * h200.float_lanes / target.float_lanes,
        "nothing": 1.0,
    }
    scaled = {}
    for name, row in _ROWS.items():
        value = getattr(measured, field_of(name))
        product = value * factors[row["scales_with"]]
        scaled[field_of(name)] = round(product) if isinstance(value, int) else product
    # Where an SM has half the lanes, products take longer than operands.
    scaled["float_waiting_product"] = max(scaled["float_waiting_product"], scaled["float_product"])
    return Rates(**scaled)


_MULTIPLY_ADDS = 4 * 16 * 8 * 16  # per SM and `product_cycles`: one mma per quarter


def product_rate(target: Target, dtype: str) -> float:
    """The rate of torch's large products: multiply-adds per microsecond."""
    rate = rates(target)
    if dtype == "fp32":
        a_clock = rate.library_float_product_share * target.float_lanes
    else:
        a_clock = rate.library_product_share * _MULTIPLY_ADDS / target.product_cycles
    return a_clock * target.clock_mhz * target.sms
