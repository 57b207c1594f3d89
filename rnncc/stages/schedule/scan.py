"""How the kernels of a loop without products are laid out (templates/include/rnncc/cuda/scan): one layout for all sizes
and GPUs. By these goes the number of thread blocks alone, at run time, so limits are those of the GPU that has least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rnncc.constrint import Expression, Infeasible, Model, ceil_div, lookup, maximum
from rnncc.ir.expr import operators
from rnncc.ir.fused import FusedRead, FusedWrite
from rnncc.ir.kernel import Table
from rnncc.ir.problem import Problem
from rnncc.ir.scan import ScanLoop, entries, row_values
from rnncc.ir.schedule import ScanPlan, ScanSchedule, ScanShape
from rnncc.ir.target import GPUS, REGISTERS, Target
from rnncc.language.operators import OPERATORS

MOST_BLOCKS = 16  # of a cluster
# Newton's iterations take some four to seven runs of a slice, and as many exchanges, for all slices of a tile. Measured
# on an H200 they are less than a walk, slice after slice, where all channels have four blocks at once, with 32 slices;
# of steps of a few cycles, whose operators are all cheap, 16 (benchmarks/results/gpu_scan_newton.json).
_LEAST_NEWTON_BLOCKS, _LEAST_OF_QUICK_STEPS = 4, 16
_MOST_READS = 3  # of slices of 16 steps; more spill
_ANSWER_BYTES = 8  # of each block, whether its slices have settled
_PIECE_BYTES = 16
# Bytes that a multiprocessor must have asked for to get all of its share of the bandwidth, and that it gets in a cycle.
_IN_FLIGHT, _BYTES_A_CYCLE = 40_960, 18
# Instructions of a warp: of a part, of a number of its map in each warp's, of 16 bytes that a lane brings, of a write.
_OF_PART, _OF_NUMBER, _OF_PIECE, _OF_WRITE = 80, 3, 5, 4
_QUARTERS = 4
# Shared memory of a multiprocessor where there are clusters, and what of it each block takes besides.
_CLUSTERED_BYTES, _BLOCK_BYTES = 233_472, 1024
_FOUND = 8  # values that nvcc keeps by itself, at most
# Cycles that a warp waits: at the barrier and for the first values of a part, for a step's, for each warp's map.
_WAIT, _WAIT_FOR_STEP, _WAIT_FOR_WARP = 400, 30, 30
# Those of more spill: a part in pieces has eight steps or more of all of them.
_MOST_TENSORS = 14
# Of a thread, where sixteen warps are on a multiprocessor.
_CROWDED = 128
_SCALE = 1000


def scan_schedule(loop: ScanLoop, element_bytes: int, newton: bool = False) -> ScanSchedule:
    """The kernels for streams of elements of so many bytes; `newton`: also the one that iterates, of a walk."""
    known = _facts(loop, element_bytes)
    narrow = _narrow(known)

    def in_pieces(form: Callable[[_Facts], ScanShape]) -> ScanShape:
        if known.reads + known.writes > _MOST_TENSORS:
            return narrow
        try:
            return form(known)
        except Infeasible:  # no part of them fits shared memory
            return narrow

    iterating = None
    if newton and loop.tangent:
        # A slice's map also has the carries near which it is one.
        tangent = replace(known, entries=sum(entries(loop.tangent.matrix)) + known.edges)
        iterating = _newton(tangent, _LEAST_OF_QUICK_STEPS if _is_quick(loop) else _LEAST_NEWTON_BLOCKS)
    return ScanSchedule(loop.family, in_pieces(_wide), in_pieces(_tall), narrow, iterating)


def plan_scan(loop: ScanLoop, problem: Problem, target: Target) -> ScanPlan:
    """The kernels for a problem, whose sequences are long."""
    element_bytes = 4 if problem.dtype == "fp32" else 2
    schedule, known = scan_schedule(loop, element_bytes, newton=True), _facts(loop, element_bytes)
    units = problem.units * problem.heads
    channels = problem.columns * units
    form = "narrow"
    if units * element_bytes % _PIECE_BYTES == 0:
        form = "tall" if is_tall(schedule.wide, channels, target.multiprocessors) else "wide"
    clusters = -(-channels // (32 * dict(schedule.forms)[form].vector))
    most = max(size for size, _ in target.clusters)
    newton_blocks, takes_newton = 0, False
    if (newton := schedule.newton) and form != "narrow":
        groups = -(-channels // 32)
        newton_blocks = scan_blocks(groups, most, target.multiprocessors)
        takes_newton = (
            newton_blocks >= newton.least_blocks and newton.least_blocks * groups <= 2 * target.multiprocessors
        )
    step_us = problem.columns * units * (known.read_bytes + known.written_bytes) / (1000 * target.memory_gb_s)
    blocks = scan_blocks(clusters, most, target.multiprocessors) if loop.map else 1
    return ScanPlan(schedule, form, blocks, round(step_us, 4), newton_blocks, takes_newton)


def is_tall(wide: ScanShape, channels: int, multiprocessors: int) -> bool:
    """Whether the wide form has too few lanes for a GPU. The same rule as in scan/share.h."""
    return channels < 32 * wide.vector * multiprocessors


def scan_blocks(clusters: int, most: int, multiprocessors: int, rounds: int = MOST_BLOCKS) -> int:
    """How many thread blocks share the steps of the same channels, where `clusters` times as many make up a launch;
    `rounds`: how often one of them by itself would have to begin anew to go through all steps. The same rule as in
    templates/include/rnncc/cuda/scan/run.h."""
    blocks = 1
    while 2 * blocks <= most and blocks * clusters < 2 * multiprocessors and blocks < rounds:
        blocks *= 2
    return blocks


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of a channel: floats that live from step to step (edges), slopes of the map of several steps at most (entries; 0
    of a walk), values that are summed (totals), kept, of a unit (vectors); of a step: tensors and bytes."""

    element_bytes: int
    edges: int
    entries: int
    totals: int
    kept: int
    vectors: int
    reads: int
    rows: int
    writes: int
    read_bytes: int
    written_bytes: int

    @property
    def numbers(self) -> int:
        """Of a map."""
        return self.entries + self.edges if self.entries else 0


