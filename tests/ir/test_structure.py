"""A matrix's structure reaches every stage as one object. No stage takes a kind that it does not know for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rnncc.ir.cell import Cell, value_table
from rnncc.ir.dim import HEADS, HIDDEN_SIZE, ONE, constant
from rnncc.ir.kernel import Program
from rnncc.ir.structure import DENSE, BlockDiagonal, block_diagonal, diagonal_blocks, stored_columns
from rnncc.ir.verify import verify
from rnncc.language.read import read_request
from rnncc.pipeline import compile_cells
from rnncc.show.stage import show
from rnncc.stages.differentiate import differentiate
from rnncc.stages.lower import lower
from rnncc.stages.mask import mask
from rnncc.stages.render import render
from rnncc.verify.reference import run
from tests.problems import make_problem
from tests.rendering import for_cpus


@dataclass(frozen=True, slots=True)
class Unknown:
    """A kind of structure that nobody has heard of."""


NEW: Any = Unknown()


def partitioned(name: str) -> Cell:
    return compile_cells(read_request(name), "partition").cells[0].cell


def unheard(cell: Cell) -> Cell:
    """The cell with that structure for each of its recurrent matrices."""

    def changed(entry: Any) -> Any:
        return replace(entry, structure=NEW) if isinstance(entry.structure, BlockDiagonal) else entry

    return replace(cell, values=tuple(map(changed, cell.values)), parameters=tuple(map(changed, cell.parameters)))


def rendered(cell: Cell) -> None:
    masked = mask(cell)
    request = read_request(cell.name.lower())
    (known,) = compile_cells(request, "schedule").cells
    adjoints, masked_adjoints = differentiate(cell), differentiate(masked)
    render(request, [replace(known, cell=cell, masked=masked, adjoints=adjoints, masked_adjoints=masked_adjoints)])


def kernels(cell: Cell) -> None:
    """The plan is the known cell's, since `lower` would fail before; its matrices have the cell's structure."""
    structure = next(entry.structure for entry in cell.parameters if entry.name == "R")

    def changed(program: Program) -> Program:
        matrices = tuple(replace(matrix, structure=structure) for matrix in program.step.matrices)
        return replace(program, step=replace(program.step, matrices=matrices))

    plan = compile_cells(read_request(cell.name.lower()), "lower").cells[0].plan
    loops = tuple(replace(loop, forward=changed(loop.forward), backward=changed(loop.backward)) for loop in plan.loops)
    for_cpus([replace(plan, loops=loops)])


def lowered(cell: Cell) -> None:
    masked = mask(cell)
    lower(cell, differentiate(cell), masked, differentiate(masked))


def evaluated(cell: Cell) -> None:
    """On the tensors of the known cell."""
    known = partitioned(cell.name.lower())
    run(cell, make_problem(known, 2, 2, {"I": 3, "H": 4}))


WORK: dict[str, Callable[[Cell], object]] = {
    "verify": verify, "show": show, "lower": lowered, "render": rendered, "kernels": kernels, "reference": evaluated,
}  # fmt: skip


@pytest.mark.parametrize("work", WORK)
def test_a_kind_that_a_stage_does_not_know_is_never_taken_for_dense(work: str) -> None:
    cell = partitioned("lstm")
    WORK[work](cell)
    with pytest.raises(AssertionError, match="unreachable"):
        WORK[work](unheard(cell))


def test_a_structure_travels_from_the_declaration_to_the_kernel() -> None:
    (made,) = compile_cells(read_request("lstm"), "lower").cells
    cell, plan = made.cell, made.plan
    found = [parameter.structure for parameter in cell.parameters if parameter.name == "R"]
    found += [value.structure for name, value in value_table(cell).items() if name.startswith("R_")]
    found += [
        matrix.structure
        for loop in plan.loops
        for matrix in (*loop.forward.step.matrices, *loop.backward.step.matrices)
    ]
    assert len(found) > 16 and set(found) == {BlockDiagonal(HEADS)}


def test_one_block_is_a_dense_matrix() -> None:
    assert block_diagonal(ONE) == DENSE and diagonal_blocks(DENSE) == ONE
    assert stored_columns(HIDDEN_SIZE, DENSE) == HIDDEN_SIZE
    assert block_diagonal(constant(4)) == BlockDiagonal(constant(4))
    assert diagonal_blocks(BlockDiagonal(HEADS)) == HEADS != stored_columns(HIDDEN_SIZE, BlockDiagonal(HEADS))
