"""Every shipped cell against an implementation that does not know it: values, final states and every gradient."""

from __future__ import annotations

import re
from functools import cache
from math import prod
from pathlib import Path

import pytest
import torch
import torchrecurrent

from rnncc.ir.cell import Cell, Role
from rnncc.ir.dim import evaluate
from rnncc.ir.structure import diagonal_blocks
from rnncc.verify import reference
from tests import compiling

from .oracles import ORACLES, Case, Oracle, Sequences, draw, relative_error, results
from .shipped import COVERING, STEMS, most_lines, traits_of

CELLS = Path(__file__).parents[1] / "cells"
TOLERANCE = 1e-10  # relative, float64

STATES = pytest.mark.parametrize("states", [False, True], ids=["own-states", "given-states"])


@cache
def checked(text: str, name: str, shaping: tuple[tuple[str, int | str], ...] = ()) -> Cell:
    """The only cell of a text, with these constants in the place of its own."""
    return compiling.cell_of(text, name, dict(shaping))


def cell_of(oracle: Oracle) -> Cell:
    """The cell that the oracle is compared with."""
    return checked(oracle.text or shipped(oracle.cell), f"{oracle.cell}.rnn", tuple(oracle.shaping.items()))


def shipped(name: str) -> str:
    return (CELLS / f"{name}.rnn").read_text()


def run(cell: Cell, oracle: Oracle, case: Case, heads: int = 1) -> Sequences:
    """The reference path on the oracle's case. It has the blocks of a matrix one after the other."""
    known = {"I", "H", *(size.name for size in cell.sizes)}
    sizes = {name: size for name, size in oracle.sizes.items() if name in known}
    states = {name: value.flatten(1) for name, value in (case.states or {}).items()}
    given = reference.Arguments(case.parameters, case.inputs, states, oracle.constants, sizes, num_heads=heads)
    sequences, finals = reference.run(cell, given)
    drawn = draw(oracle, seed=1, states=True, heads=heads).states or {}
    shapes = {name: value.shape for name, value in drawn.items()}
    return Sequences(sequences[cell.output], {state: finals[state].reshape(shapes[state]) for state in oracle.states})


HEADS = [(oracle, heads) for oracle in ORACLES for heads in oracle.num_heads or (1,)]


@pytest.mark.always(states=[True])
@STATES
@pytest.mark.parametrize(("oracle", "heads"), HEADS, ids=str)
def test_reference_equals_the_oracle(oracle: Oracle, heads: int, states: bool) -> None:
    case = draw(oracle, seed=1, states=states, heads=heads)
    found = results(run(cell_of(oracle), oracle, case, heads), case, seed=2)
    expected = results(oracle.run(case, heads), case, seed=2)
    assert found.keys() == expected.keys()
    shapes = {name: value.shape for name, value in expected.items()}
    assert {name: value.shape for name, value in found.items()} == shapes
    errors = {name: relative_error(found[name], value) for name, value in expected.items()}
    # `not <=`: a NaN is no agreement.
    assert not {name: error for name, error in errors.items() if not error <= TOLERANCE}


@pytest.mark.parametrize("oracle", ORACLES, ids=str)
def test_every_parameter_matters(oracle: Oracle) -> None:
    """No gradient of the oracle is zero throughout, so that no comparison above holds for want of a gradient."""
    case = draw(oracle, seed=1, states=not oracle.learned)
    expected = results(oracle.run(case), case, seed=2)
    assert not [name for name, value in expected.items() if not value.abs().max() > 0]


