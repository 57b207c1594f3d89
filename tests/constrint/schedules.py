"""Schedule problems as a compiler of recurrent kernels poses them: a workload for tests and benchmarks.

One step of a cell multiplies a matrix of `gates * hidden` rows (backward: of `hidden` rows, with `gates * hidden`
columns) by the state of a batch. CTAs share the rows. Each of them keeps its part of the matrix in registers and shared
memory for the whole sequence. The numbers are those of an H200; times are in cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from rnncc.constrint import (
    Expression,
    Model,
    Variable,
    ceil_div,
    lookup,
    maximum,
    round_up,
)

# How many clusters of so many CTAs one GPU holds at a time, with one CTA per SM.
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}
# Cycles of one exchange of the state within such a cluster; a single CTA needs a barrier only.
CLUSTER_HOP = {1: 75, 2: 270, 4: 270, 8: 280, 16: 300}
GRID_HOP = 1400
SHARED_BYTES = 232_448
REGISTERS_PER_THREAD = 255
REGISTERS_PER_BLOCK = 65_536
FIXED_REGISTERS = 40


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be scheduled. `scope` is block, cluster or grid: how far the rows of one head are spread."""

    gates: int
    hidden: int
    heads: int
    batch: int
    backward: bool
    scope: str

    def __str__(self) -> str:
        name = {1: "elman", 3: "gru", 4: "lstm"}[self.gates]
        way = "backward" if self.backward else "forward"
        return f"{name} {way} {self.hidden}x{self.heads} B{self.batch} {self.scope}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The model of a case, what to minimise, and the size to give."""

    model: Model
    cost: Expression
    hidden: Variable


def schedule(case: Case) -> Schedule:
    """The model of one case; the hidden size is a variable, and `case.hidden` is to be given."""
    model = Model()
    hidden = model.integer("hidden", 1, 8192)

    # A CTA has a tile of units, all their gates, and a tile of the batch at a time.
    unit_tile = model.choice("unit_tile", range(8, 513, 8))
    block_count = model.integer("block_count", 1, 132)
    batch_tile = model.choice("batch_tile", (8, 16, 32, 64))
    group_count = model.integer("group_count", 1, 32)
    replica_count = model.integer("replica_count", 1, 132)
    cluster = model.choice("cluster", (1, 2, 4, 8, 16))
    unit_dim = block_count * unit_tile
    model.require(unit_dim >= hidden, because="units: the blocks cover them")
    model.require(unit_dim - hidden < unit_tile, because="padding: no block is without work")
    model.require(
        replica_count * group_count * batch_tile >= case.batch, because="batch: replicas and groups cover its columns"
    )
    model.require(
        (replica_count * group_count - 1) * batch_tile < case.batch, because="batch padding: no group is without work"
    )

    # Its warps share the rows and the columns, 16 of each per instruction.
    row_count: Expression = unit_tile if case.backward else case.gates * unit_tile
    column_dim: Expression = case.gates * hidden if case.backward else hidden
    warps_m = model.integer("warps_m", 1, 16)
    warps_k = model.choice("warps_k", (1, 2, 4, 8, 16))
    row_tile = model.integer("row_tile", 1, 32)  # per warp, in instructions of 16 rows
    column_tile = model.integer("column_tile", 1, 512)  # per warp, in instructions of 16 columns
    model.require(row_tile * warps_m == ceil_div(row_count, 16), because="rows: the warps cover the block's")
    model.require(column_tile == ceil_div(column_dim, 16 * warps_k), because="columns: the warps cover all")
    threads = 32 * warps_m * warps_k
    model.require(threads <= 512, because="threads: a block of more has fewer than 128 registers a thread")

    # The matrix lies in registers as far as it fits, the rest of it in shared memory.
    column_registers = model.integer("column_registers", 0, 64)
    column_shared = model.integer("column_shared", 0, 512)
    model.require(column_registers + column_shared == column_tile, because="weights: in registers or in shared memory")
    column_count = batch_tile // 8
    registers = round_up(4 * row_tile * column_registers + 4 * row_tile * column_count + FIXED_REGISTERS, 8)
    model.require(registers <= REGISTERS_PER_THREAD, because="registers: what one thread can name")
    model.require(registers * (threads + 32) <= REGISTERS_PER_BLOCK, because="register file: what one block has")

    # Shared memory: the rest of the weights, the state twice, partial sums, a ring of pre-activations.
    stages = model.integer("stages", 2, 16)
    weight_bytes = 512 * row_tile * warps_m * column_shared * warps_k
    state_bytes = 2 * 2 * batch_tile * 16 * column_tile * warps_k
    partial_bytes = 4 * 16 * row_tile * warps_m * (warps_k - 1) * batch_tile
    ring_bytes = 2 * stages * batch_tile * unit_tile * (case.gates + 2 * case.backward)
    model.require(
        weight_bytes + state_bytes + partial_bytes + ring_bytes <= SHARED_BYTES, because="shared memory: of one block"
    )

    # Blocks of one head form a cluster, or spread over the grid; all of them must be resident at once.
    blocks = block_count * replica_count * case.heads
    match case.scope:
        case "block":
            model.require(block_count == 1, because="scope block: one block holds a head")
            model.require(cluster == 1, because="no cluster: a block alone needs none")
        case "cluster":
            model.require(block_count == cluster, because="scope cluster: one cluster holds a head")
            model.require(cluster >= 2, because="at least two: one block is no cluster")
        case _:
            model.require(blocks % cluster == 0, because="scope grid: whole clusters")
    model.require(ceil_div(blocks, cluster) <= lookup(cluster, CLUSTERS), because="residency: all clusters at once")

    # Cycles of one step.
    multiply = 25 + ceil_div(31 * row_tile * column_tile * column_count * ceil_div(warps_m * warps_k, 4), 5)
    read = ceil_div(weight_bytes, 128) + ceil_div(2 * batch_tile * 16 * column_tile * warps_k * warps_m, 128)
    exchanged = 2 * batch_tile * column_dim
    if case.scope == "grid":
        hop: Expression = GRID_HOP + ceil_div(exchanged, 35 * cluster)
    elif case.scope == "cluster":
        hop = lookup(cluster, CLUSTER_HOP) + ceil_div(exchanged, 14)
    else:
        hop = lookup(cluster, CLUSTER_HOP)
    reduce = ceil_div(partial_bytes, 128) + 110
    latency = 600  # of memory: a short ring exposes what is left of it
    work = maximum(multiply, read) + reduce
    cost = maximum(hop + work, group_count * work) + ceil_div(latency, stages)
    return Schedule(model, cost, hidden)


def cases() -> Iterator[Case]:
    """LSTM and GRU, forward and backward, every size of 16 … 2304 by 16 and some odd ones, one factor at a time round
    one head and a batch of 16."""
    for gates, backward, scope in product((4, 3), (False, True), ("block", "cluster", "grid")):
        for hidden in (*range(16, 2305, 16), 1, 15, 33, 100, 1000, 1001, 1789):
            yield Case(gates, hidden, 1, 16, backward, scope)
        for hidden, heads in ((64, 12), (128, 6), (256, 3), (768, 4), (1024, 12)):
            yield Case(gates, hidden, heads, 16, backward, scope)
        for batch in (1, 3, 64, 200, 256):
            yield Case(gates, 768, 1, batch, backward, scope)
            yield Case(gates, 128, 6, batch, backward, scope)
