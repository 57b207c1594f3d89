"""Every shipped cell's built CPU op against its oracle: values, final states and every gradient, through the module; in
16 bits those with norms and those without products, by `verify`."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.driver import load_module
from rnncc.ir.request import Request
from rnncc.language.read import from_text, read_request
from rnncc.verify import HALF, verify

from .functional import go_the_long_way, op_of, streams_of, taken
from .oracles import ORACLES, Case, Oracle, Sequences, draw, observed, relative_error, results
from .shipped import FOLDER, PARALLEL, STEMS, cells

TOLERANCE = 1e-10  # relative, float64
ONE_A_CELL = list({oracle.cell: oracle for oracle in reversed(ORACLES)}.values())
# Of those a part: of each class of recurrence one or two, among them cells with further inputs and with several loops.
SOME = ("gru", "lru", "plif", "rwkv4", "slstm_xlstm", "timeawarelstm", "ttt_linear")
COVERED = [oracle for oracle in ONE_A_CELL if oracle.cell in SOME]


def module_of(oracle: Oracle, compute_type: str = "f64") -> ModuleType:
    """Its module, compiled in one type alone."""
    found = read_request(oracle.cell) if oracle.text is None else Request(from_text("<cell>", oracle.text), "cell")
    return load_module(replace(found, constants=dict(oracle.shaping)), (compute_type,))


def layer_of(oracle: Oracle, case: Case, compute_type: str = "f64") -> Any:
    """A layer in float64 that holds the case's parameters. `compute_type`: that of the calls that will be made."""
    module = module_of(oracle, compute_type)
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
        name: view.reshape(shapes[name]) if view is not None and 1 in (*view.shape[:-2], *shapes[name][:1]) else view
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
    leaves = case.leaves()
    gradients |= {name: g for name, g in plain(layer.gate_parameters(grad=True), oracle).items() if name in leaves}
    return {
        **values,
        **{f"d {name}": torch.zeros_like(leaves[name]) if g is None else g for name, g in gradients.items()},
    }


