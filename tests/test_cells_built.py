"""Every shipped cell's built CPU op against its oracle: values, final states and every gradient, through the module; in
16 bits those with norms and those without products, by `verify`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.ir.cell import Cell
from rnncc.ir.recurrence import RecurrenceKind
from rnncc.stages.classify import classify
from rnncc.verify import HALF, verify

from .oracles import ORACLES, Case, Oracle, Sequences, draw, observed, relative_error, results
from .shipped import FOLDER, STEMS, cells

TOLERANCE = 1e-10  # relative, float64


def module_of(oracle: Oracle) -> ModuleType:
    shaping: dict[str, Any] = dict(oracle.shaping)
    return rnncc.load(oracle.cell, **shaping) if oracle.text is None else rnncc.compile(oracle.text, **shaping)


def layer_of(oracle: Oracle, case: Case) -> Any:
    """A layer that holds the case's parameters."""
    module = module_of(oracle)
    (make,) = (value for name, value in vars(module).items() if name.lower() == oracle.cell and isinstance(value, type))
    dims = {name: oracle.sizes[name] for name in oracle.dims}
    layer = make(oracle.sizes["I"], oracle.sizes["H"], dtype=torch.float64, **dims, **oracle.constants)
    views = plain(layer.gate_parameters(), oracle)
    assert {name: tuple(view.shape) for name, view in views.items()} == oracle.shapes()
    with torch.no_grad():
        for name, view in views.items():
            view.copy_(case.parameters[name])
    return layer


def plain(views: dict[str, Tensor], oracle: Oracle) -> dict[str, Tensor]:
    """The views with or without the axis of a single block, as the oracle has them."""
    shapes = oracle.shapes()
    return {
        name: view.reshape(shapes[name]) if view is not None and 1 in (*view.shape[:1], *shapes[name][:1]) else view
        for name, view in views.items()
    }


def run(layer: Any, oracle: Oracle, case: Case) -> Sequences:
    given = [case.states[name][None] for name in oracle.states] if case.states is not None else [None]
    hx = given[0] if len(given) == 1 else tuple(given)
    output, last = layer(case.inputs["x"], hx, **{name: case.inputs[name] for name in oracle.inputs})
    finals = last if isinstance(last, tuple) else (last,)
    return Sequences(output, {name: value[0] for name, value in zip(oracle.states, finals, strict=True)})


def built_results(layer: Any, oracle: Oracle, case: Case, *, seed: int) -> dict[str, Tensor]:
    """As `results`, with the parameters' gradients from `gate_parameters(grad=True)`."""
    values, loss = observed(run(layer, oracle, case), seed=seed)
    torch.autograd.backward(loss)
    gradients: dict[str, Tensor | None] = {name: leaf.grad for name, leaf in case.leaves().items()}
    gradients |= plain(layer.gate_parameters(grad=True), oracle)
    leaves = case.leaves()
    return {
        **values,
        **{f"d {name}": torch.zeros_like(leaves[name]) if g is None else g for name, g in gradients.items()},
    }


@pytest.mark.parametrize("oracle", ORACLES, ids=str)
def test_the_built_op_equals_the_oracle(oracle: Oracle) -> None:
    for states in (False, True):
        case = draw(oracle, seed=1, states=states)
        expected = results(oracle.run(case), case, seed=2)
        layer = layer_of(oracle, case)
        assert "CPU kernels" in layer.explain()
        found = built_results(layer, oracle, case, seed=2)
        assert {name: value.shape for name, value in found.items()} == {k: v.shape for k, v in expected.items()}
        errors = {name: relative_error(found[name], value) for name, value in expected.items()}
        # `not <=`: a NaN is no agreement.
        assert not {name: error for name, error in errors.items() if not error <= TOLERANCE}
        # What is computed again is the same to the last bit, and so is every gradient.
        layer.recompute = True
        layer.zero_grad()
        again = built_results(layer, oracle, draw(oracle, seed=1, states=states), seed=2)
        assert not [name for name, value in found.items() if not torch.equal(again[name], value)]


def is_without_products(cell: Cell) -> bool:
    """Whether no loop of the cell mixes units."""
    return all(loop.kind is not RecurrenceKind.DENSE for loop in classify(cell))


IN_16_BITS = [
    (stem, cell)
    for stem in STEMS
    for cell in cells(stem)
    if is_without_products(cell) or "norm(" in (FOLDER / f"{stem}.rnn").read_text()
]


@pytest.mark.parametrize(("stem", "cell"), IN_16_BITS, ids=[cell.name for _, cell in IN_16_BITS])
def test_the_built_op_is_as_true_in_16_bits_as_verify_asks(stem: str, cell: Cell) -> None:
    report = verify(getattr(rnncc.load(stem), cell.name), cell, dtypes=HALF)
    assert [row for row in report.rows if not row.passed] == []
