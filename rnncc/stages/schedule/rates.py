"""The cost model: what the parts of a step take, in tenths of a nanosecond.

Measured on an H200 with the LSTM in bfloat16; tests/stages/test_schedule_cost.py holds the measured steps that the parts
add up to within a factor of 1.3. On other GPUs what happens on the chip goes by the clock, products by their own rate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rnncc.ir.target import GPUS, Target

@dataclass(frozen=True, slots=True)
class Rates:
    """Tenths of a nanosecond.

    gather, scatter, grid     barriers and latencies of a step that depend on nothing
    hop                       of a cluster, beyond that
    traffic                   a tensor that an item reads or writes
    product                   an mma.m16n8k16 of a quarter of a multiprocessor
    matrix, spill             1024 bytes of a matrix from shared memory; a register of all threads from memory
    column, message           of a gather: a batch column; 16 bytes from another block
    merge                     of a gather: sums of 1, 2, 4, 8 K warps brought together
    send, issue, local        of a scatter: 8 bytes of each lane to other blocks, for a quarter and for the warp itself;
                              to the own block
    source, warp              of a scatter: a term of a sum; a warp at the barrier of all
    poll, grid_column, half   of the grid: a batch of lines asked for until they have come; a batch column; a half-tile of
                              sums for another warp
    reader                    of the grid: a block that waits for the same operands
    barrier, full_precision   of the alternating kernel, estimates: a step's barriers and latencies; how many times longer
                              products of float32 take (a factor)
    """

    gather: int = 2400
    scatter: int = 1700
    grid: int = 2300
    hop: int = 400
    traffic: int = 200
    product: int = 35
    matrix: int = 44
    spill: int = 100
    column: int = 40
    message: int = 3
    merge: tuple[int, int, int, int] = (0, 1000, 4800, 8500)
    send: int = 325
    issue: int = 100
    local: int = 50
    source: int = 60
    warp: int = 50
    poll: int = 2700
    grid_column: int = 200
    half: int = 250
    reader: int = 25
    barrier: int = 30_000
    full_precision: int = 8


def rates(target: Target) -> Rates:
    """The rates of a GPU, by those of the H200."""
    measured, h200 = Rates(), GPUS["h200"]

    def scaled(time: int, factor: float = 1) -> int:
        return round(time * factor * h200.clock_mhz / target.clock_mhz)

    scaled_rates = {
        field.name: tuple(map(scaled, time)) if isinstance(time := getattr(measured, field.name), tuple) else scaled(time)
        for field in fields(measured)
    }
    return Rates(**scaled_rates | {"product": scaled(measured.product, target.product_cycles / h200.product_cycles)})
