"""The families of fused kernels, by name."""

from __future__ import annotations

from rnncc.stages.schedule.gather import gather
from rnncc.stages.schedule.grid import grid
from rnncc.stages.schedule.scatter import scatter

FAMILIES = {"gather": gather, "scatter": scatter, "grid": grid}
