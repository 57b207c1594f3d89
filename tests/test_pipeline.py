"""The pipeline: which stages there are, in which order, and how often each runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import read_request
from rnncc.language.source import Source
from rnncc.pipeline import STAGES, compile_cells, run_stages
from rnncc.show.stage import stage_text

TEXT = "cell A\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n\ncell B\nstate h\nh[t] = 0.5*h[t-1] + W@x\n"


def test_the_table_has_the_stages_in_order() -> None:
    request = Request(Source("two.rnn", TEXT), "two")
    for (stage, made), named in zip(run_stages(request), STAGES, strict=True):
        assert stage == named
        assert [cell.name for cell in made.cells] == ["A", "B"]
        assert len(made.files) == (5 if stage == "render" else 0)


@pytest.mark.parametrize("stage", STAGES)
def test_it_stops_after_a_stage(stage: str) -> None:
    request = Request(Source("two.rnn", TEXT), "two", gpus=(GPUS["h200"],), problems=(Problem(64, 1, "bf16"),))
    number = list(STAGES).index(stage) + 1
    run = {name for name in list(STAGES.values())[:number] if name}
    for cell in compile_cells(request, stage).cells:
        assert {name for name in STAGES.values() if name and getattr(cell, name)} == run


def test_one_cell_of_a_text_and_some_of_its_programs() -> None:
    request = Request(Source("two.rnn", TEXT), "two", gpus=(GPUS["h200"],), problems=(Problem(64, 1, "bf16"),))
    made = compile_cells(replace(request, cell="A", programs=("masked_forward",), instructions=""))
    ((cell,), (kernels,)) = made.cells, made.cells[0].fused
    assert {program for program, _ in kernels.kernels} == {"a_0_masked_forward"}
    assert made.bundle.device_units and not made.bundle.units
    assert cell.plan == compile_cells(request, "lower").cells[0].plan


def test_a_package_without_kernels_needs_no_gradients() -> None:
    request = Request(Source("two.rnn", TEXT), "two", instructions="")
    made = compile_cells(request)
    assert [stage for stage, _ in run_stages(request)] == [*list(STAGES)[:6], "render"]
    assert not made.bundle.files and not any(cell.adjoints or cell.plan for cell in made.cells)
    assert {file.path for file in made.files} == {"__init__.py", "_reference.py", "_cell_a.py", "_cell_b.py"}


def test_a_stage_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="no stage 'compile' runs"):
        compile_cells(Request(Source("two.rnn", TEXT), "two"), "compile")


def test_every_stage_runs_once_for_a_cell_and_form(monkeypatch: pytest.MonkeyPatch) -> None:
    from rnncc.stages import check, classify, differentiate, lower, mask, parse, partition, regularise

    calls: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def run(*given: Any) -> Any:
            calls[name] += 1
            return real(*given)

        monkeypatch.setattr(module, name, run)

    for module in (parse, check, partition, regularise, classify, mask, differentiate, lower):
        counted(module, module.__name__.rpartition(".")[2])
    request = replace(read_request("lstm"), architectures=("sm_90a",), problems=(Problem(64, 12, "bf16"),))
    compile_cells(replace(request, zoneout=("h",)))
    once = dict.fromkeys(("parse", "check", "partition", "regularise", "classify", "mask", "lower"), 1)
    assert calls == {**once, "differentiate": 2}


def test_mistakes_of_all_cells_are_raised_together() -> None:
    text = TEXT.replace("R@h[t-1]", "R@g[t-1]").replace("0.5*h[t-1]", "0.5*k[t-1]")
    with pytest.raises(RnnccError) as caught:
        compile_cells(Request(Source("two.rnn", text), "two"), "check")
    assert len({diagnostic.span for diagnostic in caught.value.diagnostics}) == 2


def test_what_is_shown_of_render_has_the_kernels_for_gpus() -> None:
    text = stage_text(read_request("lstm"), "render")
    for path in ("src/lstm_functions.h", "src/lstm_dispatch.cpp", "src/lstm_device.cuh", "src/lstm_0_forward_bf16.cu"):
        assert f"// {path}\n" in text
    assert "// src/mingru_0_forward_tall_bf16.cu\n" in stage_text(read_request("mingru"), "render")


def test_a_package_for_cpus_plans_nothing_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(*given: object, **options: object) -> None:
        raise AssertionError("kernels for GPUs were planned")

    monkeypatch.setattr("rnncc.stages.schedule.kernels.scan_kernels", planned)
    made = compile_cells(read_request("mingru"))
    assert made.cells[0].scans == () and not made.bundle.device_units
    with pytest.raises(AssertionError, match="were planned"):
        compile_cells(replace(read_request("mingru"), architectures=("sm_90a",)))
