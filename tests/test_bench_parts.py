"""The parts of `rnncc bench`: times, the work of a call, what is expected, and the words for it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch

import rnncc
from rnncc.bench import predict, timing
from rnncc.bench.measure import LeftOut, Row, Spread
from rnncc.bench.parties import COMPILED, EAGER, OURS, Case, Sizes, makers
from rnncc.bench.predict import Expected, Roofs, Work, expected, loops_us, measure_roofs, target_named, work_of
from rnncc.bench.report import Report, number, percent, si
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule.kernels import call_time
from rnncc.verify.runner import Runner, runner_of
from tests.compiling import plan_of


def sizes(**given: Any) -> Sizes:
    """Small sizes."""
    common = {"input": 5, "hidden": 8, "heads": 1, "batch": 2, "steps": 3, "dtype": "fp32", "device": "cpu"}
    return Sizes(**{**common, **given})


# times


def test_rounds_take_the_functions_in_turn() -> None:
    calls: list[str] = []
    timers = {name: partial(_count, calls, name) for name in "abc"}
    found = list(timing.rounds(timers, seconds=0, least=4))
    assert calls == list("abcbcacababc") and found == [dict.fromkeys("abc", 1.0)] * 4
    assert timing.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == 2


def _count(calls: list[str], name: str) -> float:
    calls.append(name)
    return 1.0


def test_calls_in_a_row_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def between_events(function: Any, calls: int, hold_cycles: int = 0) -> float:
        asked.append((calls, hold_cycles))
        return 6.0 * calls

    monkeypatch.setattr(timing, "between_events", between_events)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert timing.by_events(lambda: None)() == pytest.approx(0.006)
    timer = timing.queued(lambda: time.sleep(0.001), 6.0, 10)
    assert timer() == pytest.approx(0.006)
    (one, no_hold), (calls, hold) = asked
    # 40 ms hold six calls; the queue is held back for as long as the host prepares them.
    assert (one, no_hold, calls) == (1, 0, 6) and 0.009 * 2e9 < hold <= 2e9
    assert timing.gpu_ms(lambda: None, 15, 0) == (6.0, None)
    assert timing.gpu_ms(lambda: None, 15, 10) == (6.0, 6.0)


# what is expected


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "peer", "gates"), [("lstm", "nn.LSTM", 4), ("nn_gru", "nn.GRU", 3)])
def test_the_work_is_counted(name: str, peer: str, gates: int, training: bool) -> None:
    module = rnncc.load(name)
    cell = {"lstm": "LSTM", "nn_gru": "nn_GRU"}[name]
    made = makers(Case(module, cell, sizes()))
    way = "training" if training else "forward"
    ours, theirs, eager = (work_of(made[who](), sizes(), way) for who in (OURS, peer, EAGER))
    rows, factor = 3 * 2, 3 if training else 1
    # Nobody asks for the gradient of initial states: what one step hands back is not computed.
    without = 2 * 2 * gates * 8 * 8 if training else 0
    assert theirs.flops == factor * 2 * rows * gates * 8 * (5 + 8) == ours.flops + without
    assert theirs.loop_flops == factor * 2 * rows * gates * 8 * 8 and ours.loop_flops == theirs.loop_flops - without
    assert (eager.flops, eager.loop_flops) == (ours.flops, None)
    elements = rows * 5 + gates * 8 * (5 + 8) + rows * 8  # x, matrices, output
    # nn.GRU has biases in other numbers than the LSTM of the paper.
    biases = ours.moved // (4 * (2 if training else 1)) - elements
    assert 0 < biases <= 2 * gates * 8


def test_counting_leaves_no_gradients_behind() -> None:
    party = makers(Case(rnncc.load("elman"), "Elman", sizes()))[OURS]()
    work_of(party, sizes(), "training")
    assert all(tensor.grad is None for tensor in (*party.inputs, *party.layer.parameters()))


def test_a_roofline_is_the_larger_of_two_times() -> None:
    roofs = Roofs(1e9, 1e8)
    assert roofs.least_ms(Work(1000_000, None, 1)) == 1.0 and roofs.least_ms(Work(0, None, 1000_000)) == 10.0
    found = measure_roofs(sizes())
    assert found.flops > 1e9 and found.moved > 1e8
    # torch's own products of float16 on a CPU are no bound: ours are in float32.
    assert measure_roofs(sizes(dtype="fp16")).flops > 0.2 * found.flops


def on_an_h200(monkeypatch: pytest.MonkeyPatch, gpu: str = "NVIDIA H200", kernels: str = "fused") -> None:
    """What bench asks of a GPU, answered as an H200 would."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)
    monkeypatch.setattr(predict, "runner_of", lambda layer: Runner("cuda", (kernels,)))


def test_the_schedule_s_time_is_that_of_the_cost_model(monkeypatch: pytest.MonkeyPatch) -> None:
    on_an_h200(monkeypatch)
    own = sizes(input=768, hidden=768, batch=64, steps=100, dtype="bf16", device="cuda")
    case = Case(rnncc.load("lstm"), "LSTM", own)
    plan, roofs = plan_of("lstm"), Roofs(1e15, 4e12)
    work = Work(30_000_000_000, 10_000_000_000, 1000)
    found = expected(case, None, plan, work, roofs, "training")
    model = call_time(plan, Problem(768, 1, "bf16"), GPUS["h200"], batch=64, steps=100, training=True)
    assert model is not None and found.loops == pytest.approx(model.total / 1e3)
    assert found.outside == pytest.approx(0.02) and found.total == pytest.approx(model.total / 1e3 + 0.02)
    assert found.roofline == pytest.approx(0.03) and not found.why_not


