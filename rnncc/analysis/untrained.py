"""Which values have no gradient because they are buffers, or made of nothing but buffers and numbers."""

from __future__ import annotations

from rnncc.ir.cell import Cell, operands


def untrained(cell: Cell) -> frozenset[str]:
    """The buffers of a cell, and what its prologue makes of buffers and constants alone."""
    found = {member.name for parameter in cell.parameters if not parameter.trained for member in parameter.members}
    numbers = {constant.name for constant in cell.constants}
    for node in cell.prologue:
        if found.union(numbers).issuperset(operands(node)):
            found.add(node.target)
    return frozenset(found)