@pytest.mark.always(oracle=COVERED)
@pytest.mark.parametrize("oracle", ORACLES, ids=str)
def test_the_built_op_equals_the_oracle(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    for states in (False, True):
        case = draw(oracle, seed=1, states=states)
        expected = results(oracle.run(case), case, seed=2)
        layer = layer_of(oracle, case)
        assert "CPU kernels" in layer.explain()
        found = built_results(layer, oracle, case, seed=2)
        assert all(layer.gate_parameters(grad=True)[name] is None for name in oracle.buffers)
        assert {name: value.shape for name, value in found.items()} == {k: v.shape for k, v in expected.items()}
        errors = {name: relative_error(found[name], value) for name, value in expected.items()}
        # `not <=`: a NaN is no agreement.
        assert not {name: error for name, error in errors.items() if not error <= TOLERANCE}
        # What is computed again is the same to the last bit, and so is every gradient: of calls by the same ops.
        runs = []
        with monkeypatch.context() as patch:
            go_the_long_way(layer, patch)
            for layer.recompute in (False, True):
                layer.zero_grad()
                runs.append(built_results(layer, oracle, draw(oracle, seed=1, states=states), seed=2))
        kept, again = runs
        assert not [name for name, value in kept.items() if not torch.equal(again[name], value)]


def test_slstm_of_xlstm_from_states_of_zeros_for_all_or_for_some_of_a_batch() -> None:
    """xlstm's own zero state, given; and where one row is fresh, which xlstm's formula asks of the whole batch: the
    scale of c and n, exp(-m), is another there, and cancels in h."""
    (oracle,) = (oracle for oracle in ORACLES if oracle.cell == "slstm_xlstm")
    for fresh in (slice(None), slice(1, 2), slice(0, 0)):
        case = draw(oracle, seed=4, states=True)
        assert case.states is not None
        with torch.no_grad():
            for state in case.states.values():
                state[fresh] = 0
        expected, found = oracle.run(case), run(layer_of(oracle, case), oracle, case)
        assert relative_error(found.output, expected.output) < TOLERANCE
        for values in (expected, found):
            c, n, m = (values.finals[name] for name in "cnm")
            values.finals.update({"c": c / n, "n": n.log() + m, "m": m[:0]})
        for name, value in expected.finals.items():
            assert relative_error(found.finals[name], value) < TOLERANCE
        # An input gate so small that, measured by m = 0, nothing of it is left.
        layer = layer_of(oracle, case)
        with torch.no_grad():
            layer.gate_parameters()["b_i"].fill_(-2000.0)
        output, _ = layer(case.inputs["x"], tuple(state[None] * 0 for state in case.states.values()))
        assert output.isfinite().all() and output.abs().max() > 0.01


def op_arguments(layer: Any, oracle: Oracle) -> dict[str, Any]:
    """The keywords that give the functional op the sizes and numbers of a layer."""
    dims = {name: oracle.sizes[name] for name in oracle.dims}
    return {"hidden_size": oracle.sizes["H"], "input_size": oracle.sizes["I"], "constants": layer.constants, **dims}


@pytest.mark.always(oracle=COVERED)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("oracle", ONE_A_CELL, ids=str)
def test_the_functional_op_takes_parameters_and_equals_the_layer(
    oracle: Oracle, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the layer's own parameters and streams, each once, by the names that explain() and help() list: values,
    and gradients of parameters, inputs and states, by kernels and by the eager loop."""
    case = draw(oracle, seed=1, states=True)
    layer = layer_of(oracle, case)
    assert case.states is not None
    mask: dict[str, Any] = {"lengths": [5, 2, 0], "reset": torch.rand(5, 3) < 0.3} if masked else {}
    states = [case.states[name] for name in oracle.states]
    hx = states[0][None] if len(states) == 1 else tuple(state[None] for state in states)
    extra = {name: case.inputs[name] for name in oracle.inputs}
    streams, (output, last) = streams_of(layer, monkeypatch, lambda: layer(case.inputs["x"], hx, **extra, **mask))
    names = taken(layer)
    if isinstance(names, str):
        with pytest.raises(NotImplementedError, match=re.escape(names)):
            op_of(layer)([], [], states, **op_arguments(layer, oracle), **mask)
        return
    given = [streams[name] for name in names[0]]
    learned = [f"{name}0" for name in oracle.states if masked and hasattr(layer, f"{name}0_l0")]
    weights = [getattr(layer, f"{name}_l0") for name in (*names[1], *learned)]
    leaves = [*layer.parameters(), *case.inputs.values(), *states]

    def all_of(output: Tensor, last: Any) -> list[Tensor]:
        values = [output, *(last if isinstance(last, tuple) else (last,))]
        loss = torch.stack([(value.reshape(-1).sin() * torch.arange(value.numel()).cos()).sum() for value in values])
        gradients = torch.autograd.grad(loss.sum(), leaves, retain_graph=True, materialize_grads=True)
        return [*(value.flatten() for value in values), *gradients]

    expected = all_of(output, last)
    for backend in (None, "reference"):
        found = all_of(*op_of(layer)(given, weights, states, backend=backend, **op_arguments(layer, oracle), **mask))
        for value, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(value, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def is_without_products(stem: str) -> bool:
    """Whether no loop of the cells mixes units."""
    return stem in PARALLEL and all(kind != "DENSE" for _, kind, _ in PARALLEL[stem])


IN_16_BITS = [s for s in STEMS if is_without_products(s) or "norm(" in (FOLDER / f"{s}.rnn").read_text()]
# Of each class of recurrence the quickest, and one with norms and products.
QUICK_IN_16_BITS = ("hgrn", "retnet")


@pytest.mark.always(stem=QUICK_IN_16_BITS)
@pytest.mark.parametrize("stem", IN_16_BITS)
def test_the_built_op_is_as_true_in_16_bits_as_verify_asks(stem: str) -> None:
    for cell in cells(stem):
        report = verify(getattr(rnncc.load(stem), cell.name), cell, dtypes=HALF)
        assert [row for row in report.rows if not row.passed] == []
