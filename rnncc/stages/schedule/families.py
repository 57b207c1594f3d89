"""The models of the fused families. A family whose launch is a step has none: stepwise.py computes its time."""

from __future__ import annotations

from collections.abc import Callable

from rnncc.ir.family import BLOCKS, GATHER, GRID, SCATTER, SPARSE, WIDE, Family
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.blocks import SQUARE, blocks
from rnncc.stages.schedule.cost import LoopCost
from rnncc.stages.schedule.gather import gather
from rnncc.stages.schedule.grid import grid
from rnncc.stages.schedule.layout_model import LayoutModel
from rnncc.stages.schedule.scatter import scatter
from rnncc.stages.schedule.sparse import sparse
from rnncc.stages.schedule.wide import wide

MODELS: dict[Family, Callable[[LoopCost, Problem, Target], LayoutModel]] = {
    GATHER: gather,
    SCATTER: scatter,
    GRID: grid,
    WIDE: wide,
    SPARSE: sparse,
    BLOCKS: blocks,
}


def families_for(cost: LoopCost) -> tuple[Family, ...]:
    """The families that may have a kernel for a loop. The sparse family would deal out large blocks unevenly, among
    CTAs that wait for each other."""
    has_blocks = cost.has_blocks_of(SQUARE)
    asked_for = {SPARSE: cost.is_sparse and not has_blocks, BLOCKS: has_blocks}
    return tuple(family for family in MODELS if asked_for.get(family, True))
