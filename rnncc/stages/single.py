"""`single`: a cell for one step alone, as a rewrite of the cell.

Input: a Cell. Output: the same equations with one segment, whose loop computes all that a single step needs but the
products of x: functions of parameters, what is batched over the steps of a layer, every loop, and the epilogue. With
one step there is nothing to batch. So a step that autograd does not record is one call of one op, however many loops
the layer has. What a delay holds is a state of it. Functions of matrices are made by torch before it. There is none
where a step needs more than this: operators that loops do not have, masks, no matrix that x is multiplied by, an output
that no loop makes. Nor is there one where a call gives matrices, as inputs or as older values: the op takes vectors.

Fails with: InternalError only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from rnncc.ir.cell import (
    Cell,
    Contraction,
    Delay,
    Node,
    Parameter,
    Placement,
    Pointwise,
    Role,
    RowOp,
    Segment,
    State,
    Stream,
    Value,
    Weight,
    operands,
    rename,
    value_table,
)
from rnncc.ir.dim import ONE, as_int, constant, split_multiple, subtract
from rnncc.ir.expr import Ref, operators
from rnncc.ir.row_operator import BATCHED_ONLY, RowOperator
from rnncc.ir.structure import Dense
from rnncc.language.operators import OF_MATRICES


def single(cell: Cell) -> Cell | None:
    """The cell whose only loop is one step; see the module's docstring."""
    if not _fits(cell):
        return None
    cell = _with_held(cell)
    x = cell.inputs[0]
    nodes = {node.target: node for node in _all_nodes(cell)}
    products = {
        node.matrix: node.target for node in nodes.values() if isinstance(node, Contraction) and node.operand == x.name
    }
    weight = _weight_of(cell, products)
    if weight is None:
        return None
    members = tuple(products[member.name] for member in weight.members)
    outside = _outside(cell)
    wanted = _wanted(cell, nodes, {*members, *outside})
    if cell.output not in wanted:
        return None
    body = tuple(node for target, node in nodes.items() if target in wanted)
    read = dict.fromkeys(operand for node in body for operand in operands(node))
    # What is read of the inputs themselves comes last: x and all further ones, in their order.
    given = (each.name for each in cell.inputs if each is not x or x.name in read)
    streams = (Stream(weight.name, members), *(Stream(name, (name,)) for name in given))
    parameters = [each for each in cell.parameters if any(member.name in read for member in each.members)]
    if any(each.sparsity is not None or each is weight for each in parameters):
        return None
    states = tuple(state.name for state in cell.states)
    own = {node.target for node in body}
    segment = Segment(
        states=states,
        streams=streams,
        weights=(
            *(Weight(each.name, tuple(member.name for member in each.members)) for each in parameters),
            *(Weight(name, (name,)) for name in outside if name in read),
        ),
        constants=tuple(each.name for each in cell.constants if each.name in read),
        batched=tuple(nodes[member] for member in members),
        nodes=body,
        sequences=tuple(dict.fromkeys((*states, cell.output))),
        phases=0,
    )
    table = value_table(cell)
    cut = (node for node in body if isinstance(node, RowOp) and _is_cut_otherwise(node, table))
    return replace(
        cell,
        single_head_because=cell.single_head_because or ("its step cuts values of constant width" if any(cut) else ""),
        segments=(segment,),
        epilogue=(),
        values=tuple(replace(v, placement=Placement.S) if v.name in own else v for v in cell.values),
    )


def _fits(cell: Cell) -> bool:
    """Whether a step of the cell takes inputs and its states, and nothing else; and whether a loop computes it, but for
    functions of parameters that a layer's loops read."""
    given = {weight.name for segment in cell.segments for weight in segment.weights}
    of_parameters = {node.target for node in cell.prologue}
    table = value_table(cell)
    return (
        not (any(each.drawn or each.grid for each in cell.inputs) or cell.inputs[0].per_sequence)
        and not any(table[name].grid for name in cell.delays)
        and all(
            node.target in of_parameters or not (isinstance(node, RowOp) and node.operator in BATCHED_ONLY)
            for node in _all_nodes(cell)
        )
        and _read_outside(cell) <= given
    )


