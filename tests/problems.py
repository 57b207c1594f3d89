"""Random problems for a cell: sizes, parameters, inputs and initial states in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from rnncc.ir.cell import ACTIVE, RESET, Cell, Initialiser, value_table
from rnncc.ir.dim import evaluate
from rnncc.ir.structure import diagonal_blocks
from rnncc.verify.reference import Arguments, complete_sizes


def make_problem(
    cell: Cell, steps: int, batch: int, sizes: dict[str, int], num_heads: int = 1, seed: int = 0
) -> Arguments:
    """Values of ordinary size; parameters near their declared initial value, extra inputs positive (times, gaps)."""
    generator = torch.Generator().manual_seed(seed)
    known = complete_sizes(cell, sizes, num_heads)
    dims = {**known, "num_heads": num_heads}
    values = value_table(cell)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low

    def parameter(name: str, initialiser: Initialiser) -> Tensor:
        value = values[name]
        shape = [evaluate(value.width, dims)]
        if value.columns is not None:
            shape.append(evaluate(value.columns, dims) // evaluate(diagonal_blocks(value.structure), dims))
        spread = 1.2 / known["H"] ** 0.5
        centre = initialiser.values[0] if initialiser.kind == "constant" else 0.0
        if initialiser.kind == "uniform":
            return uniform(initialiser.values[0], initialiser.values[1], *shape)
        return centre + uniform(-spread, spread, *shape) * (0.2 if centre else 1.0)

    parameters = {m.name: parameter(m.name, m.initialiser) for p in cell.parameters for m in p.members}
    inputs = {}
    for item in cell.inputs:
        low, high = (-1.5, 1.5) if item.name == "x" else (0.5, 2.0)
        times = () if item.per_sequence else (steps,)
        inputs[item.name] = uniform(low, high, *times, batch, evaluate(item.width, dims))
        if item.name in (RESET, ACTIVE):
            inputs[item.name] = (inputs[item.name] > (low + high) / 2).double()
    initial = {s.name: uniform(-0.9, 0.9, batch, evaluate(s.width, dims)) for s in cell.states}
    constants = {c.name: float(c.value) for c in cell.constants if not isinstance(c.value, str)}
    return Arguments(parameters, inputs, initial, constants, known, num_heads)
