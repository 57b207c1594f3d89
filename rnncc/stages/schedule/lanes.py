"""Products in float32, without tensor cores: the rows that a lane has, and what their sums and operands take.

A lane multiplies each operand that it loads by its rows of all half-tiles. An SM's shared memory hands out 128 bytes
per cycle, to operands and matrices alike. So products wait for it where a lane has up to four rows, and the
multiplications hide it where a lane has more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rnncc.constrint import Expression, Model, by, ceil_div, maximum
from rnncc.constrint.expr import Operand
from rnncc.ir.layout import ceil
from rnncc.stages.schedule.parts import Halves
from rnncc.stages.schedule.rates import Rates

LANE_ROWS = (1, 4)  # the most rows of a half-tile that a lane has
_FEW_ROWS = 4  # up to so many rows of a lane do not hide what shared memory takes


def rows_of_lane(halves: int, row_limit: int) -> int:
    """The rows of each half-tile that a lane has, where a warp has so many half-tiles, and `row_limit` is one of
    LANE_ROWS. rows_of_lane in resident.cuh has the same rule."""
    return 1 if halves >= 4 else 2 if halves >= 2 and row_limit > 2 else row_limit


def float_sum_registers(halves: int, row_limit: int) -> int:
    """Registers per thread for the sums of half-tiles."""
    return (8 * rows_of_lane(halves, row_limit) + 2) * halves


def lane_rows_variable(model: Model, is_float: bool) -> Operand:
    """How many rows of a half-tile a lane may have."""
    return model.choice("lane_rows", LANE_ROWS) if is_float else 1


@dataclass(frozen=True, slots=True)
class LaneProduct:
    """Products in float32 that are alike, or the sums of a phase.

    halves     half-tiles of a warp, by the key of Lanes
    of_phase   half-tiles of a warp in all products of the phase: rows_of_lane goes by these
    chunks     how many chunks of 32 terms a warp has
    """

    halves: Halves
    of_phase: Halves
    chunks: Operand = 1


@dataclass(frozen=True, slots=True)
class Lanes:
    """The time that products of a CTA take, in tenths of a nanosecond.

    key   what half-tiles are counted by: blocks of 8 units, or tiles of 16 sums
    """

    rate: Rates
    warps: Operand
    key: Operand
    lane_rows: Operand

    def products(self, parts: Iterable[LaneProduct]) -> Operand:
        """The time of products by 8 batch entries. Where a lane has few rows, they may take as long as the loads of
        all warps. A warp alone on its quarter of the SM waits for its own loads: it takes as long as two warps."""
        return sum(self._product(part) for part in parts)

    def _product(self, part: LaneProduct) -> Operand:
        def own(halves: int, rows: int) -> int:
            waits = rows > 1 and rows * halves <= _FEW_ROWS
            return halves * (self.rate.float_waiting_product if waits else self.rate.float_product)

        def loads(rows: int) -> int:
            return self.rate.float_operand_load * 4 // rows

        warps, chunks = self.warps, part.chunks
        if isinstance(warps, int) and isinstance(chunks, int):
            # One table is quicker to search than what it is made from.
            sharers, all_chunks = max(ceil(warps, 4), 2), warps * chunks
            return self._by(
                part, lambda halves, rows: max(sharers * own(halves, rows) * chunks, ceil(loads(rows) * all_chunks, 4))
            )
        return maximum(
            self._by(part, own) * chunks * maximum(ceil_div(warps, 4), 2),
            ceil_div(self._by(part, lambda _, rows: loads(rows)) * warps * chunks, 4),
        )

    def folded(self, phases: Iterable[LaneProduct]) -> Operand:
        """The time in which lanes that share rows add up their sums for 8 batch entries."""
        return self.warps * sum(
            self._by(phase, lambda halves, rows: self.rate.float_lane_sum * halves * (rows - 1)) for phase in phases
        )

    def matrices(self, parts: Iterable[LaneProduct]) -> Operand:
        """What chunks take longer whose matrix is in shared memory."""

        def own(halves: int, rows: int) -> int:
            few = rows * halves <= _FEW_ROWS
            return halves * (self.rate.float_matrix_read_per_kb if few else self.rate.matrix_read_per_kb)

        return self.warps * sum(self._by(part, own) * part.chunks for part in parts)

    def _by(self, part: LaneProduct, function: Callable[[int, int], int]) -> Expression:
        """A function of the half-tiles, and of the rows that a lane has of each."""
        return by(
            (self.key, self.lane_rows),
            lambda key, row_limit: function(part.halves(key), rows_of_lane(part.of_phase(key), row_limit)),
        )
