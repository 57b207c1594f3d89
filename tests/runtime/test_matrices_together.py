"""Matrices of several gates that go through the same function, which then works on all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.packages import float64_package

HIDDEN, INPUT = 6, 3
DEFINITIONS = """
def unit(M) = M/norm(M)
def bent(M) = sqrt(abs(M) + 1)*sign(M) - k*sqrt(abs(M) + 1)
const k = 0.25
"""
# The gates of each cell, in order, each with the function that its matrices go through.
CELLS = {
    "Alike": {"i": "unit(bent({}))", "f": "unit(bent({}))", "g": "unit(bent({}))"},
    "Apart": {"i": "unit(bent({}))", "f": "bent({})", "g": "unit(bent({}))"},
    "Some": {"i": "unit(bent({}))", "f": "unit(bent({}))", "g": "{}"},
    "Scaled": {"i": "diag(v)@bent({})", "f": "bent({})", "g": "bent({})"},
}


def text_of(name: str, gates: dict[str, str]) -> str:
    """A cell whose gates have these functions."""
    lines = [f"cell {name}", "state h", *(["param v: vector"] if name == "Scaled" else []), DEFINITIONS]
    lines += [
        f"{gate} = {function.format('W')}@x + {function.format('R')}@h[t-1] + b" for gate, function in gates.items()
    ]
    return "\n".join([*lines, "h[t] = sigmoid(f)*h[t-1] + sigmoid(i)*tanh(g)", ""])


@cache
def package() -> Any:
    return float64_package("\n".join(text_of(*cell) for cell in CELLS.items()), "together")


def bent(matrix: Tensor) -> Tensor:
    """The function, element by element."""
    root = (matrix.abs() + 1).sqrt()
    return root * matrix.sign() - 0.25 * root


def function_of(text: str, vector: Tensor | None) -> Callable[[Tensor], Tensor]:
    """A gate's function of one head's matrix."""
    if text.startswith("unit"):
        return lambda matrix: bent(matrix) / bent(matrix).square().sum().sqrt()
    if text.startswith("diag"):
        assert vector is not None
        return lambda matrix: vector.unsqueeze(-1) * bent(matrix)
    return bent if text.startswith("bent") else lambda matrix: matrix


def expected(name: str, layer: Any, x: Tensor, heads: int) -> Tensor:
    """The output, head by head and gate by gate."""
    vector = layer.v_l0 if name == "Scaled" else None
    of_input, of_state = (getattr(layer, f"weight_{kind}_l0").chunk(3) for kind in ("ih", "hh"))
    bias = layer.bias_ih_l0.chunk(3)
    h = torch.zeros(x.shape[1], HIDDEN, dtype=x.dtype)
    outputs = []
    for now in x:
        gates = []
        for number, text in enumerate(CELLS[name].values()):
            made = [
                h.chunk(heads, -1)[n] @ function_of(text, None if vector is None else vector.chunk(heads)[n])(block).mT
                for n, block in enumerate(of_state[number].chunk(heads))
            ]
            matrix = function_of(text, vector)(of_input[number])
            gates.append(torch.cat(made, -1) + now @ matrix.mT + bias[number])
        i, f, g = gates
        h = f.sigmoid() * h + i.sigmoid() * g.tanh()
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", CELLS)
def test_each_matrix_has_its_own_function(name: str, heads: int) -> None:
    torch.manual_seed(0)
    layer = getattr(package(), name)(INPUT, HIDDEN, num_heads=heads, dtype=torch.float64)
    if name == "Scaled":
        torch.nn.init.uniform_(layer.v_l0)
    x = torch.randn(4, 2, INPUT, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 2, HIDDEN, dtype=torch.float64)
    tensors = [x, *layer.parameters()]
    own, theirs = layer(x)[0], expected(name, layer, x, heads)
    torch.testing.assert_close(own, theirs, rtol=0, atol=1e-12)
    for ours, right in zip(
        torch.autograd.grad((own * weight).sum(), tensors), torch.autograd.grad((theirs * weight).sum(), tensors),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(ours, right, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("name", "roots"), [("Alike", 2), ("Some", 2), ("Apart", 6), ("Scaled", 4)])
def test_a_function_runs_once(name: str, roots: int) -> None:
    """For the matrices of x, and for those of h. It has one square root, for as many matrices as go together."""
    layer = getattr(package(), name)(INPUT, HIDDEN, dtype=torch.float64)
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        layer(torch.randn(4, 2, INPUT, dtype=torch.float64))
    assert sum(event.name == "aten::sqrt" for event in found.events()) == roots
