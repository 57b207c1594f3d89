"""The model of kernels of blocks: what it asks of a loop, and what it plans."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from rnncc.constrint import Infeasible
from rnncc.ir.family import BLOCKS
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.blocks import blocks
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.families import families_for

H200 = GPUS["h200"]
LSTM = Path(__file__).resolve().parents[1].joinpath("fixtures", "blocklstm.rnn").read_text(encoding="utf-8")


@cache
def loops_of(text: str) -> tuple[FusedLoop, FusedLoop]:
    """The loops of a cell in training."""
    loop = compile_cells(Request(Source("own.rnn", text), "own"), "lower").cells[0].plan.loops[0]
    assert isinstance(loop.fused_forward, FusedLoop) and isinstance(loop.fused_backward, FusedLoop)
    return loop.fused_forward, loop.fused_backward


@pytest.mark.parametrize(("block", "expected"), [(8, False), (16, True), (24, False), (32, True)])
def test_blocks_are_made_of_squares(block: int, expected: bool) -> None:
    for loop in loops_of(LSTM.replace("block=16", f"block={block}")):
        assert (BLOCKS in families_for(cost_of(loop, "bf16"))) is expected


def test_all_matrices_must_have_blocks() -> None:
    mixed = LSTM.replace("weights R:", "weights U: sparse(density=0.1), R:").replace("b)\ng", "U@c[t-1] + b)\ng")
    assert BLOCKS not in families_for(cost_of(loops_of(mixed)[0], "bf16"))


@pytest.mark.parametrize("batch", [4, 16])
def test_blocks_run_both_ways_where_a_dense_matrix_does_not_fit(batch: int) -> None:
    for loop in loops_of(LSTM):
        taken = schedule(loop, Problem(4096, 1, "bf16", batch), H200).kernel_for(batch)
        assert taken is not None and taken.family is BLOCKS and taken.ctas == 128


def test_the_blocks_of_a_large_batch_have_few_warps() -> None:
    for loop in loops_of(LSTM):
        taken = schedule(loop, Problem(4096, 1, "bf16", 16), H200).kernel_for(16)
        assert taken is not None and dict(taken.tiles)["warps"] == 8


def test_float32_has_no_kernel_of_blocks() -> None:
    layout_model = blocks(cost_of(loops_of(LSTM)[0], "fp32"), Problem(1024, 1, "fp32", 4), H200)
    with pytest.raises(Infeasible, match="tensor cores multiply 16-bit numbers"):
        layout_model.best(4)


def test_more_blocks_take_longer() -> None:
    times = []
    for density in (0.05, 0.1, 0.2):
        known = cost_of(loops_of(LSTM.replace("density=0.1", f"density={density}"))[0], "bf16")
        layout_model = blocks(known, Problem(2048, 1, "bf16", 4), H200)
        times.append(layout_model.best(4).value(layout_model.step))
    assert times == sorted(times) and times[0] < times[-1]


@pytest.mark.parametrize(("head_dim", "batch"), [(1024, 4), (2048, 16), (4096, 4), (4096, 16)])
def test_shared_memory_that_is_left_has_room_for_more_blocks(head_dim: int, batch: int) -> None:
    """Up to 30 % more squares and strips, as far as they fit."""
    for loop in loops_of(LSTM):
        problem = Problem(head_dim, 1, "bf16", batch)
        layout_model = blocks(cost_of(loop, "bf16"), problem, H200)
        kernel = layout_model.scheduled(layout_model.best(batch), problem, H200)
        held, shared, strips = kernel.shape[4:]
        planned = dict(kernel.tiles)["squares_per_warp"]
        more = held + shared - planned
        assert kernel.shared_bytes <= H200.shared_bytes
        assert 0 < more <= 4 * -(-0.3 * planned // 4) and more % 4 == 0
        if head_dim < 4096:
            assert more >= 0.3 * planned and strips <= len(loop.phases[0].operands) * head_dim // 16