def _with_held(cell: Cell) -> Cell:
    """The cell where what a delay holds is a state. States have the order in which a step takes and returns them: those
    of the text, their older values, and what delays hold."""
    table, delays = value_table(cell), {node.target: node for node in _all_nodes(cell) if isinstance(node, Delay)}
    held = {name: f"{name}__held" for name in cell.delays}
    read = {name: f"{state}__1" for name, state in held.items()}

    def without_delays(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(rename(node, read) for node in nodes if not isinstance(node, Delay))

    new = [Pointwise(held[name], Ref(node.operand), node.span) for name, node in delays.items()]
    declared = (state for state in cell.states if state.delay_of is None)
    older = (state for state in cell.states if state.delay_of is not None)
    made = (State(state, table[name].width, span=delays[name].span) for name, state in held.items())
    values = [value for value in cell.values if value.name not in delays]
    for name, state in held.items():
        value = table[name]
        values.append(replace(value, name=state, placement=Placement.S))
        values.append(replace(value, name=f"{state}__1", role=Role.PREVIOUS, placement=Placement.S))
    segments = tuple(
        replace(each, batched=without_delays(each.batched), nodes=without_delays(each.nodes)) for each in cell.segments
    )
    return replace(
        cell,
        states=(*declared, *older, *made),
        segments=segments,
        epilogue=without_delays((*cell.epilogue, *new)),
        values=tuple(values),
        delays=(),
    )


def _outside(cell: Cell) -> list[str]:
    """The functions of parameters that a loop does not compute, as those of matrices, and what is made of these."""
    table, found = value_table(cell), dict[str, None]()

    def is_one(node: Node) -> bool:
        if not found.keys().isdisjoint(operands(node)):
            return True
        if isinstance(node, RowOp):
            return node.operator in BATCHED_ONLY
        of_matrices = isinstance(node, Pointwise) and not OF_MATRICES.isdisjoint(operators(node.expr))
        return of_matrices or table[node.target].columns is not None

    for node in cell.prologue:
        if is_one(node):
            found[node.target] = None
    return [*found]


def _read_outside(cell: Cell) -> set[str]:
    """Those of them that something else reads than another of them."""
    outside = {*_outside(cell)}
    return {
        name for node in _all_nodes(cell) if node.target not in outside for name in operands(node) if name in outside
    }


def _wanted(cell: Cell, nodes: Mapping[str, Node], given: Collection[str]) -> set[str]:
    """The values that the new states and the output are made of, of what is given."""
    found, left = set[str](), [*(state.name for state in cell.states), cell.output]
    while left:
        name = left.pop()
        if name in nodes and name not in found and name not in given:
            found.add(name)
            left += operands(nodes[name])
    return found


def _is_cut_otherwise(node: RowOp, table: Mapping[str, Value]) -> bool:
    """Whether a loop of several heads would divide a value that is computed for all heads at once outside of loops: one
    whose width is a number, or one in which values of different widths lie one behind the other. A single number is cut
    from a number of units in both alike."""
    if node.operator is RowOperator.PER_HEAD:  # its operand has no heads
        return False
    whole, made = (table[name].width for name in (node.operands[0], node.target))
    if node.operator is RowOperator.SLICE and made == ONE and as_int(whole) is not None:
        return False
    widths = [split_multiple(table[name].width) for name in (node.target, *node.operands)]
    if any(base == ONE and k > 1 for k, base in widths):
        return True
    if node.operator not in (RowOperator.SLICE, RowOperator.CONCAT) or node.grid is not None:
        return False
    rest = subtract(whole, made) if node.operator is RowOperator.SLICE else constant(0)
    return len({base for _, base in widths} | ({split_multiple(rest)[1]} if rest.terms else set())) > 1


def _all_nodes(cell: Cell) -> Iterator[Node]:
    """In the order in which they run. What is computed in several loops comes several times."""
    yield from cell.prologue
    for segment in cell.segments:
        yield from segment.batched
        yield from segment.nodes
    yield from cell.epilogue


def _weight_of(cell: Cell, products: Mapping[str, str]) -> Parameter | None:
    """The largest parameter that x is multiplied by as a whole. The loop multiplies x by any other."""
    whole = [
        each
        for each in cell.parameters
        if each.sparsity is None
        and isinstance(each.structure, Dense)
        and all(member.name in products for member in each.members)
    ]
    return max(whole, key=lambda each: len(each.members), default=None)
