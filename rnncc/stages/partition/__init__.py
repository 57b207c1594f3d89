"""`partition`: how is a cell placed? Its equations are cut into batched parts and sequential loops.

Input: Typed. Output: Cell, and warnings. Fails with: RnnccError for what shows only now: matrices whose blocks differ
(RNN214), parameters that a module cannot have (RNN217), initialisers that fit nothing (RNN224), an `eye` of no size
(RNN228), functions that a loop cannot compute (RNN230).

The passes, each in its module: flatten, place, norms, heads, groups, locate, hoist, segments; lints looks for what is
legal and suspicious.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnncc.ir.cell import Cell, Delay, Node, Parameter, Placement, Role, State, Value
from rnncc.ir.dim import ONE
from rnncc.ir.structure import DENSE
from rnncc.ir.typed import Typed, delay_states
from rnncc.language.diagnostics import Diagnostic
from rnncc.language.report import Report
from rnncc.language.source import NOWHERE
from rnncc.stages.partition.flat import FlatCell
from rnncc.stages.partition.flatten import flatten
from rnncc.stages.partition.groups import pack
from rnncc.stages.partition.heads import Heads, heads
from rnncc.stages.partition.hoist import hoist
from rnncc.stages.partition.lints import lint
from rnncc.stages.partition.locate import locate
from rnncc.stages.partition.norms import with_norms
from rnncc.stages.partition.place import Placed, merge, place
from rnncc.stages.partition.segments import cut


def partition(typed: Typed) -> tuple[Cell, tuple[Diagnostic, ...]]:
    """The cell and its warnings (then performance notes); see the module's docstring."""
    report = Report(typed.source)
    flat = flatten(typed, report)
    placed = place(flat)
    merged = with_norms(merge(flat, placed))
    headed = heads(merged, placed, report)
    parameters = pack(merged, headed.structures, report)
    located = locate(merged, placed)
    hoisted = hoist(merged, placed, located, report)
    parts = cut(hoisted, placed, located, parameters)
    report.stop()
    lint(merged, placed, parts, report)
    cell = Cell(
        name=typed.name,
        sizes=typed.sizes,
        constants=typed.constants,
        inputs=typed.inputs,
        states=tuple(_states(typed)),
        parameters=parameters,
        prologue=parts.prologue,
        segments=parts.segments,
        epilogue=parts.epilogue,
        output=typed.output,
        values=(*_given(typed, parameters), *_made(hoisted, placed, headed, parts.order)),
        constraints=(*typed.constraints, *headed.constraints),
        delays=tuple(name for name, node in flat.nodes.items() if isinstance(node, Delay)),
        comment=typed.comment,
        source=typed.source,
        single_head_because=headed.single,
    )
    return cell, report.warnings


def _states(typed: Typed) -> Iterator[State]:
    """Every state followed by the hidden states that keep its older values."""
    for state in typed.states:
        yield state
        delayed = state.name
        for delay in delay_states(typed, state.name):
            yield State(delay, state.width, state.initial, delayed, state.span, state.grid)
            delayed = delay


def _given(typed: Typed, parameters: Sequence[Parameter]) -> Iterator[Value]:
    """Inputs, constants, members, previous states."""
    for given in typed.inputs:
        placement = Placement.Q if given.per_sequence else Placement.X
        yield Value(given.name, Role.INPUT, placement, given.width, span=given.span)
    for constant in typed.constants:
        if not constant.shaping:
            yield Value(constant.name, Role.CONSTANT, Placement.P, ONE, span=constant.span)
    spans = {param.name: param.span for param in typed.params} | {member.name: member.span for member in typed.members}
    for parameter in parameters:
        for member in parameter.members:
            span = spans.get(member.name, NOWHERE)
            structure = parameter.structure
            yield Value(member.name, Role.PARAMETER, Placement.P, member.width, parameter.columns, structure, span)
    for state in _states(typed):
        yield Value(f"{state.name}__1", Role.PREVIOUS, Placement.S, state.width, span=state.span, grid=state.grid)


def _made(flat: FlatCell, placed: Placed, headed: Heads, order: Sequence[Node]) -> Iterator[Value]:
    """What nodes define, in the order they run."""
    for node in order:
        name, shape = node.target, flat.shapes[node.target]
        columns = shape.columns if shape.kind == "matrix" else None
        structure = headed.structures.get(name, DENSE)
        placement = Placement.X if isinstance(node, Delay) else placed.placement[name]
        yield Value(name, Role.NODE, placement, shape.width, columns, structure, node.span, shape.grid)
