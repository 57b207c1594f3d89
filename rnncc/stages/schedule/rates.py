"""The cost model: the time that each part of a step takes, in tenths of a nanosecond.

The rates are fitted to the times that benchmarks/gpu_dense.py measured on an H200 (tests/test_gpu_predicted.py), and to
single kernels, most of them the LSTM's in bfloat16 (tests/stages/test_schedule_cost.py). The sums of parts come within
a factor of 1.3 of both, and within 1.15 of sparse kernels (tests/stages/test_schedule_sparse_measured.py). On other
GPUs, what happens on the chip scales with the clock, and products with their own rates.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rnncc.ir.target import GPUS, Target


@dataclass(frozen=True, slots=True)
class Rates:
    """Times in tenths of a nanosecond. The first twelve are for all fused families. Each group of the others is for the
    family that its first name says; those of grid serve sparse and blocks too, and those of sparse serve blocks.

    product        an mma.m16n8k16 on a quarter of an SM
    float_product  float32 there: 8 rows, 32 terms and 8 batch entries, at least 64 cycles
    float_operand  a warp's loads of the operands of such a product from shared memory: 8192 bytes, at least 64 cycles
                   of the SM
    float_rows     the same as float_product, where lanes share rows and a lane has up to four rows: its products wait
                   for operands
    fold           8 sums of a half-tile that the lanes of a warp give to others of the same rows
    matrix         1024 bytes of a matrix from shared memory
    float_matrix   float32 there, where a lane has up to four rows: products hide none of it
    spill          a register of all threads that goes to memory and back
    operation      an instruction of an item's elementwise work, for both batch entries of a lane
    message        16 bytes of an operand that a CTA of a cluster receives
    issue          a step of a warp without its items and products
    part           a part of a number that is reduced: all CTAs receive it, and all warps join it with the other parts

    gather         the barriers and latencies of a step
    gather_piece   16 bytes per batch entry that an item reads or writes
    post           an operand sent to four CTAs
    merge_2, …     the sums of 2, 4 or 8 K warps brought together

    scatter        the barriers and latencies of a step
    scatter_piece  the same as gather_piece
    send, local    8 bytes per lane of a warp, to other CTAs or to the own one
    warp           a warp at the barrier of all warps

    grid           the latencies of a step
    grid_piece     the same as gather_piece
    poll           a batch of words, asked for until they have come
    grid_entry     a batch entry of a group
    shared_way     a TPC whose two SMs have CTAs of the same head: operands reach the second SM later
    half           a half-tile of sums for another warp
    sector         rows of tensors and operands that are half of a sector of 32 bytes: two CTAs read and write it
    join           a phase that reduces: what is joined before it is sent, and what a warp receives before it is a part

    wide           the latencies of a phase: of operands on their way, and of sums for the other warpgroup
    wide_chunk     8 blocks of operands of 16 terms and 64 batch entries, for each warpgroup
    wide_product   one such block times 8 columns, on the whole SM
    wide_operation an instruction of the elementwise work on 8 units of 64 batch entries
    wide_piece     16 bytes per batch entry that such work reads or writes
    wide_wait      a chunk less that is on its way (an estimate)

    sparse, entry  the latency of operands on their way in a phase, as far as a CTA has nothing else to do; and for each
                   batch entry
    turn           barriers, and sums for other warps, of a phase
    wave           barriers and latencies of a wave of operands after the first
    put            1024 bytes of operands that are put into their places
    word           a word of each thread takes 2 + 3 n times this, for n batch entries
    give           what the CTAs of a cluster give each other in a phase
    square         a square of 16 by 16 elements on a quarter of an SM, beside its products: its place and its operands
    unlisted       a step in which some CTA reads elements that have no room in lists

    barrier        the barrier of all CTAs of the alternating kernel
    visit, touch   there: the latencies of a tile and a part of the batch; those of each tensor that is read or written
    mma, resident  there: the same as `product` and `matrix`
    multiply_add   there: the same as `mma` for float32, without tensor cores
    reduction      there: a phase that reduces. It is the least of what norms took; with several heads they take more
    """

    product: int = 45
    float_product: int = 420
    float_operand: int = 345
    float_rows: int = 500
    fold: int = 30
    matrix: int = 20
    float_matrix: int = 56
    spill: int = 115
    operation: int = 10
    message: int = 1
    issue: int = 180
    part: int = 75
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
    grid: int = 1_300
    grid_piece: int = 240
    poll: int = 2800
    grid_entry: int = 560
    shared_way: int = 50
    half: int = 60
    sector: int = 3_000
    join: int = 6_500
    wide: int = 9900
    wide_chunk: int = 1940
    wide_product: int = 11
    wide_operation: int = 56
    wide_piece: int = 240
    wide_wait: int = 300
    sparse: int = 1_200
    entry: int = 800
    turn: int = 3_500
    wave: int = 8_500
    put: int = 71
    word: int = 24
    give: int = 8_000
    square: int = 425
    unlisted: int = 70_000
    barrier: int = 9_000
    visit: int = 16_000
    touch: int = 550
    mma: int = 35
    resident: int = 44
    multiply_add: int = 690
    reduction: int = 76_000


def rates(target: Target) -> Rates:
    """The rates of a GPU, made from those of the H200."""
    measured, h200 = Rates(), GPUS["h200"]
    scaled = {field.name: round(getattr(measured, field.name) * slower(target)) for field in fields(measured)}
    for name in ("product", "mma"):
        scaled[name] = round(getattr(measured, name) * slower(target) * target.product_cycles / h200.product_cycles)
    for name in ("float_product", "multiply_add"):
        scaled[name] = round(getattr(measured, name) * slower(target) * h200.float_lanes / target.float_lanes)
    # Where an SM has half the lanes, products take longer than operands.
    scaled["float_rows"] = max(scaled["float_rows"], scaled["float_product"])
    return Rates(**scaled)


# What cuBLAS reaches on an H200, as measured: in 16 bits as a part of the rate by `product_cycles`, in float32 as a
# part of its fused multiply-adds.
_PRODUCT_RATE, _FLOAT_PRODUCT_RATE = 1.13, 0.76
_MULTIPLY_ADDS = 4 * 16 * 8 * 16  # per SM and `product_cycles`: one mma per quarter


def product_rate(target: Target, dtype: str) -> float:
    """The rate of torch's large products: multiply-adds per microsecond."""
    if dtype == "fp32":
        a_clock = _FLOAT_PRODUCT_RATE * target.float_lanes
    else:
        a_clock = _PRODUCT_RATE * _MULTIPLY_ADDS / target.product_cycles
    return a_clock * target.clock_mhz * target.sms


def slower(target: Target) -> float:
    """By how much the H200's clock is quicker."""
    return GPUS["h200"].clock_mhz / target.clock_mhz
