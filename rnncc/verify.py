"""The built op against the float64 reference: outputs, final states and every gradient (`rnncc verify`).

The reference is `rnncc.reference`, which interprets the checked cell in eager torch with torch's own autograd; it
shares neither the derived backward pass nor the generated code with what it verifies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rnncc import reference
from rnncc.ir.cell import Cell, Constraint
from rnncc.ir.dim import evaluate

# Relative error ‖ours - reference‖/‖reference‖ allowed, by dtype. Inputs and parameters are rounded to the dtype before
# both run, so that only the arithmetic differs. Half precision is dominated by the rounding of what the op returns.
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

SHAPES = ((1, 1), (7, 3), (33, 16))  # (T, B)


@dataclass(frozen=True, slots=True)
class Row:
    """One compared quantity: the worst relative error over the shapes, and what was allowed."""

    quantity: str
    dtype: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return self.error <= self.bound


def problem_sizes(cell: Cell) -> dict[str, int]:
    """I, H and every dim: small sizes that meet the cell's constraints, I different from H where they allow it."""
    for inputs in (7, 12):
        sizes = {"I": inputs, "H": 12, "num_heads": 1}
        for size in cell.sizes:
            if size.solved is None:
                sizes[size.name] = size.default if size.default is not None else 6
        for size in cell.sizes:
            if size.solved is not None:
                sizes[size.name] = evaluate(size.solved, sizes)
        if all(_holds(constraint, sizes) for constraint in cell.constraints):
            return sizes
    raise ValueError(f"no small sizes meet the constraints of {cell.name}")


def _holds(constraint: Constraint, sizes: dict[str, int]) -> bool:
    left, right = evaluate(constraint.left, sizes), evaluate(constraint.right, sizes)
    return left % right == 0 if constraint.divides else left == right


def relative_error(ours: Tensor, expected: Tensor) -> float:
    """‖ours - expected‖ / ‖expected‖ in float64; the plain norm where the expected value is zero; NaN never passes."""
    difference = float(torch.linalg.vector_norm(ours.double() - expected.double()))
    norm = float(torch.linalg.vector_norm(expected.double()))
    return difference / norm if norm > 0 else difference


def verify(layer_class: Any, cell: Cell, *, device: str = "cpu", dtypes: tuple[torch.dtype, ...] | None = None) -> list[Row]:
    """Compare `layer_class` (a layer of a built package) with the reference of `cell` over SHAPES and dtypes."""
    rows: list[Row] = []
    for dtype in dtypes or (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        worst: dict[str, float] = {}
        for steps, columns in SHAPES:
            for quantity, error in compare(layer_class, cell, steps, columns, dtype, device).items():
                known = worst.get(quantity, 0.0)
                # NaN compares false with everything: keep it once seen.
                worst[quantity] = error if error != error or error > known else known
        name = str(dtype).removeprefix("torch.")
        rows += [Row(quantity, name, error, BOUNDS[dtype]) for quantity, error in worst.items()]
    return rows


def compare(
    layer_class: Any, cell: Cell, steps: int, columns: int, dtype: torch.dtype, device: str
) -> dict[str, float]:
    """Relative error of every quantity for one shape. `x` and extra inputs are standard normal, initial states small."""
    generator = torch.Generator().manual_seed(steps * 1000 + columns)
    sizes = problem_sizes(cell)
    dims = {size.name: sizes[size.name] for size in cell.sizes if size.solved is None}
    torch.manual_seed(0)
    layer = layer_class(sizes["I"], sizes["H"], dtype=dtype, device=device, **dims)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    inputs = {i.name: draw(steps, columns, evaluate(i.width, sizes)).requires_grad_() for i in cell.inputs}
    visible = [state for state in cell.states if state.delay_of is None]
    initial = {s.name: (0.1 * draw(columns, evaluate(s.width, sizes))).requires_grad_() for s in visible}
    extras = {name: value for name, value in inputs.items() if name != "x"}
    hx = tuple(value.unsqueeze(0) for value in initial.values())
    output, finals = layer(inputs["x"], hx if len(hx) > 1 else hx[0], **extras)
    finals = finals if isinstance(finals, tuple) else (finals,)

    exact_inputs = {name: value.detach().double().requires_grad_() for name, value in inputs.items()}
    exact_initial = {name: value.detach().double().requires_grad_() for name, value in initial.items()}
    exact_parameters = {
        name: value.detach().double().requires_grad_() for name, value in layer.gate_parameters(0).items()
    }
    sequences, last = reference.run(
        cell, exact_parameters, exact_inputs, initial=exact_initial, constants=None, sizes=sizes, num_heads=1
    )
    expected = [sequences[cell.output], *(last[state.name] for state in visible)]
    ours = [output, *(final.squeeze(0) for final in finals)]
    cotangents = [draw(*value.shape) for value in ours]
    torch.autograd.backward(ours, cotangents)
    torch.autograd.backward(expected, [value.double() for value in cotangents])

    found = {"output": relative_error(output, expected[0])}
    for state, value, final in zip(visible, ours[1:], expected[1:], strict=True):
        found[f"{state.name}_n"] = relative_error(value, final)
    gradients = layer.gate_parameters(0, grad=True)
    pairs: list[tuple[str, Tensor | None, Tensor | None]]
    pairs = [(f"d_{name}", value.grad, exact_inputs[name].grad) for name, value in inputs.items()]
    pairs += [(f"d_{name}0", value.grad, exact_initial[name].grad) for name, value in initial.items()]
    pairs += [(f"d_{name}", gradients[name], value.grad) for name, value in exact_parameters.items()]
    for quantity, mine, exact in pairs:
        # No gradient on one side means that it is zero.
        if exact is not None:
            found[quantity] = relative_error(torch.zeros_like(exact) if mine is None else mine, exact)
        elif mine is not None:
            found[quantity] = relative_error(mine, torch.zeros_like(mine))
    return found
