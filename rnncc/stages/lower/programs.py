"""The two programs of a loop: what each reads from the call's tensors and what it must leave there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Segment, Value
from rnncc.ir.dim import Dim, add, constant
from rnncc.ir.kernel import (
    EdgeSlot,
    Final,
    Matrix,
    Outer,
    Place,
    Program,
    ReadSlot,
    Sum,
    Table,
    VectorSlot,
    WeightShape,
    Zero,
    row_parts,
)
from rnncc.ir.structure import stored_columns
from rnncc.language.diagnostics import InternalError
from rnncc.stages.lower.needs import Needs
from rnncc.stages.lower.stages import build_stages

NOTHING = constant(0)


def _members(groups: tuple[tuple[str, ...], ...], values: Mapping[str, Value]) -> dict[str, tuple[int, Dim]]:
    """The tensor and the offset of each member of packed tensors."""
    found: dict[str, tuple[int, Dim]] = {}
    for index, members in enumerate(groups):
        offset = NOTHING
        for member in members:
            found[member] = (index, offset)
            offset = add(offset, values[member].width)
    return found


def _streams(segment: Segment, values: Mapping[str, Value]) -> dict[str, tuple[int, Dim]]:
    return _members(tuple(stream.members for stream in segment.streams), values)


def _weights(segment: Segment, values: Mapping[str, Value], needs: Needs) -> dict[str, Place]:
    places = {
        member: Place(Table.WEIGHTS, index, offset)
        for member, (index, offset) in _members(tuple(weight.members for weight in segment.weights), values).items()
    }
    for name, place in places.items():
        value = values[name]
        if value.columns is None:
            needs.external(VectorSlot(name, value.width, place))
        else:
            matrix = Matrix(
                name, place.index, place.offset, value.width, value.columns, value.structure, row_parts(value.width)
            )
            needs.matrices[name] = matrix
    needs.constants.update(dict.fromkeys(segment.constants))
    return places


def _saved(adjoint: Adjoint) -> Iterator[tuple[str, Place]]:
    for index, name in enumerate((*adjoint.saved, *adjoint.saved_states)):
        yield name, Place(Table.ROUNDED if name in adjoint.rounded else Table.SAVED, index, NOTHING)


def _weight_shapes(cell: Cell, segment: Segment, values: Mapping[str, Value]) -> tuple[WeightShape, ...]:
    sparsities = {parameter.name: parameter.sparsity for parameter in cell.parameters}
    shapes = []
    for weight in segment.weights:
        rows = NOTHING
        for member in weight.members:
            rows = add(rows, values[member].width)
        first = values[weight.members[0]]
        columns = constant(1) if first.columns is None else stored_columns(first.columns, first.structure)
        shapes.append(WeightShape(weight.name, rows, columns, sparsities.get(weight.name)))
    return tuple(shapes)


def forward_program(cell: Cell, values: Mapping[str, Value], adjoint: Adjoint, *, masked: bool) -> Program:
    """Streams and states in; sequences, final states and saved values out."""
    segment = adjoint.segment
    needs = Needs(cell.source, values)
    for name, (index, offset) in _streams(segment, values).items():
        needs.external(ReadSlot(name, values[name].width, Place(Table.STREAMS, index, offset)))
    _weights(segment, values, needs)
    finals = []
    for index, state in enumerate(segment.states):
        edge = f"{state}__1"
        needs.external(EdgeSlot(edge, values[edge].width, state, Place(Table.STATES, index, NOTHING)))
        finals.append(Final(edge, Place(Table.FINAL, index, NOTHING)))
    needs.nodes.extend(segment.nodes)
    for state in segment.states:
        if needs.stored(state, values[state].width) != state:
            raise InternalError(f"the new state {state} is no node's target")
    for index, name in enumerate(segment.sequences):
        needs.destination(name, values[name].width, Place(Table.SEQUENCES, index, NOTHING))
    for name, place in _saved(adjoint):
        needs.destination(name, values[name].width, place)
    slots, matrices, stages = build_stages(needs)
    weights = _weight_shapes(cell, segment, values)
    return Program(slots, matrices, stages, tuple(finals), (), (), (), weights, segment.constants, masked)


def backward_program(cell: Cell, values: Mapping[str, Value], adjoint: Adjoint, *, masked: bool) -> Program:
    """Streams, states, saved values and gradients of sequences and final states in; gradients of streams, weights and
    initial states out."""
    segment = adjoint.segment
    needs = Needs(cell.source, values)
    streams = _streams(segment, values)
    for name, (index, offset) in streams.items():
        needs.external(ReadSlot(name, values[name].width, Place(Table.STREAMS, index, offset)))
    for name, place in _saved(adjoint):
        needs.external(ReadSlot(name, values[name].width, place))
    for index, state in enumerate(segment.states):
        if state in adjoint.saved_states:
            edge, place = f"{state}__1", Place(Table.STATES, index, NOTHING)
            needs.external(EdgeSlot(edge, values[edge].width, state, place, ahead=True))
    for index, name in enumerate(segment.sequences):
        given = f"d_{name}__sequence"
        needs.external(ReadSlot(given, values[name].width, Place(Table.D_SEQUENCES, index, NOTHING)))
    weights = _weights(segment, values, needs)
    needs.nodes.extend((*adjoint.recompute, *adjoint.nodes))
    finals = []
    cotangents = dict(adjoint.state_cotangents)
    carried = []
    for index, state in enumerate(segment.states):
        edge = f"d_{state}__carry"
        place = Place(Table.D_FINAL, index, NOTHING)
        needs.external(EdgeSlot(edge, values[state].width, "", place))
        carried.append((state, edge, place))
        finals.append(Final(edge, Place(Table.D_STATES, index, NOTHING)))
    for state, edge, place in carried:
        width = values[state].width
        value = cotangents.get(state)
        link = needs.zero(f"d_{state}__none", width) if value is None else needs.stored(value, width)
        needs.external(EdgeSlot(edge, width, link, place))
    with_gradient = dict(adjoint.stream_cotangents)
    zeros = []
    for name, (index, offset) in streams.items():
        place = Place(Table.D_STREAMS, index, offset)
        if name in with_gradient:
            needs.destination(with_gradient[name], values[name].width, place)
        else:
            zeros.append(Zero(place, values[name].width))
    outers = []
    for product in adjoint.outer_products:
        matrix = values[product.matrix]
        assert matrix.columns is not None
        cotangent = needs.kept(product.cotangent, matrix.width)
        operand = needs.kept(product.operand, matrix.columns)
        outers.append(Outer(product.matrix, cotangent, operand, row_parts(matrix.columns)))
    sums = []
    for name, value in adjoint.vector_cotangents:
        width = values[name].width
        place = Place(Table.D_WEIGHTS, weights[name].index, weights[name].offset)
        sums.append(Sum(place, width, needs.kept(value, needs.wider(width, value))))
    for product in adjoint.outer_products:
        needs.use_matrix(product.matrix)
    slots, matrices, stages = build_stages(needs)
    return Program(
        slots,
        matrices,
        stages,
        tuple(finals),
        tuple(outers),
        tuple(sums),
        tuple(zeros),
        _weight_shapes(cell, segment, values),
        segment.constants,
        masked,
    )
