"""The layout of the kernels of a loop without products (templates/include/rnncc/cuda/scan).

There is one layout for all sizes and GPUs. Only the number of CTAs depends on the size and the GPU, and it is chosen at
run time. So the limits are those of the GPU that has the least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rnncc.constrint import Expression, Infeasible, Model, ceil_div, lookup, maximum
from rnncc.ir.expr import operators
from rnncc.ir.family import NEWTON, Family, Scope
from rnncc.ir.fused import FusedRead, FusedWrite
from rnncc.ir.layout import PlannedScan, ScanLayouts, ScanShape, ceil
from rnncc.ir.problem import Problem
from rnncc.ir.scan import ScanLoop, entries, row_values
from rnncc.ir.step import Table
from rnncc.ir.target import GPUS, REGISTERS, Target
from rnncc.language.operators import OPERATORS

MOST_CTAS = 16  # per cluster
# Newton's iterations take about four to seven runs of a slice, and as many exchanges, for all slices of a tile. On an
# H200 they were measured to be quicker than a walk where all channels have four CTAs at once, which makes 32 slices.
# For steps of a few cycles, whose operators are all cheap, it takes 16 (benchmarks/results/gpu_scan_newton.json).
_LEAST_NEWTON_CTAS, _LEAST_OF_QUICK_STEPS = 4, 16
_MOST_READS = 3  # tensors that slices of 16 steps may read; kernels that read more spill
_ANSWER_BYTES = 8  # per CTA: whether its slices have settled
_PIECE_BYTES = 16
# The bytes that an SM must have asked for to get all of its share of the bandwidth, and the bytes that it gets per
# cycle.
_IN_FLIGHT, _BYTES_PER_CYCLE = 40_960, 18
# The instructions that a warp issues: per part; per number of the map and warp; per 16 bytes that a lane loads; per
# write.
_PER_PART, _PER_NUMBER, _PER_PIECE, _PER_WRITE = 80, 3, 5, 4
_QUARTERS = 4
# Shared memory of an SM of a GPU with clusters, and the part of it that each CTA takes besides its own, in bytes.
_CLUSTERED_BYTES, _CTA_BYTES = 233_472, 1024
_FOUND = 8  # the most values that nvcc keeps by itself
# The cycles that a warp waits: per part at the barrier and for the first values; per step for its values; per warp for
# its map.
_WAIT, _WAIT_PER_STEP, _WAIT_PER_WARP = 400, 30, 30
# More tensors than this spill: a part in pieces of 16 bytes holds at least eight steps of all of them.
_MOST_TENSORS = 14
# The registers per thread where sixteen warps are on an SM.
_CROWDED = 128
_SCALE = 1000


def scan_schedule(loop: ScanLoop, element_bytes: int, newton: bool = False) -> ScanLayouts:
    """The kernels for streams whose elements have so many bytes. `newton`: a walk also has the kernel for Newton's
    method, where it can have one."""
    known = _facts(loop, element_bytes)
    narrow = _narrow(known)

    def in_pieces(form: Callable[[_ScanCost], ScanShape]) -> ScanShape:
        if known.reads + known.writes > _MOST_TENSORS:
            return narrow
        try:
            return form(known)
        except Infeasible:  # no part of these tensors fits in shared memory
            return narrow

    iterating = None
    if newton and loop.tangent:
        # The map of a slice holds only near certain carries, which come with it.
        tangent = replace(known, family=NEWTON, entries=sum(entries(loop.tangent.matrix)) + known.edges)
        iterating = _newton(tangent, _LEAST_OF_QUICK_STEPS if _is_quick(loop) else _LEAST_NEWTON_CTAS)
    return ScanLayouts(loop.family, in_pieces(_vectorised), in_pieces(_tall), narrow, iterating)


def plan_scan(loop: ScanLoop, problem: Problem, target: Target) -> PlannedScan:
    """The kernels for a problem with long sequences."""
    element_bytes = problem.element_bytes
    schedule, known = scan_schedule(loop, element_bytes, newton=True), _facts(loop, element_bytes)
    channels = problem.batch * problem.hidden
    form = "narrow"
    if problem.hidden * element_bytes % _PIECE_BYTES == 0:
        form = "tall" if is_tall(schedule.vectorised, channels, target.sms) else "vectorised"
    shape = dict(schedule.forms)[form]
    clusters = ceil(channels, 32 * shape.vector)
    most = _most_ctas(shape, target)
    newton_ctas, takes_newton = 0, False
    if (newton := schedule.newton) and form != "narrow":
        groups = ceil(channels, 32)
        newton_ctas = scan_ctas(groups, _most_ctas(newton, target), target.sms)
        takes_newton = newton_ctas >= newton.least_ctas and newton.least_ctas * groups <= 2 * target.sms
    step_us = channels * (known.read_bytes + known.written_bytes) / (1000 * target.memory_gb_s)
    ctas = scan_ctas(clusters, most, target.sms) if known.shares_steps else 1
    return PlannedScan(schedule, form, ctas, round(step_us, 4), newton_ctas, takes_newton)


def _most_ctas(shape: ScanShape, target: Target) -> int:
    """The largest cluster of a kernel: that of the GPU, or a smaller one where its CTAs' shared memory does not fit.
    load_scan in templates/include/rnncc/cuda/scan/run.h has the same rule."""
    most = max(size for size, _ in target.clusters)
    while most > 1 and shape.shared_bytes_of(most) > target.shared_bytes:
        most //= 2
    return most


def is_tall(vectorised: ScanShape, channels: int, sms: int) -> bool:
    """Whether the vectorised form has too few lanes for a GPU. templates/include/rnncc/cuda/scan/share.h has the same
    rule."""
    return channels < 32 * vectorised.vector * sms


def scan_ctas(clusters: int, most: int, sms: int, rounds: int = MOST_CTAS) -> int:
    """How many CTAs share the steps of the same channels, where a launch has so many clusters of at most `most` CTAs.
    `rounds`: the tiles that one CTA by itself would go through for all steps. scan_ctas in
    templates/include/rnncc/cuda/scan/share.h has the same rule."""
    ctas = 1
    while 2 * ctas <= most and ctas * clusters < 2 * sms and ctas < rounds:
        ctas *= 2
    return ctas


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScanCost:
    """The cost of a loop that its layout depends on.

    family         the family of the kernel
    element_bytes  bytes per element of the streams
    edges          floats per channel that live from step to step
    entries        slopes per channel of the map of several steps, at most; 0 where threads share no steps
    totals         values per channel that are summed over all steps
    kept           values per channel and step that its map and its run have in common
    vectors        weights per unit
    reads, rows, writes
                   tensors that a step reads with a number per channel, with a number per batch entry, and writes
    read_bytes, written_bytes
                   bytes per channel and step
    """

    family: Family
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
    def shares_steps(self) -> bool:
        """Whether warps and CTAs share the steps of a channel."""
        return self.family.scope is not Scope.THREAD

    @property
    def numbers(self) -> int:
        """Numbers per channel of the map of several steps."""
        return self.entries + self.edges if self.shares_steps else 0


def _facts(loop: ScanLoop, element_bytes: int) -> _ScanCost:
    def bytes_of(tensor: FusedRead | FusedWrite) -> int:
        return 4 if tensor.place is not None and tensor.place.table is Table.SAVED else element_bytes

    return _ScanCost(
        family=loop.family,
        element_bytes=element_bytes,
        edges=len(loop.edges),
        entries=sum(entries(loop.map.matrix)) if loop.map else 0,
        totals=len(loop.totals),
        kept=_kept(loop),
        vectors=len(loop.vectors),
        reads=len(loop.reads),
        rows=len(row_values(loop)),
        writes=len(loop.writes),
        read_bytes=sum(map(bytes_of, loop.reads)),
        written_bytes=sum(map(bytes_of, loop.writes)),
    )


def _is_quick(loop: ScanLoop) -> bool:
    return all(OPERATORS[name].cheap for statement in loop.statements for name in operators(statement.expr))


def _kept(loop: ScanLoop) -> int:
    """The values that the map of a step and its run have in common. Where they are too many to be named, nvcc finds
    some of them."""
    if loop.kept or loop.map is None:
        return len(loop.kept)
    own = {statement.target for statement in loop.statements}
    return min(_FOUND, sum(statement.target in own for statement in loop.map.statements))


def _vectorised(cost: _ScanCost) -> ScanShape:
    """A lane has several channels. Parts come through shared memory, in pieces of 16 bytes."""
    vectors = tuple(n for n in (1, 2, 4, 8) if n * cost.element_bytes <= 8)
    return _shape(cost, _Choice(vectors, (2, 4, 8, 16), (2, 4, 8), (2, 3, 4, 6, 8), 2))


def _tall(cost: _ScanCost) -> ScanShape:
    """The same for few channels: a lane has one channel, and parts are longer and shared out less often."""
    # Kernels that read and write much hold all registers that there are: they take the shortest parts of whole rows.
    if cost.reads + cost.writes > 6:
        return _shape(cost, _Choice((1,), (_PIECE_BYTES // cost.element_bytes,), (4,), (2,), 2))
    # Maps of several carries spill in longer parts, and also where three CTAs share the registers of an SM.
    if cost.edges > 1:
        return _shape(cost, _Choice((1,), (4, 8, 16), (4,), (2,), 2))
    # Sums over all steps need a register more than the longest parts leave.
    longest = (32,) if cost.shares_steps and not cost.totals else ()
    return _shape(cost, _Choice((1,), (4, 8, 16, *longest), (4,), (2,), 3))


def _newton(cost: _ScanCost, least_ctas: int) -> ScanShape | None:
    """A lane has one channel, since there are few. Longer slices leave fewer first carries to be found, but need more
    registers for what they read. Rows need registers all the time, for two parts."""
    resident = 1 if cost.rows else 2
    for steps in (16, 8) if cost.reads <= _MOST_READS and not cost.rows else (8,):
        try:
            shape = _shape(cost, _Choice((1,), (steps,), (8,), (2,), resident))
        except Infeasible:
            continue
        return replace(shape, peer_bytes=shape.peer_bytes + _ANSWER_BYTES, least_ctas=least_ctas)
    return None


def _narrow(cost: _ScanCost) -> ScanShape:
    """The next part comes into registers, element by element."""
    return _shape(cost, _Choice((1,), (2, 4, 8, 16), (2, 4, 8), (1,), 2))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The values that the fields of a form's ScanShape may have. `resident`: CTAs per SM."""

    vectors: tuple[int, ...]
    steps: tuple[int, ...]
    warps: tuple[int, ...]
    depths: tuple[int, ...]
    resident: int


