"""`schedule`: how a fused loop is laid out on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rnncc.ir.fused import FusedLoop
from rnncc.ir.kernel import Table
from rnncc.ir.schedule import FusedSchedule

SHARED_BYTES = 232_448


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def schedule(loop: FusedLoop, units: int) -> tuple[FusedSchedule, ...]:
    """The quickest kernels for heads of `units` units, for few batch columns first; none where no kernel fits.

    Clusters take any number of columns, group after group. Blocks of the grid must all run at once, so wider groups
    have kernels of their own.
    """
    if units % 8:
        return ()

    def quickest(plans: Iterable[FusedSchedule]) -> FusedSchedule | None:
        return min(plans, key=lambda plan: (plan.step_us, plan.blocks, plan.shape), default=None)

    grid = list(_grid(loop, units))
    few = [plan for plan in grid if 132 // plan.blocks * plan.columns >= 16 and plan.columns == 8]
    best = quickest([*_gather(loop, units), *_scatter(loop, units), *few])
    chosen = [] if best is None else [best]
    if best is None or best.family == "grid":
        for columns in (16, 32):
            wide = quickest(plan for plan in grid if plan.columns == columns)
            if wide is not None:
                chosen.append(wide)
    return tuple(chosen)


def _registers(warps: int) -> int:
    """Of a thread, where the registers of a multiprocessor's quarter are shared by its warps."""
    per_quarter = _ceil(warps, 4)
    return min(255, 512 // per_quarter // 8 * 8)


def _input_bytes(loop: FusedLoop, units: int, columns: int) -> int:
    """Of the ring that holds what a thread block reads: Feed in templates/include/rnncc/cuda/fused/step.cuh."""

    def row(width: int) -> int:
        return units * width if units * width % 32 else units * width + 16

    stage = columns * sum(row(4 if read.place.table is Table.SAVED else 2) for read in loop.reads)
    stages = 8 if stage <= 8192 else 4
    return stages * (stage + 8)


def _overhead(loop: FusedLoop, items: int) -> int:
    """Registers for what is not the matrix: addresses, carries, values on their way."""
    pieces = sum(2 if read.place.table is Table.SAVED else 1 for read in loop.reads)
    per_item = 2 * (len(loop.edges) + len(loop.kept)) + 6 * _ceil(pieces, 4) + len(loop.writes) + 12
    return 34 + items * per_item


def _gather(loop: FusedLoop, units: int) -> Iterator[FusedSchedule]:
    sums, operands = len(loop.sums), len(loop.operands)
    for blocks in (1, 2, 4, 8, 16):
        for k_warps in (1, 2, 4):
            for unit_blocks in (1, 2):
                unit_warps = _ceil(units, blocks * unit_blocks * 8)
                dim = unit_warps * unit_blocks * 8 * blocks
                while dim % (32 * k_warps):
                    unit_warps += 1
                    dim = unit_warps * unit_blocks * 8 * blocks
                warps = unit_warps * k_warps
                if warps > 16 or (k_warps > 1 and 2 * unit_warps >= 16) or dim > 2 * units + 32:
                    continue
                halves = sums * unit_blocks
                rows = _ceil(halves, 2)
                pairs = operands * dim // k_warps // 32
                items = _ceil(unit_blocks, k_warps)
                free = _registers(warps) - _overhead(loop, items) - rows * 4 * (2 if rows < 4 else 1) - rows * 8
                resident = max(0, min(pairs, free // (rows * 8)))
                shared_pairs = pairs - resident
                matrix = warps * shared_pairs * rows * 1024
                tile = operands * dim // 8 * 160
                shared = 2 * tile + matrix + 2 * (k_warps - 1) * unit_warps * halves * 256
                shared += _input_bytes(loop, unit_warps * unit_blocks * 8, 8) + 16 * k_warps
                if shared > SHARED_BYTES:
                    continue
                products = _ceil(warps, 4) * rows * pairs * 2 * 6.3
                cycles = max(products, matrix / 128) + 0.3 * min(products, matrix / 128) + 420 + 60 * items
                cycles += 200 * (k_warps // 2)
                if blocks > 1:
                    cycles += 420 + operands * dim * 8 * 2 / 1000 * 45
                yield FusedSchedule(
                    "gather", blocks, (blocks, unit_warps, k_warps, unit_blocks, 1, 2 * resident), warps * 32, shared,
                    _registers(warps), 8, round(cycles / 1800, 3),
                )  # fmt: skip


def _scatter(loop: FusedLoop, units: int) -> Iterator[FusedSchedule]:
    sums, operands = len(loop.sums), len(loop.operands)
    for blocks in (1, 2, 4, 8, 16):
        own = _ceil(units, blocks * 8) * 8
        dim = own * blocks
        for row_warps in (2, 4, 8, 12, 16):
            for k_warps in (1, 2, 4):
                warps = row_warps * k_warps
                if warps > 16 or sums * dim % (16 * row_warps):
                    continue
                rows = sums * dim // 16 // row_warps
                depth = _ceil(operands * own, 32 * k_warps) * 32
                pairs = depth // 32
                items = own // 8
                owned = _ceil(items, warps)
                free = _registers(warps) - _overhead(loop, owned) - rows * 4 * (2 if rows < 4 else 1) - rows * 8
                resident = max(0, min(pairs, free // (rows * 8)))
                matrix = warps * (pairs - resident) * rows * 1024
                parts = blocks * k_warps * items * sums * 256
                shared = 2 * (depth * k_warps // 8 * 160) + 2 * parts + matrix + _input_bytes(loop, own, 8) + 16
                if shared > SHARED_BYTES:
                    continue
                products = _ceil(warps, 4) * rows * pairs * 2 * 6.3
                cycles = max(products, matrix / 128) + 0.3 * min(products, matrix / 128) + 700 + 160 * owned
                cycles += parts / 128 * 2
                if blocks > 1:
                    cycles += 450 + blocks * own * sums * 8 * 4 / 1000 * 45
                yield FusedSchedule(
                    "scatter", blocks, (blocks, own, row_warps, k_warps, 1, 2 * resident), warps * 32, shared,
                    _registers(warps), 8, round(cycles / 1800, 3),
                )  # fmt: skip


def _grid(loop: FusedLoop, units: int) -> Iterator[FusedSchedule]:
    sums, operands = len(loop.sums), len(loop.operands)
    for unit_blocks in (1, 2, 3, 4):
        blocks = _ceil(units, unit_blocks * 8)
        if blocks > 132 or blocks < 8:
            continue
        for tiles in (1, 2, 4):
            halves = sums * unit_blocks
            rows = _ceil(halves, 2)
            chunks = _ceil(operands * _ceil(units, 32), 8)
            items = unit_blocks * tiles
            owned = _ceil(items, 8)
            batch = chunks if chunks * tiles <= 8 else max(1, 8 // tiles)
            free = 255 - _overhead(loop, owned) - rows * tiles * 4 - batch * tiles * 4 - rows * 8
            resident = max(0, min(chunks, free // (rows * 8)))
            matrix = 8 * (chunks - resident) * rows * 1024
            shared = 2 * 8 * tiles * halves * 256 + matrix + _input_bytes(loop, unit_blocks * 8, 8 * tiles)
            if shared > SHARED_BYTES:
                continue
            products = 2 * rows * chunks * 2 * tiles * 6.3
            exchange = 1100 + operands * units * 2 * 8 * tiles / 1000 * 28
            cycles = max(products, matrix / 128) + 0.3 * min(products, matrix / 128) + exchange + 900 + 300 * owned
            yield FusedSchedule(
                "grid", blocks, (unit_blocks, 8, tiles, 2 * resident), 256, shared, 255, 8 * tiles,
                round(cycles / 1800, 3),
            )  # fmt: skip
