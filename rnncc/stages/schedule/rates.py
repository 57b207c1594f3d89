"""The cost model: what the parts of a step take, in tenths of a nanosecond.

Fitted to what benchmarks/gpu_dense.py measured on an H200 (tests/test_gpu_predicted.py) and to single kernels of the
LSTM in bfloat16 (tests/stages/test_schedule_cost.py), which the parts add up to within a factor of 1.3. On other GPUs
what happens on the chip goes by the clock, products by their own rate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rnncc.ir.target import GPUS, Target


@dataclass(frozen=True, slots=True)
class Rates:
    """Tenths of a nanosecond; after the first lines, those of one family each.

    product        an mma.m16n8k16 of a quarter of a multiprocessor
    float_product  8 rows, 32 terms and 8 columns of float32 there: 64 cycles and what loads the operands (an estimate)
    matrix         1024 bytes of a matrix from shared memory
    spill          a register of all threads that goes to memory and back
    operation      of an item's elementwise part: an instruction for each of a lane's two columns
    message        16 bytes of an operand that a block of a cluster receives
    issue          of a step of a warp, besides its items and products

    gather         barriers and latencies of a step
    gather_piece   16 bytes of a column that an item reads or writes
    post           an operand sent to four blocks
    merge_2, …     sums of 2, 4, 8 K warps brought together

    scatter        barriers and latencies of a step
    scatter_piece  as gather_piece
    send, local    8 bytes of each lane of a warp to other blocks; to the own block
    warp           a warp at the barrier of all

    grid_piece     as gather_piece
    poll           a batch of lines asked for until they have come
    grid_column    a batch column of a group
    half           a half-tile of sums for another warp

    barrier        of all blocks of the grid, of the alternating kernel
    visit, touch   latencies of a tile and a chunk of columns there; of each tensor that is read or written
    mma, resident  as `product` and `matrix`, there
    multiply_add   the same as `mma`, of float32 without tensor cores
    """

    product: int = 45
    float_product: int = 420
    matrix: int = 20
    spill: int = 115
    operation: int = 10
    message: int = 1
    issue: int = 180
    gather: int = 1920
    gather_piece: int = 70
    post: int = 460
    merge_2: int = 610
    merge_4: int = 2350
    merge_8: int = 2630
    scatter: int = 1850
    scatter_piece: int = 75
    send: int = 62
    local: int = 39
    warp: int = 100
    grid_piece: int = 240
    poll: int = 2800
    grid_column: int = 690
    half: int = 60
    barrier: int = 9_000
    visit: int = 16_000
    touch: int = 550
    mma: int = 35
    resident: int = 44
    multiply_add: int = 690


def rates(target: Target) -> Rates:
    """The rates of a GPU, by those of the H200."""
    measured, h200 = Rates(), GPUS["h200"]
    scaled = {field.name: round(getattr(measured, field.name) * slower(target)) for field in fields(measured)}
    for name in ("product", "mma"):
        scaled[name] = round(getattr(measured, name) * slower(target) * target.product_cycles / h200.product_cycles)
    return Rates(**scaled)


# Measured of cuBLAS on an H200: beside the rate by `product_cycles` in 16 bits, and beside the fused multiply-adds of
# 128 lanes in float32.
_PRODUCT_RATE, _FLOAT_PRODUCT_RATE = 1.13, 0.76
_MULTIPLY_ADDS = 4 * 16 * 8 * 16  # of a multiprocessor and `product_cycles`: an mma a quarter


def product_rate(target: Target, dtype: str) -> float:
    """Of torch's large products: multiplications and additions of a microsecond, as one."""
    a_clock = _FLOAT_PRODUCT_RATE * 128 if dtype == "fp32" else _PRODUCT_RATE * _MULTIPLY_ADDS / target.product_cycles
    return a_clock * target.clock_mhz * target.multiprocessors


def slower(target: Target) -> float:
    """By how much the H200's clock is quicker."""
    return GPUS["h200"].clock_mhz / target.clock_mhz
