"""The reverse equations: their structure on known cells, their numbers against torch.autograd in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rnncc.ir.cell import Cell
from rnncc.ir.expr import Apply, Expr
from rnncc.reference import fixed_values, run
from rnncc.stages.differentiate import differentiate
from tests import builders
from tests.adjoint_interpreter import backward, forward, machine_of
from tests.problems import make_problem

BUILT = [builders.lstm, builders.gru, builders.mingru, builders.layernorm_toy]
ROOT = Path(__file__).parents[2]


def operations(expr: Expr) -> int:
    """The number of operators in an expression."""
    return 1 + sum(operations(argument) for argument in expr.arguments) if isinstance(expr, Apply) else 0


def relative(found: Tensor, expected: Tensor) -> float:
    """‖found - expected‖ / ‖expected‖, or the norm itself where nothing is expected."""
    scale = float(expected.norm())
    return float((found - expected).norm()) / (scale if scale > 0 else 1.0)


def check_gradients(cell: Cell, steps: int = 4, columns: int = 3, heads: int = 1, seed: int = 0, **sizes: int) -> None:
    """Each segment's adjoint program against autograd through the same loop, with a random gradient for every
    sequence and final state."""
    problem = make_problem(cell, steps, columns, {"I": 5, "H": 4, **sizes}, heads, seed)
    found, _ = run(cell, **problem.keywords())  # type: ignore[arg-type]
    found |= problem.inputs
    generator = torch.Generator().manual_seed(seed + 1)
    for segment, adjoint in zip(cell.segments, differentiate(cell), strict=True):
        machine = machine_of(cell, adjoint, problem.sizes, heads, problem.inputs["x"])
        fixed = fixed_values(cell, machine, problem.parameters, problem.constants)
        members = [member for stream in segment.streams for member in stream.members]
        weights = [member for weight in segment.weights for member in weight.members]
        leaves = {name: found[name].detach().clone().requires_grad_() for name in members}
        leaves |= {name: fixed[name].clone().requires_grad_() for name in weights}
        initial = {name: problem.initial[name].clone().requires_grad_() for name in segment.states}
        streams = {name: leaves[name] for name in members}
        sequences, final = forward(segment, machine, {**fixed, **leaves}, streams, initial)
        outputs = [sequences[name] for name in segment.sequences] + [final[name] for name in segment.states]
        gradients = [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in outputs]
        reached = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        wanted = [*leaves.values(), *initial.values()]
        expected = torch.autograd.grad([o for o, _ in reached], wanted, [g for _, g in reached], allow_unused=True)
        with torch.no_grad():
            renamed, _ = forward(adjoint.segment, machine, fixed, streams, initial)
            for name, sequence in sequences.items():
                assert torch.equal(renamed[name], sequence), f"naming changed {name}"
            split = len(segment.sequences)
            result = backward(
                adjoint,
                machine,
                fixed,
                streams,
                initial,
                renamed,
                dict(zip(segment.sequences, gradients[:split], strict=True)),
                dict(zip(segment.states, gradients[split:], strict=True)),
            )
        both = {**result.streams, **result.weights}
        computed = [both[name] for name in leaves] + [result.states[name] for name in initial]
        for name, found_gradient, gradient in zip((*leaves, *initial), computed, expected, strict=True):
            error = relative(found_gradient, torch.zeros_like(found_gradient) if gradient is None else gradient)
            assert error < 1e-10, f"{cell.name}: the gradient of {name} is off by {error:.1e}"


@pytest.mark.parametrize("build", BUILT)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("steps", [1, 4])
def test_gradients_equal_autograd(build: object, heads: int, steps: int) -> None:
    check_gradients(build(), steps=steps, heads=heads)  # type: ignore[operator]
