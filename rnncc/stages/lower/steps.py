"""The two steps of a loop: what each reads from the call's tensors and what it must leave there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Segment, Value
from rnncc.ir.dim import add, constant
from rnncc.ir.step import (
    Edge,
    Final,
    Matrix,
    Outer,
    Place,
    Read,
    Step,
    Sum,
    Table,
    Vector,
    WeightShape,
    Zero,
    row_parts,
)
from rnncc.ir.structure import stored_columns
from rnncc.language.diagnostics import InternalError
from rnncc.stages.lower.needs import Needs
from rnncc.stages.lower.stages import staged

NOTHING = constant(0)


def forward_step(cell: Cell, values: Mapping[str, Value], adjoint: Adjoint, *, masked: bool) -> Step:
    """Streams and states in; sequences, final states and saved values out."""
    segment = adjoint.segment
    needs = Needs(values, segment.constants, masked=masked)
    _read_streams(segment, values, needs)
    _read_weights(cell, segment, values, needs)
    for index, state in enumerate(segment.states):
        edge = f"{state}__1"
        needs.input(Edge(edge, values[edge].width, state, Place(Table.STATES, index, NOTHING)))
        needs.finals.append(Final(edge, Place(Table.FINAL, index, NOTHING)))
    needs.nodes.extend(segment.nodes)
    for state in segment.states:
        if needs.made(state, values[state].width) != state:
            raise InternalError(f"the new state {state} is no node's target")
    for index, name in enumerate(segment.sequences):
        needs.output(name, values[name].width, Place(Table.SEQUENCES, index, NOTHING))
    for name, place in _saved(adjoint):
        needs.output(name, values[name].width, place)
    return staged(needs, cell.source)


def backward_step(cell: Cell, values: Mapping[str, Value], adjoint: Adjoint, *, masked: bool) -> Step:
    """Streams, states, saved values and gradients of sequences and final states in; gradients of streams, weights and
    initial states out."""
    segment = adjoint.segment
    needs = Needs(values, segment.constants, masked=masked)
    streams = _read_streams(segment, values, needs)
    for name, place in _saved(adjoint):
        needs.input(Read(name, values[name].width, place))
    for index, state in enumerate(segment.states):
        if state in adjoint.saved_states:
            edge, place = f"{state}__1", Place(Table.STATES, index, NOTHING)
            needs.input(Edge(edge, values[edge].width, state, place, ahead=True))
    for index, name in enumerate(segment.sequences):
        given = f"d_{name}__sequence"
        needs.input(Read(given, values[name].width, Place(Table.D_SEQUENCES, index, NOTHING)))
    weights = _read_weights(cell, segment, values, needs)
    needs.nodes.extend((*adjoint.recompute, *adjoint.nodes))
    cotangents = dict(adjoint.state_cotangents)
    carried = []
    for index, state in enumerate(segment.states):
        edge = f"d_{state}__carry"
        place = Place(Table.D_FINAL, index, NOTHING)
        needs.input(Edge(edge, values[state].width, "", place))
        carried.append((state, edge, place))
        needs.finals.append(Final(edge, Place(Table.D_STATES, index, NOTHING)))
    for state, edge, place in carried:
        width = values[state].width
        value = cotangents.get(state)
        link = needs.zero(f"d_{state}__none", width) if value is None else needs.made(value, width)
        needs.input(Edge(edge, width, link, place))
    with_gradient = dict(adjoint.stream_cotangents)
    for name, place in streams.items():
        place = Place(Table.D_STREAMS, place.index, place.offset)
        if name in with_gradient:
            needs.output(with_gradient[name], values[name].width, place)
        else:
            needs.zeros.append(Zero(place, values[name].width))
    for product in adjoint.outer_products:
        matrix = values[product.matrix]
        assert matrix.columns is not None
        cotangent = needs.kept(product.cotangent, matrix.width)
        operand = needs.kept(product.operand, matrix.columns)
        needs.outers.append(Outer(product.matrix, cotangent, operand, row_parts(matrix.columns)))
    for name, value in adjoint.vector_cotangents:
        width = values[name].width
        place = Place(Table.D_WEIGHTS, weights[name].index, weights[name].offset)
        needs.sums.append(Sum(place, width, needs.kept(value, needs.wider(width, value))))
    return staged(needs, cell.source)


def _places(table: Table, groups: tuple[tuple[str, ...], ...], values: Mapping[str, Value]) -> dict[str, Place]:
    """Where each member of packed tensors lies."""
    found: dict[str, Place] = {}
    for index, members in enumerate(groups):
        offset = NOTHING
        for member in members:
            found[member] = Place(table, index, offset)
            offset = add(offset, values[member].width)
    return found


def _read_streams(segment: Segment, values: Mapping[str, Value], needs: Needs) -> dict[str, Place]:
    places = _places(Table.STREAMS, tuple(stream.members for stream in segment.streams), values)
    for name, place in places.items():
        needs.input(Read(name, values[name].width, place))
    return places


def _read_weights(cell: Cell, segment: Segment, values: Mapping[str, Value], needs: Needs) -> dict[str, Place]:
    places = _places(Table.WEIGHTS, tuple(weight.members for weight in segment.weights), values)
    for name, place in places.items():
        value = values[name]
        if value.columns is None:
            needs.input(Vector(name, value.width, place))
        else:
            needs.matrices[name] = Matrix(
                name, place.index, place.offset, value.width, value.columns, value.structure, row_parts(value.width)
            )
    needs.weights.extend(_weight_shapes(cell, segment, values))
    return places


def _saved(adjoint: Adjoint) -> Iterator[tuple[str, Place]]:
    for index, name in enumerate((*adjoint.saved, *adjoint.saved_states)):
        yield name, Place(Table.ROUNDED if name in adjoint.rounded else Table.SAVED, index, NOTHING)


def _weight_shapes(cell: Cell, segment: Segment, values: Mapping[str, Value]) -> Iterator[WeightShape]:
    sparsities = {parameter.name: parameter.sparsity for parameter in cell.parameters}
    for weight in segment.weights:
        rows = NOTHING
        for member in weight.members:
            rows = add(rows, values[member].width)
        first = values[weight.members[0]]
        columns = constant(1) if first.columns is None else stored_columns(first.columns, first.structure)
        yield WeightShape(weight.name, rows, columns, sparsities.get(weight.name))
