"""What the two steps of a loop need: what each reads from the call's tensors, computes, and must leave there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Node, Pointwise, Segment, Value
from rnncc.ir.dim import HIDDEN_SIZE, Dim, Grid, add, constant, named, names, split_multiple, substitute
from rnncc.ir.expr import Const, Expr, Ref
from rnncc.ir.step import (
    Edge,
    Final,
    Input,
    Matrix,
    Outer,
    Place,
    Read,
    Sum,
    Table,
    Vector,
    WeightShape,
    Zero,
    is_narrow,
    row_parts,
)
from rnncc.ir.structure import stored_columns
from rnncc.language.diagnostics import InternalError

NOTHING = constant(0)


def forward_needs(cell: Cell, values: Mapping[str, Value], adjoint: Adjoint, *, masked: bool) -> Needs:
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
    return needs


def backward_needs(cell: Cell, values: Mapping[str, Value], adjoint: Adjoint, *, masked: bool) -> Needs:
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
    return needs


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


class Needs:
    """What `staged` makes a Step of. Fields that Step has mean the same there.

    nodes      the loop's body in dependence order; copies are appended
    inputs     what no stage makes
    matrices   those that a step may multiply by
    outputs    the tensors of each value
    outlasting values that a stage must store although no stage reads them
    lasting    values that must stay readable until the end of a block of steps
    grids      the shapes of the matrices among the values
    """

    def __init__(self, values: Mapping[str, Value], constants: tuple[str, ...], *, masked: bool) -> None:
        self.constants, self.masked = constants, masked
        self.nodes: list[Node] = []
        self.inputs: dict[str, Input] = {}
        self.matrices: dict[str, Matrix] = {}
        self.outputs: dict[str, list[Place]] = {}
        self.outlasting: dict[str, None] = {}
        self.lasting: dict[str, None] = {}
        self.finals: list[Final] = []
        self.outers: list[Outer] = []
        self.sums: list[Sum] = []
        self.zeros: list[Zero] = []
        self.weights: list[WeightShape] = []
        self.widths = {name: value.width for name, value in values.items()}
        self.grids = {name: value.grid for name, value in values.items() if value.grid is not None}

    def input(self, each: Input) -> None:
        """Adds or replaces what is read from the call's tensors."""
        self.inputs[each.name] = each
        self.widths[each.name] = each.width

    def made(self, name: str, width: Dim) -> str:
        """The name under which a stage makes `name` at this width: itself, or a copy."""
        if name not in self.inputs and name not in self.constants and self.widths[name] == width:
            self.outlasting[name] = None
            return name
        return self._copy(f"{name}__copy", Ref(name), width)

    def zero(self, name: str, width: Dim) -> str:
        """A zero that a stage makes."""
        return self._copy(name, Const(0.0), width)

    def output(self, name: str, width: Dim, place: Place) -> None:
        """A tensor that takes the value at every step."""
        self.outputs.setdefault(self.made(name, width), []).append(place)

    def kept(self, name: str, width: Dim) -> str:
        """The name under which a value can be read until the end of its block of steps."""
        each = self.inputs.get(name)
        if each is None or each.width != width or (isinstance(each, Edge) and not each.ahead):
            name = self.made(name, width)
        self.lasting[name] = None
        return name

    def wider(self, width: Dim, name: str) -> Dim:
        """Which is wider, a width or a value's."""
        own = self.widths[name]
        return width if is_narrow(own) and not is_narrow(width) else own

    def _copy(self, name: str, expr: Expr, width: Dim) -> str:
        known = self.widths.get(name)
        if known is None:
            self.widths[name] = width
            self.nodes.append(Pointwise(name, expr))
        elif known != width:
            raise InternalError(f"{name} is needed at two widths")
        self.outlasting[name] = None
        return name


def unified(cell: Cell, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values, with dims that the cell's constraints make equal written in one way: equal widths look equal."""
    known: dict[str, Dim] = {}
    for constraint in cell.constraints:
        if constraint.divides:
            continue
        sides = [substitute(side, known) for side in (constraint.left, constraint.right)]
        for side, other in (sides, sides[::-1]):
            free = names(side)
            if len(free) == 1 and side == named(*free) and side != HIDDEN_SIZE and not free & names(other):
                known = {name: substitute(dim, {min(free): other}) for name, dim in known.items()}
                known[min(free)] = other
                break
    return {name: _written(value, known) for name, value in values.items()} if known else dict(values)


def _written(value: Value, known: Mapping[str, Dim]) -> Value:
    def written(dim: Dim) -> Dim:
        # H + I stays what it is where I == H: heads cut 2*H part by part, and torch has packed H + I as one.
        other = substitute(dim, known)
        return other if split_multiple(other)[0] == split_multiple(dim)[0] else dim

    columns = None if value.columns is None else written(value.columns)
    grid = None if value.grid is None else Grid(*map(written, value.grid.sides))
    width = written(value.width) if grid is None else grid.width
    return replace(value, width=width, columns=columns, grid=grid)