def _facts(loop: ScanLoop, element_bytes: int) -> _Facts:
    def bytes_of(tensor: FusedRead | FusedWrite) -> int:
        return 4 if tensor.place is not None and tensor.place.table is Table.SAVED else element_bytes

    return _Facts(
        element_bytes,
        len(loop.edges),
        sum(entries(loop.map.matrix)) if loop.map else 0,
        len(loop.totals),
        _kept(loop),
        len(loop.vectors),
        len(loop.reads),
        len(row_values(loop)),
        len(loop.writes),
        sum(map(bytes_of, loop.reads)),
        sum(map(bytes_of, loop.writes)),
    )


def _is_quick(loop: ScanLoop) -> bool:
    return all(OPERATORS[name].cheap for statement in loop.statements for name in operators(statement.expr))


def _kept(loop: ScanLoop) -> int:
    """Values that the map of a step and its run have in common. Where they are too many to be named, nvcc finds some of
    them."""
    if loop.kept or loop.map is None:
        return len(loop.kept)
    own = {statement.target for statement in loop.statements}
    return min(_FOUND, sum(statement.target in own for statement in loop.map.statements))


def _wide(facts: _Facts) -> ScanShape:
    """Parts come in pieces of 16 bytes, through shared memory."""
    vectors = tuple(n for n in (1, 2, 4, 8) if n * facts.element_bytes <= 8)
    return _shape(facts, _Choice(vectors, (2, 4, 8, 16), (2, 4, 8), (2, 3, 4, 6, 8), 2))


