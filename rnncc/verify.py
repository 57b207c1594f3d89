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
# both run, so that only the arithmetic differs. A cell that amplifies rounding (a kink, a chaotic or a periodic step)
# may exceed the bound: up to twice the error of its eager loop in that dtype, the largest of DRAWS problems, since both
# errors are samples of one distribution.
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
DRAWS = 8

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
    exact = expected.detach().double()
    difference = torch.linalg.vector_norm(ours.detach().double() - exact)
    norm = torch.linalg.vector_norm(exact)
    return float(difference / norm if norm > 0 else difference)


def verify(
    layer_class: Any, cell: Cell, *, device: str = "cpu", dtypes: tuple[torch.dtype, ...] = tuple(BOUNDS)
) -> list[Row]:
    """Compare `layer_class` (a layer of a built package) with the reference of `cell` over SHAPES and dtypes."""
    rows: list[Row] = []
    for dtype in dtypes:
        worst: dict[str, float] = {}
        bounds: dict[str, float] = {}
        for steps, columns in SHAPES:
            problem = _Problem(layer_class, cell, steps, columns, dtype, device)
            exact = problem.reference(torch.float64)
            allowed: dict[str, float] | None = None
            for quantity, value in problem.ours().items():
                error = relative_error(value, exact[quantity])
                known = worst.get(quantity, 0.0)
                # NaN compares false with everything: keep it once seen.
                worst[quantity] = error if error != error or error > known else known
                bounds.setdefault(quantity, BOUNDS[dtype])
                if not error <= BOUNDS[dtype] and dtype != torch.float64:
                    allowed = allowed or _eager_errors(layer_class, cell, steps, columns, dtype, device)
                    bounds[quantity] = max(bounds[quantity], 2 * allowed[quantity])
        name = str(dtype).removeprefix("torch.")
        rows += [Row(quantity, name, error, bounds[quantity]) for quantity, error in worst.items()]
    return rows


def _eager_errors(
    layer_class: Any, cell: Cell, steps: int, columns: int, dtype: torch.dtype, device: str
) -> dict[str, float]:
    """The largest error of the eager loop in `dtype` over DRAWS problems, by quantity."""
    largest: dict[str, float] = {}
    for draw in range(DRAWS):
        problem = _Problem(layer_class, cell, steps, columns, dtype, device, draw)
        exact = problem.reference(torch.float64)
        for quantity, value in problem.reference(dtype).items():
            largest[quantity] = max(largest.get(quantity, 0.0), relative_error(value, exact[quantity]))
    return largest


class _Problem:
    """One shape: a layer, what it is given (standard normal inputs, small initial states) and what it is asked for."""

    def __init__(
        self,
        layer_class: Any,
        cell: Cell,
        steps: int,
        columns: int,
        dtype: torch.dtype,
        device: str,
        number: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(number * 1_000_000 + steps * 1000 + columns)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

        self.cell = cell
        self.sizes = sizes = problem_sizes(cell)
        dims = {size.name: sizes[size.name] for size in cell.sizes if size.solved is None}
        torch.manual_seed(number)
        # Made on the CPU: the same parameters on every device.
        self.layer = layer_class(sizes["I"], sizes["H"], dtype=dtype, **dims).to(device)
        self.states = [state for state in cell.states if state.delay_of is None]
        self.inputs = {i.name: draw(steps, columns, evaluate(i.width, sizes)) for i in cell.inputs}
        # Extra inputs are mostly times and gates: a negative one may leave the domain of a logarithm.
        self.inputs |= {i.name: self.inputs[i.name].abs() for i in cell.inputs[1:]}
        self.initial = {s.name: 0.1 * draw(columns, evaluate(s.width, sizes)) for s in self.states}
        self.parameters: dict[str, Tensor] = self.layer.gate_parameters(0)
        with torch.no_grad():
            output, finals = self._run_layer(self.inputs, self.initial)
        self.cotangents = [draw(*value.shape) for value in (output, *finals)]

    def _run_layer(self, inputs: dict[str, Tensor], initial: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        hx = tuple(value.unsqueeze(0) for value in initial.values())
        extras = {name: value for name, value in inputs.items() if name != "x"}
        output, finals = self.layer(inputs["x"], hx if len(hx) > 1 else hx[0], **extras)
        return output, [final.squeeze(0) for final in (finals if isinstance(finals, tuple) else (finals,))]

    def ours(self) -> dict[str, Tensor]:
        """Every quantity by the layer."""
        inputs, initial = _leaves(self.inputs), _leaves(self.initial)
        output, finals = self._run_layer(inputs, initial)
        torch.autograd.backward([output, *finals], self.cotangents)
        gradients = self.layer.gate_parameters(0, grad=True)
        return self._named(output, finals, inputs, initial, {name: gradients[name] for name in self.parameters})

    def reference(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every quantity by the reference, computed in `dtype` from the same numbers."""
        inputs, initial, parameters = (
            _leaves(values, dtype) for values in (self.inputs, self.initial, self.parameters)
        )
        sequences, last = reference.run(self.cell, parameters, inputs, initial=initial, sizes=self.sizes)
        output, finals = sequences[self.cell.output], [last[state.name] for state in self.states]
        torch.autograd.backward([output, *finals], [value.to(dtype) for value in self.cotangents])
        return self._named(output, finals, inputs, initial, {name: p.grad for name, p in parameters.items()})

    def _named(
        self,
        output: Tensor,
        finals: list[Tensor],
        inputs: dict[str, Tensor],
        initial: dict[str, Tensor],
        gradients: dict[str, Tensor | None],
    ) -> dict[str, Tensor]:
        found = {"output": output}
        found |= {f"{state.name}_n": value for state, value in zip(self.states, finals, strict=True)}
        found |= {f"d_{name}": _gradient(value, value.grad) for name, value in inputs.items()}
        found |= {f"d_{name}0": _gradient(value, value.grad) for name, value in initial.items()}
        found |= {f"d_{name}": _gradient(value, gradients[name]) for name, value in self.parameters.items()}
        return found


def _leaves(values: dict[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    return {name: value.detach().to(dtype or value.dtype, copy=True).requires_grad_() for name, value in values.items()}


def _gradient(value: Tensor, gradient: Tensor | None) -> Tensor:
    # No gradient means that it is zero.
    return torch.zeros_like(value) if gradient is None else gradient
