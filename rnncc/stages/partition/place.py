"""Finds the segments (the states that one loop computes together), and the placement of every value: P, Q, X, S or Y.

docs/language.md, "What the compiler finds out by itself", says what these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rnncc.analysis import graph
from rnncc.ir.cell import Placement, Pointwise, RowOp, operands
from rnncc.ir.expr import Ref
from rnncc.ir.typed import delay_states
from rnncc.language.diagnostics import InternalError
from rnncc.stages.partition.flat import FlatCell


@dataclass(frozen=True, slots=True)
class Placed:
    """The segments and placements of a flat. `hoist` adds those of the values that it makes.

    segments      the states of each segment; a segment follows those that it reads
    placement     of every node
    owner         the segment's number, for S values and previous states
    last_segment  the largest number of a segment that a value depends on; -1 where it depends on no state
    """

    segments: tuple[tuple[str, ...], ...]
    placement: dict[str, Placement]
    owner: dict[str, int]
    last_segment: dict[str, int]


def place(flat: FlatCell) -> Placed:
    """Find segments and placements. Raises InternalError where the equations have a cycle."""
    nodes = flat.nodes
    reads: dict[str, tuple[str, ...]] = {name: operands(node) for name, node in nodes.items()}
    over_time = dict(reads)
    for name in flat.states:
        over_time[f"{name}__1"] = (name,)
        # A delay state runs with the state that it keeps, whoever reads it.
        over_time[name] = (*over_time[name], *delay_states(flat.typed, name))
    owner: dict[str, int] = {}
    segments: list[tuple[str, ...]] = []
    for component in graph.components(over_time):
        states = tuple(state for state in flat.states if state in set(component))
        if states:
            owner.update((name, len(segments)) for name in component)
            owner.update((f"{state}__1", len(segments)) for state in states)
            segments.append(states)
    order = graph.sort(reads)
    if order is None:
        raise InternalError("a cycle was not reported")
    inputs = flat.typed.inputs
    last = _last_segments(order, reads, owner)
    at_steps = _reached(order, reads, (given.name for given in inputs if not given.per_sequence))
    per_sequence = _reached(order, reads, (given.name for given in inputs if given.per_sequence))
    needed = _needed(order, reads, owner)
    placement: dict[str, Placement] = {}
    for name in order:
        if name in owner:
            placement[name] = Placement.S
        elif last[name] >= 0:
            placement[name] = Placement.X if name in needed else Placement.Y
        elif name in at_steps:
            placement[name] = Placement.X
        else:
            placement[name] = Placement.Q if name in per_sequence else Placement.P
    return Placed(tuple(segments), placement, owner, last)


def merge(flat: FlatCell, placed: Placed) -> FlatCell:
    """Make `h = M @ v` of `h = h__M` and `h__M = M @ v`, for every state h where both run in the loop, nothing else
    reads h__M, and both have the same width. (Where h is wider, as with a reduction in place of the product, the copy
    broadcasts.) The same of any value that is a product with a matrix that changes, `y = S @ q`."""
    readers: dict[str, int] = {}
    for node in flat.nodes.values():
        for name in operands(node):
            readers[name] = readers.get(name, 0) + 1
    nodes = dict(flat.nodes)
    states = {state.name for state in flat.typed.states}
    for name, copy in flat.nodes.items():
        if not isinstance(copy, Pointwise) or not isinstance(copy.expr, Ref):
            continue
        source = nodes.get(copy.expr.name)
        if name not in states and not (isinstance(source, RowOp) and source.grid is not None):
            continue
        same_loop = placed.owner.get(copy.expr.name) == placed.owner.get(name)
        is_user_named = "__" not in copy.expr.name
        if source is None or is_user_named or not same_loop or readers[source.target] > 1:
            continue
        if flat.width(name) == flat.width(source.target):
            nodes[name] = replace(source, target=name)
            del nodes[source.target]
    return replace(flat, nodes=nodes)


def _last_segments(order: list[str], reads: Mapping[str, tuple[str, ...]], owner: Mapping[str, int]) -> dict[str, int]:
    """`Placed.last_segment`."""
    last = dict(owner)
    for name in order:
        last[name] = max([owner.get(name, -1), *(last.get(operand, -1) for operand in reads[name])])
    return last


def _reached(order: list[str], reads: Mapping[str, tuple[str, ...]], inputs: Iterable[str]) -> set[str]:
    """The inputs, and all values that depend on one of them."""
    reached = set(inputs)
    for name in order:
        if any(operand in reached for operand in reads[name]):
            reached.add(name)
    return reached


def _needed(order: list[str], reads: Mapping[str, tuple[str, ...]], owner: Mapping[str, int]) -> set[str]:
    """The values outside every segment that some segment reads, directly or not."""
    needed: set[str] = set()
    for name in reversed(order):
        if name in owner or name in needed:
            needed.update(operand for operand in reads[name] if operand not in owner)
    return needed
