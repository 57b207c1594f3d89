"""The tangents of walks do what the iterations of templates/include/rnncc/cuda/scan/newton.cuh ask of them, evaluated
in torch: slices of time, each from where it is thought to begin, tell where they do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rnncc.ir.lowered import scan_programs
from rnncc.ir.scan import ScanLoop
from rnncc.verify.reference import Interpreter
from tests.compiling import plan_of
from tests.stages.test_scan import WALKS

STEPS, CHANNELS = 16, 24
Values = dict[str, Tensor]


def step(loop: ScanLoop, carries: Tensor, given: Values) -> tuple[Tensor, Tensor]:
    """The carries [N, …] after a step, and their derivatives [N, N, …] by those before."""
    assert loop.tangent
    machine = Interpreter({}, {}, 1, carries)
    known = given | {edge.name: carry for edge, carry in zip(loop.edges, carries, strict=True)}
    for statement in (*loop.statements, *loop.tangent.statements):
        known[statement.target] = machine.expression(statement.expr, known.__getitem__)
    shape = carries.shape[1:]
    matrix = [
        torch.stack(
            [machine.expression(e, known.__getitem__).expand(shape) if e else carries.new_zeros(shape) for e in row]
        )
        for row in loop.tangent.matrix
    ]
    return torch.stack([known[edge.link].expand(shape) for edge in loop.edges]), torch.stack(matrix)


def through(loop: ScanLoop, carries: Tensor, reads: Values, vectors: Values) -> tuple[Tensor, Tensor]:
    """The same of all steps of a slice; reads [steps, …, channels]."""
    product = torch.eye(len(carries), dtype=carries.dtype)[(..., *[None] * (carries.dim() - 1))]
    for t in range(STEPS):
        carries, slopes = step(loop, carries, vectors | {name: read[t] for name, read in reads.items()})
        product = torch.einsum("ij...,jk...->ik...", slopes, product.expand_as(slopes))
    return carries, product


# UnICORNN's oscillators are not damped: a phase that is off stays so.
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("cell", "slices"), [(cell, 8 if cell == "unicornn" else 32) for cell in (*WALKS, "rwkv4")])
def test_slices_find_where_they_begin(cell: str, slices: int) -> None:
    loop = next(loop for _, loop in scan_programs(plan_of(cell)) if loop.tangent)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    vectors = {vector.name: 0.3 * draw(CHANNELS).abs() for vector in loop.vectors}
    vectors |= {name: torch.tensor(0.1, dtype=torch.float64) for name in loop.constants}
    reads = {read.name: draw(STEPS, slices, CHANNELS) for read in loop.reads}
    first = draw(len(loop.edges), CHANNELS)

    begins = [first]
    for s in range(slices):
        end, _ = through(loop, begins[-1], {name: read[:, s] for name, read in reads.items()}, vectors)
        begins.append(end)
    expected = torch.stack(begins, 1)  # [N, slices + 1, CHANNELS]

    thought = first[:, None].expand(-1, slices, -1).clone()
    for _ in range(7):
        ends, slopes = through(loop, thought, reads, vectors)
        found = [first]
        for s in range(slices):
            moved = found[-1] - thought[:, s]
            found.append(ends[:, s] + torch.einsum("ij...,j...->i...", slopes[:, :, s], moved))
        thought = torch.stack(found[:-1], 1)
    assert expected.isfinite().all()
    torch.testing.assert_close(thought, expected[:, :-1], atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(found[-1], expected[:, -1], atol=1e-11, rtol=1e-11)
