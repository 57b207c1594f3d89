"""The models of the fused families. A family whose launch is a step has none: stepwise.py computes its time."""

from __future__ import annotations

from collections.abc import Callable

from rnncc.ir.family import GATHER, GRID, SCATTER, WIDE, Family
from rnncc.ir.problem import Problem
from rnncc.ir.target import Target
from rnncc.stages.schedule.draft import Draft
from rnncc.stages.schedule.facts import Facts
from rnncc.stages.schedule.gather import gather
from rnncc.stages.schedule.grid import grid
from rnncc.stages.schedule.scatter import scatter
from rnncc.stages.schedule.wide import wide

MODELS: dict[Family, Callable[[Facts, Problem, Target], Draft]] = {
    GATHER: gather,
    SCATTER: scatter,
    GRID: grid,
    WIDE: wide,
}