def test_loops_without_products_have_a_time_too() -> None:
    plan, problem = plan_of("mingru"), Problem(64, 1, "bf16", 16)
    forward, training = (loops_us(plan, problem, GPUS["h200"], 1000, way) for way in (False, True))
    assert forward is not None and training is not None and 0 < forward < training


@pytest.mark.parametrize(
    ("gpu", "kernels", "why"),
    [
        ("NVIDIA GeForce RTX 3080", "fused", "no schedule is known for NVIDIA GeForce RTX 3080"),
        ("NVIDIA H200", "alternating", "there is no model for what ran: GPU kernels (alternating)"),
    ],
)
def test_nothing_is_predicted_that_no_model_knows(
    monkeypatch: pytest.MonkeyPatch, gpu: str, kernels: str, why: str
) -> None:
    on_an_h200(monkeypatch, gpu, kernels)
    case = Case(rnncc.load("lstm"), "LSTM", sizes(device="cuda", dtype="bf16"))
    found = expected(case, None, plan_of("lstm"), Work(10, 5, 10), Roofs(1e9, 1e9), "forward")
    assert (found.loops, found.total, found.why_not) == (None, None, why)


def test_gpus_have_the_names_of_their_drivers() -> None:
    assert target_named("NVIDIA H200") is GPUS["h200"] and target_named("NVIDIA A100-SXM4-80GB") is None


def test_the_kernels_that_run_are_named() -> None:
    layer = rnncc.load("elman").Elman(4, 4)
    assert (str(runner_of(layer)), runner_of(layer).words) == ("cpu", "CPU kernels")
    fallback = runner_of(rnncc.load("elman").Elman(4, 4, backend="reference"))
    assert fallback.is_fallback and str(fallback) == "fallback" and "was asked for" in fallback.why


# what is printed


def gpu_report(**changes: Any) -> Report:
    """A made-up report of a GPU: ours takes 2 ms alone and 1 ms queued."""
    rows = [
        Row("forward", OURS, Spread(2.0, 1.9, 2.2, 50), Spread(1.0, 1.0, 1.1, 50), 1.0),
        Row("forward", EAGER, Spread(400.0, 390.0, 410.0, 50), None, 200.0),
        Row("forward", "nn.LSTM", Spread(3.0, 2.9, 3.1, 50), Spread(2.5, 2.4, 2.6, 50), 1.5),
    ]
    work = {("forward", name): Work(10**10, 5 * 10**9, 10**7) for name in (OURS, EAGER, "nn.LSTM")}
    given: dict[str, Any] = {
        "cell": "LSTM", "file": "lstm", "sizes": sizes(heads=2, device="cuda", dtype="bf16"),
        "runner": Runner("cuda", ("fused (grid)",)), "rows": rows,
        "left_out": [LeftOut("forward", COMPILED, "why")], "work": work,
        "roofs": Roofs(6e14, 4e12),
        "expected": [Expected("forward", 0.0166, 0.8, 0.1)], "complete": True,
    }  # fmt: skip
    return Report(**{**given, **changes})


def test_a_gpu_has_calls_in_a_row_and_a_prediction() -> None:
    report = gpu_report()
    assert report.header()[-1] == "queued ms"
    assert report.lines()[0] == ("forward", OURS, "2.00", "1.90 - 2.20", "50", "1.00x", "1.00")
    assert report.lines()[1] == ("", EAGER, "400", "390 - 410", "50", "200x", "-")
    words = report.words()
    assert (
        "predicted forward: 0.900 ms (loops 0.800 by the schedule + products outside 0.100); measured 1.00 ms" in words
    )
    assert "roofline forward: 0.0166 ms at least, 2% of what rnncc took" in words
    assert "torch.nn has one head of 8, and so more arithmetic" in words
    assert any("600 TFLOP/s" in line and "4.00 TB/s" in line for line in words)
    assert not any("vary widely" in line for line in words)
    unsteady = gpu_report(rows=[Row("forward", OURS, Spread(2.0, 1.0, 2.2, 50), None, 1.0)])
    assert "the calls vary widely: is something else running?" in unsteady.words()
    stopped = gpu_report(rows=[], work={}, roofs=None, expected=[], complete=False)
    assert stopped.words()[-1] == "interrupted: nothing was measured yet"
    nothing = gpu_report(expected=[Expected("forward", 0.0166, None, 0.1, "no schedule is known for X")])
    assert "predicted forward: nothing: no schedule is known for X" in nothing.words()
    assert nothing.data()["expected"][0]["predicted_ms"] is None and nothing.data()["expected"][0]["outside_ms"] is None


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (0.0, 0.00567, 0.0000567, 0.00999)] == ["0.0000", "0.0057", "0.000057", "0.0100"]
    assert [percent(share) for share in (1.2, 0.123, 0.0123, 0.00456, 0.000456, 0.0)] == [
        "120%", "12%", "1%", "0.5%", "less than 0.1%", "0%",
    ]  # fmt: skip
    assert [number(value) for value in (1234.5, 123.4, 12.34, 1.234, 0.1234, 0.01234)] == [
        "1234", "123", "12.3", "1.23", "0.123", "0.0123",
    ]  # fmt: skip
    assert (si(2.5e12), si(999.0), si(3.1e18)) == ("2.50 T", "999 ", "3100 P")
