"""`mask`: a cell that restarts and stops each batch entry on its own, as a rewrite of the cell.

Input: a Cell. Output: the same Cell with two inputs of width 1 that end every segment's streams:

    reset__   != 0: every state of the batch entry, delays included, takes its initial value before this step
    active__  == 0: the step is past the entry's length, and every state keeps its value

Fails with: InternalError only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rnncc.ir.cell import (
    ACTIVE,
    RESET,
    Cell,
    Input,
    Node,
    Placement,
    Pointwise,
    Role,
    RowOp,
    Segment,
    State,
    Stream,
    Value,
    Weight,
    declared_state,
    rename,
    restarted,
    value_table,
)
from rnncc.ir.dim import ONE
from rnncc.ir.expr import Const, Expr, Ref, apply
from rnncc.ir.row_operator import RowOperator

MASKS = (Stream(RESET, (RESET,)), Stream(ACTIVE, (ACTIVE,)))


def mask(cell: Cell) -> Cell:
    """The cell with resets and lengths compiled in; see the module's docstring."""
    states = {state.name: state for state in cell.states}
    table = value_table(cell)
    # What everything but the two nodes made here reads in place of a previous state.
    renamed = {f"{name}__1": restarted(name) for name in states}
    new_values = [Value(stream.name, Role.INPUT, Placement.X, ONE) for stream in MASKS]
    for name in states:
        for new in (restarted(name), f"{name}__stepped"):
            new_values.append(replace(table[name], name=new, role=Role.NODE, placement=Placement.S))
        if (grid := states[name].grid) is not None and states[name].diagonal:
            start = replace(table[name], name=f"{name}__start", role=Role.NODE, placement=Placement.S)
            new_values += [start, Value(f"{name}__diagonal", Role.NODE, Placement.S, grid.rows)]
    return replace(
        cell,
        inputs=(*cell.inputs, *(Input(stream.name, ONE) for stream in MASKS)),
        segments=tuple(_mask_segment(segment, states, renamed) for segment in cell.segments),
        epilogue=tuple(rename(node, renamed) for node in cell.epilogue),
        output=renamed.get(cell.output, cell.output),
        values=(*cell.values, *new_values),
    )


def _mask_segment(segment: Segment, states: Mapping[str, State], renamed: Mapping[str, str]) -> Segment:
    nodes: list[Node] = []
    weights = list(segment.weights)
    for name in segment.states:
        initial = _initial(states[name], states)
        learned = f"{declared_state(states[name], states).name}0"
        if isinstance(initial, Ref) and all(weight.name != learned for weight in weights):
            weights.append(Weight(learned, (learned,)))
        if states[name].diagonal:
            nodes += _identity(states[name])
            initial = Ref(f"{name}__start")
        value = apply("where", Ref(RESET), initial, Ref(f"{name}__1"))
        nodes.append(Pointwise(restarted(name), value, states[name].span))
    # Within the step everything reads what the step made: a held value (m = -inf past an entry's length) could give a
    # NaN there, which would be dropped in forward, but spread in backward as 0*NaN.
    inside = {**renamed, **{name: f"{name}__stepped" for name in segment.states}}
    for node in segment.nodes:
        new = rename(node, inside)
        if new.target not in segment.states:
            nodes.append(new)
            continue
        name = new.target
        nodes.append(replace(new, target=f"{name}__stepped"))
        kept = apply("where", Ref(ACTIVE), Ref(f"{name}__stepped"), Ref(f"{name}__1"))
        nodes.append(Pointwise(name, kept, new.span))
    return replace(
        segment,
        streams=(*(_rename_stream(stream, renamed) for stream in segment.streams), *MASKS),
        weights=tuple(weights),
        batched=tuple(rename(node, renamed) for node in segment.batched),
        nodes=tuple(nodes),
        sequences=tuple(renamed.get(name, name) for name in segment.sequences),
    )


def _identity(state: State) -> tuple[Node, Node]:
    """The matrix that a state starts at, made within the step: for all entries it would be as large as a state."""
    assert state.grid is not None and state.initial is not None
    diagonal, span = f"{state.name}__diagonal", state.span
    number = Pointwise(diagonal, Const(state.initial), span)
    return number, RowOp(f"{state.name}__start", RowOperator.ON_DIAGONAL, (diagonal,), span=span, grid=state.grid)


def _initial(state: State, states: Mapping[str, State]) -> Expr:
    root = declared_state(state, states)
    return Ref(f"{root.name}0") if root.initial is None else Const(root.initial)


def _rename_stream(stream: Stream, renamed: Mapping[str, str]) -> Stream:
    members = tuple(renamed.get(member, member) for member in stream.members)
    return Stream(renamed.get(stream.name, stream.name), members)
