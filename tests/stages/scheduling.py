"""Loops to schedule: those of shipped cells, as training runs them."""

from __future__ import annotations

from functools import cache

from rnncc.ir import fused
from rnncc.ir.fused import FusedLoop
from rnncc.ir.lowered import LoweredLoop
from tests.compiling import plan_of


@cache
def loop_plan(name: str) -> LoweredLoop:
    """The plain loop of the first segment of a shipped cell."""
    return plan_of(name).loops[0]


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
