"""What the cost model predicts of calls, as benchmarks/gpu_dense.py measures them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.bench.predict import target_named
from rnncc.ir.layout import AFTER_STEPS, LoopKernels
from rnncc.ir.lowered import NoForm
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule.kernels import call_time, planned
from tests.compiling import plan_of

FOLDER = Path(__file__).parents[1] / "benchmarks"
MEASURED = FOLDER / "results" / "gpu_dense.json"
H200 = GPUS["h200"]


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    made = import_module("gpu_predicted")
    made.predicted_us.cache_clear()  # neither what other tests have predicted, nor what these do
    yield made
    made.predicted_us.cache_clear()


def test_the_rates_are_held_to_what_is_predicted(predicted: Any) -> None:
    """tests/stages/test_schedule_cost.py holds them to every row, by parts of calls."""
    case_of, measured = import_module("gpu_cases").case_of, import_module("measured_steps")
    known = json.loads(MEASURED.read_text(encoding="utf-8"))
    target = target_named(known["environment"]["gpu"])
    # Where a row names no commit, it is older than the kernel for the gradients of heads.
    rows = [row for row in known["results"] if row["who"] == "rnncc" and "error" not in row and "commit" in row]
    assert len(rows) > 20
    for row in rows[::8]:
        assert predicted.predicted_us(case_of(row), target) == pytest.approx(measured.call_step(row).predicted_us)


def test_a_call_is_what_explain_says_and_what_surrounds_it() -> None:
    """At the batch size that kernels are laid out for, in training."""
    plan = plan_of("lstm")
    for head_dim, heads in ((64, 12), (768, 1)):
        problem = Problem(head_dim, heads, "bf16")
        (loop,) = planned(plan, problem, H200).loops
        call = call_time(plan, problem, H200, batch=16, steps=AFTER_STEPS, training=True)
        assert call is not None and isinstance(loop.forward, LoopKernels) and isinstance(loop.backward, LoopKernels)
        assert call.forward / AFTER_STEPS == pytest.approx(loop.forward.step_us, abs=1e-3)
        assert call.backward / AFTER_STEPS == pytest.approx(loop.backward.step_us, abs=1e-3)
        assert call.after / AFTER_STEPS == pytest.approx(loop.after_us, abs=1e-3)
        assert call.total == call.start + call.forward + call.backward + call.after
        alone = call_time(plan, problem, H200, batch=16, steps=AFTER_STEPS, training=False)
        assert alone is not None and 0 == alone.backward == alone.after < alone.forward < call.forward


def test_small_ctas_share_an_sm() -> None:
    """48 heads with head_dim 16: a batch of 256 has 12 times as many CTAs as there are SMs, but takes not 12 times as
    long; from where all are busy on, twice the batch takes twice as long."""
    plan = plan_of("lstm")

    def forward(batch: int) -> float:
        problem = Problem(16, 48, "bf16")
        call = call_time(plan, problem, H200, batch=batch, steps=1024, training=False)
        assert call is not None
        return call.forward

    assert forward(1) == pytest.approx(forward(16), rel=0.01)
    assert forward(256) < 6 * forward(16)
    assert forward(512) == pytest.approx(2 * forward(256), rel=0.1)


def test_a_loop_without_a_fused_form_is_not_predicted() -> None:
    made = plan_of("lstm")
    loops = tuple(replace(loop, fused_forward=NoForm("why"), fused_backward=NoForm("why")) for loop in made.loops)
    plan = replace(made, loops=loops)
    problem = Problem(64, 1, "bf16")
    assert call_time(plan, problem, H200, batch=16, steps=16, training=True) is None
    (loop,) = planned(plan, problem, H200).loops
    assert loop.after_us is None
