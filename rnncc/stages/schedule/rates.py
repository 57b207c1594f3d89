"""The cost model: what the parts of a step take, in tenths of a nanosecond.

Measured on an H200 with the LSTM in bfloat16; tests/stages/test_schedule_cost.py holds the measured steps that the
parts add up to within a factor of 1.3. On other GPUs what happens on the chip goes by the clock, products by their own
rate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rnncc.ir.target import GPUS, Target


@dataclass(frozen=True, slots=True)
class Rates:
    """Tenths of a nanosecond; after the first lines, those of one family each.

    traffic        a tensor that an item reads or writes
    product        an mma.m16n8k16 of a quarter of a multiprocessor
    float_product  8 rows, 32 terms and 8 columns of float32 there: 64 cycles and what loads the operands (an estimate)
    matrix         1024 bytes of a matrix from shared memory
    spill          a register of all threads that goes to memory and back
    column, hop    of clusters: a batch column of a group; sending at all

    gather         barriers and latencies of a step
    post           an operand sent to four blocks
    message        16 bytes from another block
    merge_2, …     sums of 2, 4, 8 K warps brought together

    scatter        barriers and latencies of a step
    send, local    8 bytes of each lane of a warp, of a quarter, to other blocks; to the own block
    issue          the same to other blocks, of a warp
    source, warp   a term of a sum; a warp at the barrier of all

    grid           barriers and latencies of a step
    poll           a batch of lines asked for until they have come
    grid_column    a batch column of a group
    half           a half-tile of sums for another warp

    barrier        of all blocks of the grid, of the alternating kernel
    visit, touch   latencies of a tile and a chunk of columns there; of each tensor that is read or written
    multiply_add   the same as `product`, of float32 without tensor cores
    """

    traffic: int = 200
    product: int = 35
    float_product: int = 420
    matrix: int = 44
    spill: int = 100
    column: int = 40
    hop: int = 240
    gather: int = 2400
    post: int = 160
    message: int = 3
    merge_2: int = 1000
    merge_4: int = 4800
    merge_8: int = 8500
    scatter: int = 1700
    send: int = 325
    local: int = 50
    issue: int = 100
    source: int = 40
    warp: int = 45
    grid: int = 4100
    poll: int = 3700
    grid_column: int = 110
    half: int = 170
    barrier: int = 9_000
    visit: int = 16_000
    touch: int = 550
    multiply_add: int = 690


def rates(target: Target) -> Rates:
    """The rates of a GPU, by those of the H200."""
    measured, h200 = Rates(), GPUS["h200"]
    slower = h200.clock_mhz / target.clock_mhz
    scaled = {field.name: round(getattr(measured, field.name) * slower) for field in fields(measured)}
    scaled["product"] = round(measured.product * slower * target.product_cycles / h200.product_cycles)
    return Rates(**scaled)
