"""Grid kernels for a batch of 8, before those for the planned batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rnncc.ir.family import Scope
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.expect import step_us
from tests.stages.scheduling import backward, forward

H200 = GPUS["h200"]


def test_a_small_batch_may_have_a_kernel_of_its_own() -> None:
    """With one tile of entries, where the next one has two."""
    first, second, *_ = schedule(backward("lstm"), Problem(2048, 1, "bf16"), H200).kernels
    assert (first.launch_batch, second.launch_batch) == (8, 16)
    assert dict(first.tiles)["batch_tile"] == 8 and dict(second.tiles)["batch_tile"] == 16
    assert 1.3 * first.step_us < second.step_us
    assert schedule(backward("lstm"), Problem(1024, 1, "bf16"), H200).kernels[0].launch_batch == 16


@pytest.mark.parametrize(
    ("cell", "problem", "gpu"),
    [
        ("gru", Problem(1536, 2, "bf16"), "h200"),
        ("lstm", Problem(512, 4, "bf16"), "a100"),
        ("nn_rnn", Problem(2048, 1, "fp32"), "a100"),
        ("gru", Problem(2048, 1, "bf16", 4), "b200"),
    ],
)
def test_launches_for_a_small_batch_are_no_slower_than_those_of_the_next_kernel(
    cell: str, problem: Problem, gpu: str
) -> None:
    """Though the last launch of the next one may be nearly empty."""
    loop, target = forward(cell), GPUS[gpu]
    found, known = schedule(loop, problem, target), cost_of(loop, problem.dtype)
    assert found.kernels[0].launch_batch == 8
    for batch in range(9, 129):
        chosen, call = found.kernel_for(batch), replace(problem, batch=batch)
        assert chosen is not None
        times = [step_us(known, each, call, target) for each in found.kernels]
        assert step_us(known, chosen, call, target) <= 1.02 * min(times)


@pytest.mark.parametrize(("gpu", "cell"), [("h200", "lstm"), ("h200", "gru"), ("h100", "gru")])
def test_a_few_launches_are_no_slower_than_clusters(gpu: str, cell: str) -> None:
    """Two full launches may be quicker than clusters, where two that are nearly half empty are not."""
    loop, problem, target = backward(cell), Problem(64, 2, "fp32"), GPUS[gpu]
    found, known = schedule(loop, problem, target), cost_of(loop, problem.dtype)
    clusters = [kernel for kernel in found.kernels if kernel.family.scope is Scope.CLUSTER]
    for batch in range(265, 529, 8):
        chosen, call = found.kernel_for(batch), replace(problem, batch=batch)
        assert chosen is not None
        quickest = min(step_us(known, each, call, target) for each in clusters)
        assert step_us(known, chosen, call, target) <= 1.03 * quickest
