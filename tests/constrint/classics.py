"""General problems: magic squares, factorisations, tilings, schedules of jobs. Each makes a model and an objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isqrt

from rnncc.constrint import Expression, Model, distinct, maximum

Classic = Callable[[], tuple[Model, Expression | None]]


def magic_square(size: int) -> tuple[Model, Expression | None]:
    """The numbers 1 … size², each once, every row, column and diagonal of the same sum; the corner 1 x 1 is least of
    all corners and the one right of it less than the one below, which leaves one of each eight mirror images."""
    model = Model()
    cells = [[model.integer(f"c{i}{j}", 1, size * size) for j in range(size)] for i in range(size)]
    total = size * (size * size + 1) // 2
    for i in range(size):
        model.require(_sum(cells[i]) == total, because=f"row {i}: the magic sum")
        model.require(_sum([row[i] for row in cells]) == total, because=f"column {i}: the magic sum")
    model.require(_sum([cells[i][i] for i in range(size)]) == total, because="diagonal: the magic sum")
    model.require(_sum([cells[i][-1 - i] for i in range(size)]) == total, because="other diagonal: the magic sum")
    model.require(distinct([cell for row in cells for cell in row]), because="numbers: each once")
    for corner in (cells[0][-1], cells[-1][0], cells[-1][-1]):
        model.require(cells[0][0] < corner, because="mirror images: one of each eight")
    model.require(cells[0][-1] < cells[-1][0], because="mirror images: one of each eight")
    return model, None


def factorisation(number: int) -> tuple[Model, Expression | None]:
    """The two factors of a number that are nearest each other."""
    model = Model()
    small, large = model.integer("small", 2, isqrt(number)), model.integer("large", 2, number // 2)
    model.require(small * large == number, because="factors: of the number")
    return model, large - small


def box(volume: int) -> tuple[Model, Expression | None]:
    """The box of a volume with the least surface."""
    model = Model()
    a, b, c = (model.integer(name, 1, volume) for name in "abc")
    model.require(a * b * c == volume, because="volume: exactly")
    model.require(a <= b, because="order: a first")
    model.require(b <= c, because="order: c last")
    return model, 2 * (a * b + b * c + a * c)


def tiling(rows: int, columns: int, depth: int, memory: int) -> tuple[Model, Expression | None]:
    """Tiles of a matrix product: the least traffic with three tiles in a small memory."""
    model = Model()
    tile_m, tile_n, tile_k = (
        model.integer(name, 1, size) for name, size in (("m", rows), ("n", columns), ("k", depth))
    )
    for tile, size in ((tile_m, rows), (tile_n, columns), (tile_k, depth)):
        model.require(size - size // tile * tile == 0, because="tiles: whole ones only")
    model.require(tile_m * tile_k + tile_k * tile_n + tile_m * tile_n <= memory, because="memory: holds three tiles")
    return model, rows * columns * (depth // tile_m + depth // tile_n) + 64 * (depth // tile_k)


def job_shop(jobs: tuple[tuple[tuple[int, int], ...], ...]) -> tuple[Model, Expression | None]:
    """The shortest time in which all jobs, sequences of (machine, duration), pass through the machines."""
    model = Model()
    horizon = sum(duration for job in jobs for _, duration in job)
    machines: dict[int, list[tuple[Expression, int]]] = {}
    ends = []
    for number, job in enumerate(jobs):
        free: Expression | None = None
        for machine, duration in job:
            start = model.integer(f"job{number}_on{machine}", 0, horizon)
            if free is not None:
                model.require(start >= free, because=f"job {number}: one operation after the other")
            free = start + duration
            machines.setdefault(machine, []).append((start, duration))
        assert free is not None
        ends.append(free)
    for machine, operations in machines.items():
        for i, (one, duration) in enumerate(operations):
            for other, other_duration in operations[i + 1 :]:
                model.require(
                    (one + duration <= other) | (other + other_duration <= one),
                    because=f"machine {machine}: one job at a time",
                )
    return model, maximum(*ends)


def _sum(parts: Sequence[Expression]) -> Expression:
    total: Expression = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


THREE_JOBS = (((0, 3), (1, 2), (2, 2)), ((0, 2), (2, 1), (1, 4)), ((1, 4), (2, 3), (0, 1)))
FOUR_JOBS = (
    ((0, 5), (1, 7), (2, 10), (3, 2)),
    ((1, 4), (3, 3), (0, 6), (2, 5)),
    ((2, 6), (0, 4), (3, 7), (1, 3)),
    ((3, 8), (2, 2), (1, 5), (0, 4)),
)

ALL: dict[str, Classic] = {
    "magic square 3": partial(magic_square, 3),
    "magic square 4": partial(magic_square, 4),
    "factorisation 31607 * 31627": partial(factorisation, 31_607 * 31_627),
    "factorisation 720720": partial(factorisation, 720_720),
    "box 5040": partial(box, 5040),
    "box 100002": partial(box, 100_002),
    "tiling 768 x 1024 x 3072": partial(tiling, 768, 1024, 3072, 49_152),
    "tiling 1000 x 1000 x 1000": partial(tiling, 1000, 1000, 1000, 10_000),
    "jobs 3 x 3": partial(job_shop, THREE_JOBS),
    "jobs 4 x 4": partial(job_shop, FOUR_JOBS),
}