def _shape(cost: _ScanCost, choice: _Choice) -> ScanShape:
    """The quickest shape of a choice."""
    resident = choice.resident
    model = Model()
    vector = model.choice("vector", choice.vectors)
    steps = model.choice("steps", choice.steps)
    warps = model.choice("warps", choice.warps if cost.shares_steps else (2,))
    depth = model.choice("depth", choice.depths)
    is_ring = choice.depths != (1,)

    part = 32 * vector * steps * cost.read_bytes  # bytes
    maps = 256 * cost.numbers * vector
    carries = 256 * cost.edges * vector + 16 if cost.shares_steps else 0
    in_loop = warps * (maps + part * depth if is_ring else maps) + carries
    after = warps * (128 * cost.totals * vector if cost.shares_steps else 0)
    shared = maximum(in_loop, after)
    if is_ring:
        whole = vector * steps * cost.element_bytes % _PIECE_BYTES == 0
        model.require(whole, because="pieces: a warp loads whole rows")
    least = min(gpu.shared_bytes for gpu in GPUS.values())
    model.require(shared <= least, because="shared memory: a CTA holds parts and maps")
    model.require(
        resident * (in_loop + MOST_CTAS * maps + _CTA_BYTES) <= _CLUSTERED_BYTES,
        because="shared memory: an SM holds CTAs of the largest cluster",
    )
    registers = lookup(warps, {n: _registers_of(n, resident) for n in (2, 4, 8)})
    # Registers beyond these go to memory and back in every part. That is worse than anything else, but a kernel that
    # spills is better than none.
    is_crowded = lookup(warps, {n: int(is_ring and _registers_of(n, resident) == _CROWDED) for n in (2, 4, 8)})
    needed = is_crowded * _fewest_registers(cost, vector, steps)
    needed = needed + (1 - is_crowded) * _registers(cost, vector, steps, is_ring, resident)
    spilled = maximum(0, needed - registers)

    together = resident * warps
    # A loop may read nothing.
    in_flight = 32 * vector * steps * max(cost.read_bytes, 1) * together * (depth - 1 if is_ring else 1)
    memory = _SCALE * 32 * (cost.read_bytes + cost.written_bytes) // _BYTES_PER_CYCLE
    bandwidth = maximum(memory, ceil_div(memory * _IN_FLIGHT, in_flight))
    per_part = _PER_PART + _PER_NUMBER * cost.numbers * vector * warps
    pieces = ceil_div(2 * vector * cost.read_bytes, 32) if is_ring else cost.reads
    per_step = _PER_PIECE * pieces + _PER_WRITE * cost.writes
    issued = _SCALE // _QUARTERS * (ceil_div(per_part, steps * vector) + ceil_div(per_step, vector))
    wait = _WAIT + _WAIT_PER_STEP * steps + _WAIT_PER_WARP * warps
    waiting = ceil_div(_SCALE * wait, steps * vector * together)
    # The three times overlap in part. Among equal shapes the narrowest has more lanes.
    solution = model.minimise((spilled, bandwidth + issued + waiting, vector, shared))
    value = solution.value
    return ScanShape(
        family=cost.family,
        vector=value(vector),
        steps=value(steps),
        warps=value(warps),
        depth=value(depth),
        registers=value(registers),
        resident=resident,
        shared_bytes=value(in_loop),
        peer_bytes=value(maps) if cost.shares_steps else 0,
        least_shared_bytes=value(after),
    )


