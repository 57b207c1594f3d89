"""Which forward values a backward step reads, and which of them are saved, recomputed or read as states."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rnncc.bounds import Bounds
from rnncc.ir.cell import Contraction, Delay, Node, Pointwise, RowOp, Segment, operands


@dataclass(frozen=True, slots=True)
class Savings:
    """`saved`, `saved_states`, `streams_read` and `recompute` of an Adjoint."""

    saved: tuple[str, ...]
    saved_states: tuple[str, ...]
    streams_read: tuple[str, ...]
    recompute: tuple[Node, ...]


def choose(segment: Segment, needed: Iterable[str]) -> Savings:
    """Walk the forward nodes in order: a needed value is recomputed where pointwise operations make it from streams,
    states, weights, constants and what is saved already; else it is saved. So are the states that saved values follow
    from: these can then be made again."""
    wanted = set(needed)
    within: dict[str, bool] = {}  # of a node's target: whether the backward step has or can recompute it
    saved: list[str] = []
    for node in segment.nodes:
        name = node.target
        if name in segment.states:
            within[name] = True
            continue
        match node:
            case Pointwise():
                within[name] = all(within.get(operand, True) for operand in operands(node))
            case Contraction() | RowOp() | Delay():
                within[name] = False
            case _:
                assert_never(node)
        if name in wanted and not within[name]:
            saved.append(name)
            within[name] = True
    recompute: list[Node] = []
    for node in reversed(segment.nodes):
        if node.target in wanted and node.target not in segment.states and node.target not in saved:
            recompute.append(node)
            wanted.update(operands(node))
    again = reads(alive(segment.nodes, saved))
    members = [member for stream in segment.streams for member in stream.members]
    return Savings(
        tuple(saved),
        tuple(state for state in segment.states if wanted & {state, f"{state}__1"} or f"{state}__1" in again),
        tuple(member for member in members if member in wanted),
        tuple(reversed(recompute)),
    )


def rounded(
    segment: Segment, savings: Savings, bounds: Bounds, elementwise: Container[str], compounding: Container[str]
) -> tuple[str, ...]:
    """`rounded` of an Adjoint; `elementwise` are the names that nodes other than products read, of the backward step
    and of what makes `saved` again, `compounding` those that must be exact. What is not bounded may overflow in
    float16, and stands in an exponent too often. A sum of products has operands in the streams' dtype already."""
    made = {node.target: node for node in segment.nodes}

    def fits(name: str) -> bool:
        match made[name]:
            case Contraction():
                return True
            case Pointwise(_, expr):
                return bounds.of(expr).both
            case _:
                return False

    values = [name for name in savings.saved if name not in compounding and fits(name)]
    only_products = [s for s in savings.saved_states if s not in elementwise and f"{s}__1" not in elementwise]
    return (*values, *only_products)


def compounding(
    nodes: Sequence[Node], state_cotangents: Iterable[tuple[str, str]], recompute: Sequence[Node]
) -> frozenset[str]:
    """What a cotangent meets at every step on its way back through a state, without a product between: an error there
    is raised to the power of the steps. A forget gate near 1 in bfloat16 would be 1 itself."""
    onward: dict[str, set[str]] = {}
    reads_of: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        if not isinstance(node, Contraction):
            reads_of[node.target] = operands(node)
            for name in operands(node):
                onward.setdefault(name, set()).add(node.target)
    for state, cotangent in state_cotangents:
        onward.setdefault(cotangent, set()).add(f"d_{state}__carry")

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for name in onward.get(waiting.pop(), set()) - found:
                found.add(name)
                waiting.append(name)
        return found

    exact = {name for target, names in reads_of.items() if target in reached(target) for name in names}
    for node in reversed(recompute):
        if node.target in exact:
            exact.update(operands(node))
    return frozenset(exact)


def alive(nodes: Iterable[Node], yields: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that some yield depends on, in order."""
    wanted = set(yields)
    kept: list[Node] = []
    for node in reversed(tuple(nodes)):
        if node.target in wanted:
            kept.append(node)
            wanted.update(operands(node))
    return tuple(reversed(kept))


def reads(nodes: Iterable[Node]) -> Mapping[str, None]:
    """Every name that the nodes read, in order, as the keys of a dict."""
    return dict.fromkeys(name for node in nodes for name in operands(node))
