"""Loops to schedule: those of shipped cells, as training runs them."""

from __future__ import annotations

from functools import cache

from rnncc.ir import fused
from rnncc.ir.fused import FusedLoop
from rnncc.ir.plan import LoopPlan
from rnncc.language.source import Source
from rnncc.machine.paths import cells_dir
from rnncc.stages.check import check
from rnncc.stages.differentiate import differentiate
from rnncc.stages.lower import lower
from rnncc.stages.mask import mask
from rnncc.stages.parse import parse


@cache
def loop_plan(name: str) -> LoopPlan:
    """The plain loop of the first segment of a shipped cell."""
    path = cells_dir() / f"{name}.rnn"
    cell, _ = check(parse(Source(path.name, path.read_text(encoding="utf-8")))[0])
    masked = mask(cell)
    return lower(cell, differentiate(cell), masked, differentiate(masked)).loops[0]


def forward(name: str) -> FusedLoop:
    """The fused form forward, in training."""
    loop = loop_plan(name).fused_forward
    assert isinstance(loop, FusedLoop)
    return loop


def backward(name: str) -> FusedLoop:
    """The fused form backward."""
    loop = loop_plan(name).fused_backward
    assert isinstance(loop, FusedLoop)
    return loop


def inference(name: str) -> FusedLoop:
    """Forward without what only a backward reads."""
    return fused.inference(forward(name))
