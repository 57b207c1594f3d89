"""The logic of benchmarks/gpu_families.py, which needs no GPU: which cases are found and picked, by which kernels they
run, and what is printed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.ir.family import WIDE
from rnncc.ir.target import GPUS
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from rnncc.stages.schedule.families import MODELS

FOLDER = Path(__file__).parents[1] / "benchmarks"
H200 = GPUS["h200"]


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("gpu_families")


@pytest.fixture
def cases(families: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = import_module("family_cases")
    monkeypatch.setattr(found, "SIZES", ((64, 1), (512, 1), (64, 12)))
    return found


def test_cases_are_those_in_which_the_planner_chooses_the_family(cases: Any) -> None:
    known = list(MODELS)
    found = cases.chosen_cases("wide", cases.Cell("lstm"), H200)
    assert {(case.head_dim, case.heads, case.dtype, case.run) for case in found} == {(512, 1, "bf16", "forward")}
    assert {case.batch for case in found} == {256}
    plan = compile_cells(read_request("lstm"), "lower").cells[0].plan
    (loop,) = plan.plain_loops()
    chosen, without = (cases.kernel_of(found[0], party, loop.fused_forward, H200) for party in cases.PARTIES)
    assert chosen.family is WIDE and without.family is not WIDE and without.launches(256)
    assert list(MODELS) == known  # nobody misses it afterwards


def test_cases_of_zeros_are_cells_with_zeros(cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "ZERO_SIZES", ((4096, 1),))
    found = cases.chosen_cases("sparse", cases.Cell("lstm", 0.02), H200)
    assert found and all((case.density, case.head_dim) == (0.02, 4096) for case in found)
    assert cases.chosen_cases("sparse", cases.Cell("lstm", 0.5), H200) == []


def test_a_family_without_a_model_is_an_error(families: Any, cases: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in ((["stepwise"], "no family is called stepwise: there are gather,"), ([], "name a family")):
        assert families.main(words) == 1
        assert capsys.readouterr().err.startswith(f"gpu_families: {said}")


def case_of(cases: Any, number: int, family: str = "wide") -> Any:
    return cases.Case(family, "lstm", 1.0, 1, 64 * (number + 1), 1, 16, "bf16", "forward")


def test_picked_cases_are_spread_evenly(cases: Any) -> None:
    every = [case_of(cases, number) for number in range(10)]
    assert [case.head_dim // 64 - 1 for case in cases.spread(every[::-1], 3)] == [1, 5, 8]
    assert cases.spread(every, 20) == every and cases.spread([], 3) == []


def test_table_says_what_a_family_gains(families: Any, cases: Any) -> None:
    def row(number: int, gain: float, family: str = "wide") -> dict[str, Any]:
        planned = {"planned_chosen_us": 2.0, "planned_without_us": 2.5, "chosen_in": 40}
        times = {"chosen_us": 2.0, "without_us": 2.0 + 2 * gain, "gain": gain}
        named = {"chosen": family, "without": "gather"}
        return dict(families.row_of(case_of(cases, number, family), **named, **planned, **times))

    failed = families.row_of(case_of(cases, 3), chosen_in=40, error="RuntimeError: no")
    lines = list(families.table([row(0, 0.3), failed, row(1, -0.02), row(2, 0.1), row(0, 0.05, "grid")]))
    assert [line.split()[-2] for line in lines[1:6]] == ["+5.0%", "-2.0%", "+10.0%", "+30.0%", "RuntimeError:"]
    assert lines[2].split() == [
        "lstm", "128x1", "16", "bf16", "forward", "wide", "2.000", "gather", "1.960", "-2.0%", "+25.0%",
    ]  # fmt: skip
    assert lines[6] == (
        "grid: chosen in 40 cases, 1 measured; without it a step takes +5.0% in the median (+5.0% to +5.0%), "
        "10% or more in 0 of 1"
    )
    assert lines[7] == (
        "wide: chosen in 40 cases, 3 measured, 1 failed; without it a step takes +10.0% in the median "
        "(-2.0% to +30.0%), 10% or more in 2 of 3"
    )


@pytest.mark.parametrize("zeros", [(1.0, 1), (0.02, 16)], ids=["dense", "blocks"])
@pytest.mark.parametrize("run", ["forward", "backward"])
def test_both_parties_of_a_case_are_in_a_package(zeros: tuple[float, int], run: str, families: Any, cases: Any) -> None:
    """Its text compiles, with a cell for each; a backward has a forward before it."""
    cell = cases.Cell("lstm", *zeros)
    text = "\n".join(cell.text(party) for party in cases.PARTIES)
    plans = {plan.cell: plan for plan in cases._plans(text)}
    programs = [name for _, name, _ in cases._programs(plans["Without"], run)]
    assert list(plans) == ["Chosen", "Without"]
    assert programs == ["without_0_forward", "without_0_backward"][: 1 + (run == "backward")]
