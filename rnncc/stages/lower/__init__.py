"""`lower`: what the kernels of a cell read, compute and write.

Input: a Cell, its adjoints, the masked Cell and its adjoints, and the cell for one step, if there is one. Output: one
LoweredCell with two loops for every segment, plain and masked, and the program of a single step. Each direction of a
loop is a Step first (needs.py, stages.py): its values, products merged where they have one operand, elementwise
equations grouped into stages. From the Step follow the forms that kernels of one loop run (fused.py, scan.py), and a
Program, which has addresses (slots.py).
Fails with: RnnccError RNN402 where the tables of a kernel are too small for the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Value, value_table
from rnncc.ir.kernel import Program
from rnncc.ir.lowered import LoweredCell, LoweredLoop
from rnncc.language.source import escaped, file_name
from rnncc.stages.lower.fused import fuse
from rnncc.stages.lower.needs import backward_needs, forward_needs, unified
from rnncc.stages.lower.scan import scan, with_tangent
from rnncc.stages.lower.slots import check_limits, fits, program_of
from rnncc.stages.lower.stages import staged

__all__ = ["lower"]


def lower(
    cell: Cell,
    adjoints: Sequence[Adjoint],
    masked: Cell,
    masked_adjoints: Sequence[Adjoint],
    single: tuple[Cell, Adjoint] | None = None,
) -> LoweredCell:
    """All loops of the cell, segment by segment, plain before masked. `single`: the cell for one step, and what
    stands for its adjoint."""
    name = file_name(cell.source)
    pairs = zip(_loops(cell, adjoints, masked=False), _loops(masked, masked_adjoints, masked=True), strict=True)
    loops = tuple(loop for pair in pairs for loop in pair)
    check_limits(cell.name, loops)
    return LoweredCell(
        cell.name,
        escaped(name) if name.endswith(".rnn") else f"{cell.name.lower()}.rnn",
        ("I", "H", *(size.name for size in cell.sizes)),
        cell.single_head_because,
        loops,
        None if single is None else _single(*single),
    )


def _single(cell: Cell, adjoint: Adjoint) -> Program | None:
    """The program of a single step, which nobody differentiates; None where it is too large for a kernel's tables."""
    values = _values(cell, adjoint)
    program = program_of(staged(forward_needs(cell, values, adjoint, masked=False), cell.source))
    return program if fits(program) else None


def _values(cell: Cell, adjoint: Adjoint) -> dict[str, Value]:
    return unified(cell, value_table(cell) | {value.name: value for value in adjoint.values})


def _loops(cell: Cell, adjoints: Sequence[Adjoint], *, masked: bool) -> Iterator[LoweredLoop]:
    solved = {size.name: size.solved for size in cell.sizes if size.solved is not None}
    for index, adjoint in enumerate(adjoints):
        values = _values(cell, adjoint)
        needs = (make(cell, values, adjoint, masked=masked) for make in (forward_needs, backward_needs))
        forward, backward = (staged(each, cell.source) for each in needs)
        scan_backward = scan(backward)
        scan_forward = with_tangent(scan(forward), scan_backward)
        one_head = bool(cell.single_head_because)
        programs = program_of(forward), program_of(backward)
        fused, fused_backward = (fuse(step, one_head=one_head, solved=solved) for step in (forward, backward))
        yield LoweredLoop(index, masked, *programs, fused, fused_backward, scan_forward, scan_backward)