@pytest.mark.parametrize("oracle", ORACLES, ids=str)
def test_names_and_shapes(oracle: Oracle) -> None:
    """Parameters, states and extra inputs carry the names and shapes the oracle was written for."""
    cell = cell_of(oracle)
    sizes = {"num_heads": 1, **reference.complete_sizes(cell, oracle.sizes)}
    shapes: dict[str, tuple[int, ...]] = {}
    for value in cell.values:
        if value.role is Role.PARAMETER:
            width, blocks = evaluate(value.width, sizes), evaluate(diagonal_blocks(value.structure), sizes)
            columns = () if value.columns is None else (evaluate(value.columns, sizes) // blocks,)
            shapes[value.name] = (width, *columns)
    flat = {name: (prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape for name, shape in oracle.shapes().items()}
    # Where a matrix starts is one vector within a call.
    flat |= {f"{name}0": (prod(flat[f"{name}0"]),) for name in oracle.learned}
    assert shapes == flat
    assert [state.name for state in cell.states if state.delay_of is None] == list(oracle.states)
    assert [extra.name for extra in cell.inputs] == ["x", *oracle.inputs]


@pytest.mark.parametrize("oracle", [oracle for oracle in ORACLES if oracle.deviation], ids=str)
def test_a_stated_deviation_is_real(oracle: Oracle) -> None:
    """The shipped cell and the oracle differ by far more than rounding, or the variant text should go."""
    case = draw(oracle, seed=1, states=False)
    shipped_cell = checked(shipped(oracle.cell), f"{oracle.cell}.rnn")
    given = reference.Arguments(case.parameters, case.inputs, {}, oracle.constants, oracle.sizes)
    found, _ = reference.run(shipped_cell, given)
    assert relative_error(found[shipped_cell.output], oracle.run(case).output) > 1e-3


def test_every_shipped_cell_has_an_oracle() -> None:
    covered = {oracle.cell for oracle in ORACLES if not oracle.deviation}
    assert covered == {path.stem for path in CELLS.glob("*.rnn")}
    assert len(covered) >= 60


def test_every_torchrecurrent_cell_is_an_oracle() -> None:
    theirs = [name for name in torchrecurrent.__all__ if name.endswith("Cell")]
    assert len([oracle for oracle in ORACLES if oracle.source == "torchrecurrent"]) == len(theirs) == 41


@pytest.mark.parametrize("path", sorted(CELLS.glob("*.rnn")), ids=lambda path: path.stem)
def test_a_shipped_file(path: Path) -> None:
    """Few lines, a citation and the form chosen first, one cell whose name in lower case names the file."""
    lines = path.read_text().splitlines()
    assert len(lines) <= most_lines(path.stem)
    comment = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    assert lines[0].startswith("# ")
    assert re.search(r"\b(19|20)\d\d\b|documentation", comment)
    assert "Form:" in comment
    assert checked(path.read_text(), path.name).name.lower() == path.stem


def test_spiking_cells_spike_and_stay_silent() -> None:
    """Both branches of heaviside are compared."""
    for oracle in ORACLES:
        if oracle.cell in ("lif", "egru", "alif", "plif", "izhikevich"):
            output = oracle.run(draw(oracle, seed=1, states=True)).output
            silent = torch.count_nonzero(output == 0)
            assert 0 < silent < output.numel()


def test_skip_rnn_skips_and_updates() -> None:
    """What is added up is 0 after an update, and kept after a step that is skipped."""
    (oracle,) = (oracle for oracle in ORACLES if oracle.cell == "skiplstm")
    last = oracle.run(draw(oracle, seed=1, states=True)).finals["q"]
    assert 0 < torch.count_nonzero(last == 0) < last.numel()


def test_why_the_oracles_of_sgu_bring_their_own_hardsigmoid() -> None:
    """torch's float64 gradient is a float32 sixth; should torch mend it, ExactHardsigmoid can go."""
    v = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.nn.functional.hardsigmoid(v), v)
    assert 1e-9 < abs(gradient.item() - 1 / 6) < 1e-8


def test_some_cells_have_what_any_has() -> None:
    """These stand for all shipped cells where what is generated is built."""
    covered = set[str]().union(*map(traits_of, COVERING))
    assert {stem: missing for stem in STEMS if (missing := traits_of(stem) - covered)} == {}
