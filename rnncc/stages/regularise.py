"""`regularise`: zoneout and variational recurrent dropout, as a rewrite of the cell.

Input: a Cell, the states with zoneout, and whether there is recurrent dropout. Output: the same Cell with inputs that
the caller draws (`Input.drawn`), each as wide as its state s:

    zoneout__s             s[t] = zoneout__s*s[t-1] + (1 - zoneout__s)*new. What else the step computes, and what comes
                           after the loops, reads the new value (Krueger et al. 2017, arXiv:1606.01305). A state that
                           starts at -inf keeps its start where zoneout__s is 1, and has no mean with it
    recurrent_dropout__s   multiplies s[t-1] where matrix products read it: one mask for all steps (Gal & Ghahramani
                           2016, arXiv:1512.05287)

The new cell is built like any other; its gradients come by differentiation.

Fails with: InternalError only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isinf

from rnncc.analysis.recurrent import recurrent_reads
from rnncc.ir.cell import (
    Cell,
    Input,
    Node,
    Placement,
    Pointwise,
    Role,
    Segment,
    State,
    Stream,
    Value,
    operands,
    rename,
    value_table,
)
from rnncc.ir.expr import Const, Expr, Ref, apply

ZONEOUT, DROPOUT = "zoneout", "recurrent_dropout"


def regularise(cell: Cell, zoneout: tuple[str, ...], recurrent_dropout: bool) -> Cell:
    """The cell with masks as inputs; see the module's docstring. States that it does not have are not looked for."""
    states = {state.name: state for state in cell.states}
    zoned = tuple(name for name in states if name in zoneout)
    segments = cell.segments
    drawn: list[Input] = []
    values: list[Value] = []
    if recurrent_dropout:
        segments = tuple(_drop(segment, states, drawn, values) for segment in segments)
    made = {name: f"{name}__made" for name in zoned}
    table = value_table(cell)
    values += [replace(table[name], name=new, role=Role.NODE, placement=Placement.S) for name, new in made.items()]
    drawn += [Input(_name(ZONEOUT, name), states[name].width, drawn=ZONEOUT, of=name) for name in zoned]
    segments = tuple(_zone(cell, segment, made) for segment in segments)
    values += [Value(item.name, Role.INPUT, Placement.X, item.width) for item in drawn]
    return replace(
        cell,
        zoneout=zoned,
        recurrent_dropout=recurrent_dropout,
        inputs=(*cell.inputs, *drawn),
        segments=segments,
        epilogue=tuple(rename(node, made) for node in cell.epilogue),
        values=(*cell.values, *values),
    )


def _name(kind: str, state: str) -> str:
    return f"{kind}__{state}"


def _drop(segment: Segment, states: Mapping[str, State], drawn: list[Input], values: list[Value]) -> Segment:
    """Products read `h__1__dropped = h__1 * mask`."""
    reads = recurrent_reads(segment)
    previous = {f"{name}__1": name for name in segment.states}
    dropped = {alias: f"{name}__dropped" for alias, name in reads.aliases.items()}
    nodes: list[Node] = []
    streams = list(segment.streams)
    for node in reads.nodes:
        if node.target not in dropped:
            nodes.append(rename(node, dropped))
            continue
        earlier = reads.aliases[node.target]
        state = states[previous[earlier]]
        mask = _name(DROPOUT, state.name)
        nodes.append(Pointwise(dropped[node.target], apply("mul", Ref(earlier), Ref(mask))))
        drawn.append(Input(mask, state.width, drawn=DROPOUT, of=state.name))
        streams.append(Stream(mask, (mask,)))
        values.append(Value(dropped[node.target], Role.NODE, Placement.S, state.width))
    return replace(segment, nodes=tuple(nodes), streams=tuple(streams))


def _zone(cell: Cell, segment: Segment, made: Mapping[str, str]) -> Segment:
    """`h = mask*h__1 + (1 - mask)*h__made`, and everything else reads `h__made`."""
    starts = {state.name: state.initial for state in cell.states}
    nodes: list[Node] = []
    streams = [Stream(made.get(s.name, s.name), tuple(made.get(m, m) for m in s.members)) for s in segment.streams]
    for node in segment.nodes:
        new = rename(node, made)
        if new.target not in made:
            nodes.append(new)
            continue
        name, mask = new.target, Ref(_name(ZONEOUT, new.target))
        nodes.append(replace(new, target=made[name]))
        kept = _mixed(mask, Ref(f"{name}__1"), Ref(made[name]), starts[name])
        nodes.append(Pointwise(name, kept, new.span))
        streams.append(Stream(_name(ZONEOUT, name), (_name(ZONEOUT, name),)))
    later = {name for node in cell.epilogue for name in operands(node)}
    for other in cell.segments:
        later |= {name for node in other.batched for name in operands(node)}
        later |= {name for stream in other.streams for name in stream.members if other is not segment}
    returned = [made[name] for name in segment.states if name in made and name in later]
    return replace(
        segment,
        nodes=tuple(nodes),
        streams=tuple(streams),
        batched=tuple(rename(node, made) for node in segment.batched),
        sequences=(*segment.sequences, *returned),
    )


def _mixed(mask: Ref, old: Ref, new: Ref, start: float | None) -> Expr:
    """A state after zoneout. 0 times an infinite start is no number, so such a state is chosen, and not mixed."""
    mean = apply("add", apply("mul", mask, old), apply("mul", apply("sub", Const(1), mask), new))
    if start is None or not isinf(start):
        return mean
    mean = apply("where", apply("eq", old, Const(start)), new, mean)
    return apply("where", apply("eq", mask, Const(1)), old, mean)
