"""Steps measured on an H200 (benchmarks/results/gpu_steps.json) against what the cost model says of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from rnncc.constrint import Infeasible
from rnncc.ir.fused import FusedLoop
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule import after_us, schedule
from rnncc.stages.schedule.alternating import alternating_us
from rnncc.stages.schedule.facts import facts_of
from rnncc.stages.schedule.families import MODELS, families_for
from tests.stages.scheduling import backward, forward, inference

H200 = GPUS["h200"]
MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "gpu_steps.json"
STEPS = 1024
MOST_APART = 1.3
# What a call takes beside its kernels, in microseconds: to prepare them; with a backward, autograd.
CALL, BACKWARD_CALL = 200, 400


@dataclass(frozen=True)
class Row:
    """Microseconds per step of the LSTM; `what` is a key of PREDICTIONS."""

    what: str
    problem: Problem
    measured: float

    def __str__(self) -> str:
        p = self.problem
        return f"{self.what} {p.head_dim}x{p.heads} {p.batch} {p.dtype}"


def rows() -> list[Row]:
    """The rows of the file, in its order."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))["results"]
    return [
        Row(row["what"], Problem(row["head_dim"], row["heads"], row["dtype"], row["batch"]), row["us"]) for row in found
    ]


def fused(loop: FusedLoop, problem: Problem) -> float:
    """The quickest fused kernel."""
    found = []
    known = facts_of(loop, problem.dtype)
    for family in families_for(known):
        draft = MODELS[family](known, problem, H200)
        try:
            found.append(draft.expected_us(draft.model.minimise(draft.total), problem, H200))
        except Infeasible:
            continue
    return min(found)


def planned(loop: FusedLoop, problem: Problem) -> float:
    """The quickest kernel."""
    us = schedule(loop, problem, H200).step_us
    assert us is not None
    return us


def gradients(problem: Problem) -> float:
    """What comes after the loop, of a step."""
    return after_us(backward("lstm"), problem, STEPS, H200) / STEPS


def alternating(loop: FusedLoop, problem: Problem) -> float:
    return alternating_us(facts_of(loop, problem.dtype), problem, H200)


def both_ways(problem: Problem) -> float:
    kernels = planned(forward("lstm"), problem) + planned(backward("lstm"), problem)
    return kernels + gradients(problem) + (CALL + BACKWARD_CALL) / STEPS


PREDICTIONS = {
    "fused forward": lambda problem: fused(inference("lstm"), problem),
    "fused backward": lambda problem: fused(backward("lstm"), problem),
    "alternating forward": lambda problem: alternating(inference("lstm"), problem),
    "alternating training forward": lambda problem: alternating(forward("lstm"), problem),
    "alternating backward + gradients": lambda problem: alternating(backward("lstm"), problem) + gradients(problem),
    "call forward": lambda problem: planned(forward("lstm"), problem) + CALL / STEPS,
    "call forward + backward": both_ways,
}


def test_the_rows_are_read() -> None:
    assert {row.what for row in rows()} == set(PREDICTIONS)
    assert len(set(map(str, rows()))) == len(rows()) > 60


@pytest.mark.parametrize("row", rows(), ids=str)
def test_measured_is_as_predicted(row: Row) -> None:
    assert 1 / MOST_APART < PREDICTIONS[row.what](row.problem) / row.measured < MOST_APART
