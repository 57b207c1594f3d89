"""Grid kernels of matrices of low rank: which phases are relayed, and what the model makes of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from rnncc.ir.family import GRID
from rnncc.ir.fused import FusedLoop
from rnncc.ir.layout import KernelLayout
from rnncc.ir.lowered import LoweredLoop
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.expect import after_us
from tests.stages.scheduling import backward

H200 = GPUS["h200"]
FIXTURE = Path(__file__).resolve().parents[1].joinpath("fixtures", "lowranklstm.rnn").read_text(encoding="utf-8")
ELMAN = "cell Elman\nstate h\nweights R: {kind}\nh[t] = tanh(W@x + R@h[t-1] + b)\n"


@cache
def loops_of(text: str) -> tuple[FusedLoop, FusedLoop]:
    """A cell's plain loops: forward, in training, and backward."""
    (loop, *_) = compile_cells(Request(Source("own.rnn", text), "own"), "lower").cells[0].plan.loops
    assert isinstance(loop, LoweredLoop) and isinstance(loop.fused, tuple)
    return loop.fused


def lstm(rank: int | str) -> str:
    """The LSTM with matrices of that rank."""
    return FIXTURE.replace("lowrank(128)", f"lowrank({rank})")


def kernel_of(loop: FusedLoop, problem: Problem) -> KernelLayout:
    """The kernel that runs the problem's batch."""
    found = schedule(loop, problem, H200).kernel_for(problem.batch)
    assert found is not None
    return found


def relayed(text: str) -> list[list[bool]]:
    """Which phases are relayed, forward and backward."""
    return [[] if loop.relays is None else [*map(bool, loop.relays.phases)] for loop in loops_of(text)]


def test_the_first_factors_sums_are_relayed_both_ways() -> None:
    assert relayed(lstm(128)) == [[True, False]] * 2
    for loop in loops_of(lstm(128)):
        assert loop.relays is not None and loop.relays.count == 4
        # What takes relayed sums comes last, and each sum goes to a tensor.
        takes = [*map(loop.relays.takes, loop.writes)]
        assert takes == sorted(takes) and sum(takes) == 4
        assert {each.written for own in loop.relays.phases for each in own} == {w.value for w in loop.writes[-4:]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lstm("K").replace("state", "dim K\nstate", 1), "the layer says what K is"),
        (lstm(8).replace("weights R:", "weights U: matrix, R:").replace("b)\ng", "U@c[t-1] + b)\ng"), "U, too"),
        (ELMAN.format(kind="matrix"), "R has no factors"),
    ],
)
def test_no_other_phase_is_relayed(text: str, why: str) -> None:
    assert relayed(text) == [[], []], why


def test_a_chain_has_several_relayed_phases() -> None:
    text = (
        "cell Chain\nstate h\nweights R: lowrank(16)\nr = sigmoid(W@x + R@h[t-1])\n"
        "n = tanh(R@(r*h[t-1]) + W@x)\nh[t] = r*h[t-1] + (1 - r)*n\n"
    )
    assert relayed(text) == [[True, False, True, False]] * 2


def test_a_rank_may_follow_from_the_hidden_size() -> None:
    for loop in loops_of(lstm("H//16")):
        assert cost_of(loop, "bf16").narrow(Problem(2048, 1, "bf16")) == 128
        assert cost_of(loop, "bf16").narrow(Problem(2048 + 64, 1, "bf16")) == 0  # 132 is no multiple of 8


def test_sums_as_wide_as_a_state_are_not_dealt_out() -> None:
    for loop in loops_of(lstm(128)):
        assert cost_of(loop, "bf16").narrow(Problem(128, 2, "bf16")) == 0
        assert cost_of(loop, "bf16").narrow(Problem(136, 2, "bf16")) == 128
        assert {kernel.relayed_head_dim for kernel in schedule(loop, Problem(128, 2, "bf16"), H200).kernels} == {0}


def test_factors_stay_on_chip_where_the_matrix_does_not_fit() -> None:
    """Eight entries in each of two groups: so each CTA reads half of the batch."""
    problem = Problem(4096, 1, "bf16")
    for loop in loops_of(lstm(256)):
        kernel = kernel_of(loop, problem)
        assert (kernel.family, kernel.relayed_head_dim, kernel.ctas, kernel.group_batch) == (GRID, 256, 64, 8)
        assert kernel.step_us < 5.5 < alternating_us(cost_of(loop, "bf16"), problem, H200) / 2


@pytest.mark.parametrize(("head_dim", "rank"), [(768, 32), (1024, 64), (2048, 128), (4096, 64)])
def test_a_smaller_rank_takes_less_time(head_dim: int, rank: int) -> None:
    problem = Problem(head_dim, 1, "bf16")
    for small, large in zip(loops_of(lstm(rank // 2)), loops_of(lstm(rank)), strict=True):
        assert kernel_of(small, problem).step_us < kernel_of(large, problem).step_us


def test_what_comes_after_the_loop_takes_less_than_for_dense_matrices() -> None:
    problem = Problem(2048, 1, "bf16")
    loops = (loops_of(lstm(128))[1], backward("lstm"))
    low_rank, dense = (after_us(loop, problem, 1024, H200) for loop in loops)
    assert low_rank < dense / 4


def test_what_has_no_room_is_said() -> None:
    (loop, _) = loops_of(lstm(1024))
    found = schedule(loop, Problem(8192, 1, "bf16"), H200, reasons=True)
    (rejected,) = (each for each in found.rejected if each.family is GRID)
    assert {"registers", "shared memory"} & {limit.name for limit in rejected.limits}
