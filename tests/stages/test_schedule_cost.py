"""The rates of the cost model against the steps that were measured on an H200 (benchmarks/measured_steps.py).

The tests hold the fit, and no single rate: how far the predicted times of each group of steps are from the measured
ones, and of each rate, how far the steps want it from where it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rnncc.constrint import Infeasible
from rnncc.ir.family import GATHER, GRID, SCATTER
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.cost import cost_of
from rnncc.stages.schedule.families import MODELS
from rnncc.stages.schedule.rates import H200 as RATES
from rnncc.stages.schedule.rates import field_of, read_table
from tests.stages.scheduling import backward, forward

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
H200 = GPUS["h200"]
# Of each group of steps: by what part predicted and measured times differ, on average and at most.
ERRORS = {
    "gather": (0.09, 0.30),
    "gather fp32": (0.06, 0.14),
    "scatter": (0.06, 0.15),
    "scatter fp32": (0.11, 0.13),
    "grid": (0.08, 0.23),
    "grid fp32": (0.05, 0.13),
    "grid of sparse cells": (0.09, 0.20),
    "wide": (0.08, 0.20),
    "sparse": (0.05, 0.15),
    "blocks": (0.03, 0.05),
    "gradients": (0.13, 0.24),
    "alternating": (0.04, 0.10),
    "alternating fp32": (0.13, 0.15),
    "calls": (0.08, 0.13),
    "dense calls": (0.085, 0.335),
}
# Dense kernels at 2048 units, where the model decides between them and sparse ones.
DECIDING_APART = 1.1
# By what part of it the steps may want a rate elsewhere, if they know that within `SURE`. They want more of two rates,
# which fit the single kernels of the scatter family and trained LSTMs with several heads.
OFF, SURE = 0.25, 0.15
FAR = {"scatter_piece_ns": 0.33, "hiding_exponent": -0.38}
# The table says of each rate what the steps say, in hundredths.
ROUNDED = 0.006
WRONG = 0.3


@dataclass(frozen=True)
class Measured:
    """The program that fits, the steps, and the logarithm of predicted by measured time of each."""

    program: Any
    steps: Any
    errors: Any

    @cached_property
    def shares(self) -> Any:
        """The shares of the rates. It takes half a minute."""
        return self.program.shares(self.steps, self.program.present_values())

    def holds(self, errors: Any) -> dict[str, Any]:
        """What the steps say of each rate that they hold, where they have these errors."""
        program = self.program
        found = program.holds(self.steps, program.present_values(), self.shares, errors)
        return {name: hold for name, hold in found.items() if hold.is_weighty}


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        program = import_module("fit_rates")
        steps, values = import_module("measured_steps").measured_steps(), program.present_values()
        yield Measured(program, steps, program.apart(steps, values))


def test_the_table_has_a_row_for_each_rate() -> None:
    rows = read_table()
    for name, row in rows.items():
        assert row["unit"] and row["source"] and row["value"] > 0
        assert row["scales_with"] in ("clock", "tensor cores", "float lanes", "nothing")
        assert set(row) - {"value", "unit", "scales_with", "source"} in (set(), {"share", "off", "error"})
        value = getattr(RATES, field_of(name))
        # Models add tenths of a nanosecond, which are whole numbers.
        assert (value == 10 * row["value"] and type(value) is int) if "_ns" in name else value == row["value"]


@pytest.mark.long
def test_predicted_steps_are_about_as_long_as_measured_ones(measured: Measured) -> None:
    found = measured.program.errors_of(measured.steps, measured.errors)
    assert found.keys() == ERRORS.keys() and sum(number for number, _, _ in found.values()) > 500
    for group, (_, mean, worst) in found.items():
        most_mean, most_worst = ERRORS[group]
        assert mean <= most_mean <= 0.15 and worst <= most_worst, group


@pytest.mark.long
def test_dense_kernels_take_what_was_measured_where_a_sparse_one_may_be_chosen(measured: Measured) -> None:
    found = [
        error
        for step, error in zip(measured.steps, measured.errors, strict=True)
        if step.group == "grid of sparse cells" and "inference 2048" in step.name
    ]
    assert len(found) == 2 and all(abs(error) <= math.log(DECIDING_APART) for error in found)


@pytest.mark.long
def test_the_table_says_what_the_steps_say_of_each_rate(measured: Measured) -> None:
    """So a rate does not change unnoticed: `python benchmarks/fit_rates.py --write` says what the steps think of the
    new one."""
    held, rows = measured.holds(measured.errors), read_table()
    assert {name for name, row in rows.items() if "off" in row} == held.keys()
    for name, hold in held.items():
        assert rows[name]["off"] == pytest.approx(hold.off, abs=ROUNDED, rel=0.01), name
        assert rows[name]["share"] == pytest.approx(hold.share, abs=ROUNDED), name
        assert rows[name]["source"] == f"measured steps: {', '.join(hold.groups)}", name


@pytest.mark.long
def test_no_rate_is_far_from_what_the_steps_are_sure_of(measured: Measured) -> None:
    sure = {name: hold for name, hold in measured.holds(measured.errors).items() if hold.sure <= SURE}
    assert len(sure) > 35
    far = {name: hold.off for name, hold in sure.items() if abs(hold.off) > OFF}
    assert far == pytest.approx(FAR, abs=0.01)


@pytest.mark.long
@pytest.mark.parametrize("factor", [1 - WRONG, 1 + WRONG])
def test_a_wrong_rate_is_noticed(measured: Measured, factor: float) -> None:
    """The steps would be longer or shorter by the rate's shares, and want it back."""
    names, rows = list(measured.program.present_values()), read_table()
    for name, hold in measured.holds(measured.errors).items():
        errors = measured.errors + measured.shares[:, names.index(name)] * math.log(factor)
        changed = measured.holds(errors)[name].off
        assert 1 + changed == pytest.approx((1 + hold.off) / factor)
        assert abs(changed - rows[name]["off"]) > 4 * ROUNDED, name


def test_many_items_reduce_by_a_grid() -> None:
    """Each CTA of a cluster joins what 64 items give. On a grid it joins 16 parts of a norm."""
    loop = forward("layernormgru")
    assert schedule(loop, Problem(512, 1, "bf16", 16), H200).kernels[0].family is GRID
    assert schedule(loop, Problem(256, 1, "bf16", 16), H200).kernels[0].family is GATHER


def test_what_was_slow_since_it_spilled_is_ruled_out() -> None:
    heads = dict(H200.clusters)[16]
    layout_model = MODELS[SCATTER](cost_of(backward("lstm"), "bf16"), Problem(768, heads, "bf16", 8), H200)
    sizes = {"ctas": 16, "items": 6, "row_warps": 8, "k_warps": 1}
    given = {variable: sizes[variable.name] for variable in layout_model.model.variables if variable.name in sizes}
    with pytest.raises(Infeasible) as refused:
        layout_model.best(8, given)
    assert "registers" in [part.requirement.name for part in refused.value.conflict.parts]
