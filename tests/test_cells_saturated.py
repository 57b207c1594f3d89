"""Every shipped cell where gates open and close entirely: what is finite in float64 by the cell's own equations is
finite in the built op too, in float32 and in bfloat16. And the gradients of the RG-LRU where a gate closes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from .oracles import Case, Oracle, draw, relative_error, results
from .test_cells_built import ONE_A_CELL, TOLERANCE, built_results, layer_of
from .test_cells_oracles import cell_of, run

# Of what is made so large. At 30, 1 - sigmoid is 0 in float32 and not in float64; at 100, an exponential is 0.
SIZES = (30.0, 100.0, 1e4)
LARGEST = 1e30  # of float64's numbers that float32 and bfloat16 have to hold
# Parameters that are logarithms. What is beyond float32 by the paper's own exp(v) is no mistake of the op, so they get
# the first of the sizes at most.
LOGARITHMS = {"lru": {"nu", "th", "gam"}, "rwkv4": {"w"}, "s6": {f"a{n}" for n in range(1, 17)}}


def saturated(oracle: Oracle, size: float, where: str) -> Case:
    """A case with x, or all biases and other vectors of parameters, at plus or minus `size`."""
    case = draw(oracle, seed=1, states=True)
    generator = torch.Generator().manual_seed(3)
    vectors = {name: value for name, value in case.parameters.items() if value.dim() == 1 and value.requires_grad}
    with torch.no_grad():
        for name, value in ({"x": case.inputs["x"]} if where == "x" else vectors).items():
            own = min(size, SIZES[0]) if name in LOGARITHMS.get(oracle.cell, ()) else size
            value.copy_(own * (2 * torch.randint(0, 2, value.shape, generator=generator) - 1))
    return case


def in_dtype(case: Case, dtype: torch.dtype) -> Case:
    def cast(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.detach().to(dtype).requires_grad_(value.requires_grad) for name, value in tensors.items()}

    assert case.states is not None
    return Case(cast(case.parameters), cast(case.inputs), cast(case.states))


@pytest.mark.one_in(60, "where")
@pytest.mark.parametrize("where", ["x", "parameters"])
@pytest.mark.parametrize("oracle", ONE_A_CELL, ids=str)
def test_what_the_equations_keep_finite_is_finite(oracle: Oracle, where: str) -> None:
    for size in SIZES:
        exact = saturated(oracle, size, where)
        right = results(run(cell_of(oracle), oracle, exact), exact, seed=2)
        for dtype in (torch.float32, torch.bfloat16):
            case = in_dtype(exact, dtype)
            found = built_results(layer_of(oracle, case, "f32").to(dtype), oracle, case, seed=2)
            lost = [name for name, v in right.items() if ((v.abs() < LARGEST) & ~found[name].isfinite()).any()]
            assert not lost, (size, dtype)
        # Nor do the equations themselves make infinities.
        assert [name for name, v in right.items() if not v.isfinite().all()] == []


RG_LRU = pytest.mark.parametrize("oracle", [o for o in ONE_A_CELL if o.cell in ("rglru", "griffinblock")], ids=str)


@RG_LRU
def test_gates_that_nearly_close_have_the_gradients_of_the_papers_formula(oracle: Oracle) -> None:
    """The paper's sqrt(1 - a*a), as torch differentiates it. Nearer to a = 1 the formula itself has fewer digits than
    the bound asks for."""
    for bias in (-5.0, -12.0):
        case = draw(oracle, seed=1, states=True)
        with torch.no_grad():
            case.parameters["b_r"].fill_(bias)
        expected = results(oracle.run(case), case, seed=2)
        assert all(value.isfinite().all() for value in expected.values())
        found = built_results(layer_of(oracle, case), oracle, case, seed=2)
        errors = {name: relative_error(found[name], value) for name, value in expected.items()}
        # `not <=`: a NaN is no agreement.
        assert not {name: error for name, error in errors.items() if not error <= TOLERANCE}, bias


@RG_LRU
def test_a_closed_gate_passes_no_gradient(oracle: Oracle) -> None:
    """Some units' gates are closed entirely: a is 1. Values are those of the paper, and so are gradients wherever torch
    finds a number. Where it has infinity times 0, they are finite, and 0 for the gate itself."""
    cases = []
    for closed in (-800.0, -1e4):
        case = draw(oracle, seed=1, states=True)
        with torch.no_grad():
            case.parameters["b_r"][::2] = closed
        expected = results(oracle.run(case), case, seed=2)
        assert not expected["d b_r"].isfinite().all(), "torch's derivative of the paper's formula"
        found = built_results(layer_of(oracle, case), oracle, case, seed=2)
        for name, value in expected.items():
            if not name.startswith("d "):
                assert relative_error(found[name], value) <= TOLERANCE
            known = value.isfinite()
            assert found[name].isfinite().all()
            assert relative_error(found[name][known], value[known]) <= TOLERANCE
        assert not found["d b_r"][::2].any() and found["d b_r"][1::2].all()
        cases.append(found)
    assert all(relative_error(cases[1][name], value) <= TOLERANCE for name, value in cases[0].items())