def _tall(facts: _Facts) -> ScanShape:
    """The same for few channels: a lane has one, and longer parts, which are shared out less often."""
    # What reads and writes much holds what there is of registers: the shortest parts that are whole rows.
    if facts.reads + facts.writes > 6:
        return _shape(facts, _Choice((1,), (_PIECE_BYTES // facts.element_bytes,), (4,), (2,), 2))
    # Maps of several carries spill in longer parts, and where a thread has a third of a multiprocessor's registers.
    if facts.edges > 1:
        return _shape(facts, _Choice((1,), (4, 8, 16), (4,), (2,), 2))
    return _shape(facts, _Choice((1,), (4, 8, 16, 32) if facts.entries else (4, 8, 16), (4,), (2,), 3))


def _newton(facts: _Facts, least_blocks: int) -> ScanShape | None:
    """A lane has one channel, for there are few. The longer the slices the fewer the beginnings to be found, but the
    more registers for what is read; and rows stand there all along, of two parts."""
    resident = 1 if facts.rows else 2
    for steps in (16, 8) if facts.reads <= _MOST_READS and not facts.rows else (8,):
        try:
            shape = _shape(facts, _Choice((1,), (steps,), (8,), (2,), resident))
        except Infeasible:
            continue
        return replace(shape, peer_bytes=shape.peer_bytes + _ANSWER_BYTES, least_blocks=least_blocks)
    return None


def _narrow(facts: _Facts) -> ScanShape:
    """The next part comes element by element, into registers."""
    return _shape(facts, _Choice((1,), (2, 4, 8, 16), (2, 4, 8), (1,), 2))


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a form may be; `resident`: thread blocks of a multiprocessor at once."""

    vectors: tuple[int, ...]
    steps: tuple[int, ...]
    warps: tuple[int, ...]
    depths: tuple[int, ...]
    resident: int


def _shape(facts: _Facts, choice: _Choice) -> ScanShape:
    """The quickest of them."""
    resident = choice.resident
    model = Model()
    vector = model.choice("vector", choice.vectors)
    steps = model.choice("steps", choice.steps)
    warps = model.choice("warps", choice.warps if facts.entries else (2,))
    depth = model.choice("depth", choice.depths)
    is_ring = choice.depths != (1,)

    part = 32 * vector * steps * facts.read_bytes  # bytes
    maps = 256 * facts.numbers * vector
    carries = 256 * facts.edges * vector + 16 if facts.entries else 0
    in_loop = warps * (maps + part * depth if is_ring else maps) + carries
    after = warps * (128 * facts.totals * vector if facts.entries else 0)
    shared = maximum(in_loop, after)
    if is_ring:
        whole = vector * steps * facts.element_bytes % _PIECE_BYTES == 0
        model.require(whole, because="pieces: a warp brings whole rows")
    least = min(gpu.shared_bytes for gpu in GPUS.values())
    model.require(shared <= least, because="shared memory: of a block, for parts and maps")
    model.require(
        resident * (in_loop + MOST_BLOCKS * maps + _BLOCK_BYTES) <= _CLUSTERED_BYTES,
        because="shared memory: of a multiprocessor, for blocks of the largest cluster",
    )
    registers = lookup(warps, {n: _registers_of(n, resident) for n in (2, 4, 8)})
    # More go to memory and back in every part: worse than anything else, but no reason to have no kernel.
    is_crowded = lookup(warps, {n: int(is_ring and _registers_of(n, resident) == _CROWDED) for n in (2, 4, 8)})
    needed = is_crowded * _fewest_registers(facts, vector, steps)
    needed = needed + (1 - is_crowded) * _registers(facts, vector, steps, is_ring, resident)
    spilled = maximum(0, needed - registers)

    together = resident * warps
    # A loop may read nothing.
    in_flight = 32 * vector * steps * max(facts.read_bytes, 1) * together * (depth - 1 if is_ring else 1)
    memory = _SCALE * 32 * (facts.read_bytes + facts.written_bytes) // _BYTES_A_CYCLE
    bandwidth = maximum(memory, ceil_div(memory * _IN_FLIGHT, in_flight))
    of_part = _OF_PART + _OF_NUMBER * facts.numbers * vector * warps
    pieces = ceil_div(2 * vector * facts.read_bytes, 32) if is_ring else facts.reads
    of_step = _OF_PIECE * pieces + _OF_WRITE * facts.writes
    issued = _SCALE // _QUARTERS * (ceil_div(of_part, steps * vector) + ceil_div(of_step, vector))
    wait = _WAIT + _WAIT_FOR_STEP * steps + _WAIT_FOR_WARP * warps
    waiting = ceil_div(_SCALE * wait, steps * vector * together)
    # The three overlap in part. Of equals the narrowest, so that there are more lanes.
    solution = model.minimise((spilled, bandwidth + issued + waiting, vector, shared))
    value = solution.value
    return ScanShape(
        value(vector),
        value(steps),
        value(warps),
        value(depth),
        value(registers),
        resident,
        value(in_loop),
        value(maps) if facts.entries else 0,
        value(after),
    )


def _registers_of(warps: int, resident: int) -> int:
    """Of a thread, where so many blocks of so many warps are on a multiprocessor."""
    return min(255, REGISTERS // (32 * warps * resident) // 8 * 8)


def _fewest_registers(facts: _Facts, vector: Expression, steps: Expression) -> Expression:
    """What nvcc 13 needs of a thread so that nothing spills where it may take 128: fitted to 170 kernels, for sm_90a.
    Of those of more carries, and of 4 bytes, some spill for no reason that is seen."""
    if facts.element_bytes == 4:
        return _registers(facts, vector, steps, True, 2)
    tensors = 3 * (facts.reads + facts.writes)
    return 60 + tensors + steps * (2 * facts.rows + vector * facts.kept) + 7 * facts.edges**2 * vector


def _registers(facts: _Facts, vector: Expression, steps: Expression, is_ring: bool, resident: int) -> Expression:
    """Of a thread, at most or little less: fitted to 600 kernels as nvcc 13 makes them for sm_90a where it may take
    255. Where it may take fewer it holds little but what is kept."""
    tensors = 6 * (facts.reads + facts.writes)
    carried = vector * (5 * facts.edges + facts.numbers)
    if resident > 2:
        return 96 + tensors + steps * (2 * facts.rows + vector * facts.kept) + carried
    of_step = (facts.kept + 1) // 2 + (1 if is_ring else 2 * facts.reads)
    return 100 + tensors + steps * (2 + 3 * facts.rows + vector * of_step) + carried
