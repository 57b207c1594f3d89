"""The cost model against every row of ours in the committed results of benchmarks/gpu_dense.py: both passes, all sizes,
batches, cells, dtypes and numbers of steps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.bench.predict import target_named
from rnncc.ir.plan import NoForm
from rnncc.ir.problem import Problem
from rnncc.ir.schedule import AFTER_STEPS, Schedule
from rnncc.ir.target import GPUS
from rnncc.stages.schedule import expect, kernels, schedule
from rnncc.stages.schedule.kernels import call_time, planned
from tests.compiling import plan_of

FOLDER = Path(__file__).parents[1] / "benchmarks"
MEASURED = FOLDER / "results" / "gpu_dense.json"
H200 = GPUS["h200"]
MOST_APART = 1.3
# One row in a hundred may be further apart, none much: why the LSTM with head_dim 512 and a batch of 32 takes a third
# longer trained than with 16 or 64 is not known.
REST, MOST_OF_REST = 0.01, 1.4
# Of all rows, the root of the mean square of the logarithms.
TYPICAL = 0.09


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    made = import_module("gpu_predicted")
    made.predicted_us.cache_clear()  # neither what other tests have predicted, nor what these do
    yield made
    made.predicted_us.cache_clear()


def test_rows_are_as_predicted(predicted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that name no commit of their own are older: cuBLAS made the gradients of heads' matrices then. The kernel
    that makes them now is measured alone (tests/stages/test_schedule_cost.py)."""
    has_kernel = expect._has_kernel
    monkeypatch.setattr(kernels, "_schedule", schedule)  # not what other tests have planned
    case_of = import_module("gpu_cases").case_of
    known = json.loads(MEASURED.read_text(encoding="utf-8"))
    target = target_named(known["environment"]["gpu"])
    ratios = {}
    for row in known["results"]:
        if row["who"] == "rnncc" and "error" not in row:
            monkeypatch.setattr(expect, "_has_kernel", has_kernel if "commit" in row else lambda problem: False)
            us = predicted.predicted_us(case_of(row), target)
            ratios[case_of(row)] = us * row["steps"] / (1000 * row["queued_ms"])
    assert len(ratios) > 200
    apart = {case: ratio for case, ratio in ratios.items() if not 1 / MOST_APART < ratio < MOST_APART}
    assert len(apart) <= max(1, REST * len(ratios)), apart
    assert all(1 / MOST_OF_REST < ratio < MOST_OF_REST for ratio in apart.values()), apart
    assert math.sqrt(sum(math.log(ratio) ** 2 for ratio in ratios.values()) / len(ratios)) < TYPICAL


def test_a_call_is_what_explain_says_and_what_surrounds_it() -> None:
    """At the batch size that kernels are laid out for, in training."""
    plan = plan_of("lstm")
    for head_dim, heads in ((64, 12), (768, 1)):
        problem = Problem(head_dim, heads, "bf16")
        (loop,) = planned(plan, problem, H200).loops
        call = call_time(plan, problem, H200, batch=16, steps=AFTER_STEPS, training=True)
        assert call is not None and isinstance(loop.forward, Schedule) and isinstance(loop.backward, Schedule)
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
