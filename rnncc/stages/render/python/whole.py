"""Which cells run as one op: the product of their input, with biases, makes all streams of their only loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rnncc.ir.cell import Cell
from rnncc.ir.dim import Dim, add, total
from rnncc.stages.render.python.code import MemberPlace, member_places
from rnncc.stages.render.python.streams import neighbours, pack


@dataclass(frozen=True, slots=True)
class BiasPart:
    """Rows of a vector parameter that are added to columns of the streams, which lie side by side."""

    attribute: str
    row: Dim
    column: Dim
    rows: Dim


@dataclass(frozen=True, slots=True)
class WholeProduct:
    """The streams, side by side, are input @ weightᵀ and these biases."""

    weight: str
    biases: tuple[BiasPart, ...]


def whole_product(cell: Cell) -> WholeProduct | None:
    """The product that makes all streams of the cell, or None where one product does not, or where something else is
    computed outside of the loop or drawn for it."""
    parameters = {parameter.name: parameter for parameter in cell.parameters}
    is_plain = (
        len(cell.segments) == len(cell.inputs) == 1
        and not (cell.prologue or cell.epilogue or cell.delays)
        and not any(state.delay_of or state.grid for state in cell.states)
        and all(parameter.trained and parameter.sparsity is None for parameter in cell.parameters)
        and all(weight.name in parameters for segment in cell.segments for weight in segment.weights)
    )
    if not is_plain or cell.inputs[0].drawn or cell.inputs[0].per_sequence:
        return None
    (segment,), places = cell.segments, member_places(cell)
    if cell.output not in segment.sequences or not segment.streams:
        return None
    rows: list[MemberPlace] = []
    biases: list[BiasPart] = []
    for stream in segment.streams:
        packed = pack(cell, stream, segment.batched)
        if packed is None or [product.operand for product in packed.products] != [cell.inputs[0].name]:
            return None
        of_stream = neighbours(packed.products[0].matrices, places)
        if of_stream is None:
            return None
        column = total([place.member.width for place in rows])
        rows += of_stream
        for names in packed.vectors:
            run = neighbours(names, places)
            if run is None:
                return None
            _add(biases, _part(run, column))
    weight = rows[0].parameter
    # The streams side by side are the whole weight, row by row.
    if [place.member.name for place in rows] != [member.name for member in weight.members]:
        return None
    # The product writes the weight's gradient, and so would the loop: one would overwrite the other.
    if any(read.name == weight.name for read in segment.weights):
        return None
    return WholeProduct(weight.attribute, tuple(biases))


def _part(run: list[MemberPlace], column: Dim) -> BiasPart:
    return BiasPart(run[0].parameter.attribute, run[0].start, column, total([place.member.width for place in run]))


def _add(parts: list[BiasPart], part: BiasPart) -> None:
    """Add a part, as more rows of one that ends where it begins."""
    for i, before in enumerate(parts):
        ends = add(before.row, before.rows), add(before.column, before.rows)
        if before.attribute == part.attribute and ends == (part.row, part.column):
            parts[i] = replace(before, rows=add(before.rows, part.rows))
            return
    parts.append(part)