def _registers_of(warps: int, resident: int) -> int:
    """The most registers per thread, where so many CTAs of so many warps are on an SM."""
    return min(255, REGISTERS // (32 * warps * resident) // 8 * 8)


def _fewest_registers(cost: _ScanCost, vector: Expression, steps: Expression) -> Expression:
    """The registers per thread that nvcc 13 needs so that nothing spills where a thread may take 128: fitted to 170
    kernels for sm_90a. Some kernels with more carries, or with elements of 4 bytes, spill anyway; we do not know
    why."""
    if cost.element_bytes == 4:
        return _registers(cost, vector, steps, True, 2)
    tensors = 3 * (cost.reads + cost.writes)
    return 60 + tensors + steps * (2 * cost.rows + vector * cost.kept) + 7 * cost.edges**2 * vector


def _registers(cost: _ScanCost, vector: Expression, steps: Expression, is_ring: bool, resident: int) -> Expression:
    """The registers per thread that nvcc 13 takes where a thread may take 255, or a few more: fitted to 600 kernels for
    sm_90a. Where a thread may take fewer, it holds little besides what is kept."""
    tensors = 6 * (cost.reads + cost.writes)
    carried = vector * (5 * cost.edges + cost.numbers)
    if resident > 2:
        return 96 + tensors + steps * (2 * cost.rows + vector * cost.kept) + carried
    per_step = (cost.kept + 1) // 2 + (1 if is_ring else 2 * cost.reads)
    return 100 + tensors + steps * (2 + 3 * cost.rows + vector * per_step) + carried
