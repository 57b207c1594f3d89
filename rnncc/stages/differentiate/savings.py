"""Which forward values a backward step reads, and which of them are saved, recomputed or read as states."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rnncc.analysis.affine import Affine, form_of, in_names, own
from rnncc.analysis.bounds import Bounds
from rnncc.analysis.graph import components
from rnncc.ir.cell import Contraction, Delay, Node, Pointwise, RowOp, Segment, operands
from rnncc.ir.expr import Ref


@dataclass(frozen=True, slots=True)
class Savings:
    """`saved`, `saved_states`, `streams_read` and `recompute` of an Adjoint."""

    saved: tuple[str, ...]
    saved_states: tuple[str, ...]
    streams_read: tuple[str, ...]
    recompute: tuple[Node, ...]


def choose(segment: Segment, needed: Iterable[str]) -> Savings:
    """Walk the forward nodes in order: a needed value is recomputed where pointwise operations (and operators that make
    matrices) make it from streams, states, weights, constants and what is saved already; else it is saved. So are the
    states that saved values follow from: these can then be made again."""
    wanted = set(needed)
    for node in reversed(segment.nodes):
        # A matrix is made again of what it is made of, which is smaller, or a state.
        if isinstance(node, RowOp) and node.makes_matrix and node.target in wanted:
            wanted.update(node.operands)
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
            case RowOp() if node.makes_matrix:
                # For all steps they would take as much memory as all states.
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
    segment: Segment,
    output: str,
    savings: Savings,
    bounds: Bounds,
    elementwise: Sequence[Node],
    compounding: tuple[Container[str], Container[str]],
) -> tuple[str, ...]:
    """`rounded` of an Adjoint; `output` is what the layer returns, `elementwise` are the nodes of the backward step and
    of what makes `saved` again, in order. `compounding` are the names that must be exact, and those that must be where
    `saved` is made again from states. What is not bounded may overflow in float16, and stands in an exponent too often.
    A sum of products has operands in the streams' dtype already."""
    exact, exact_again = compounding
    made = {node.target: node for node in segment.nodes}

    def fits(name: str) -> bool:
        match made[name]:
            case Contraction():
                return True
            case Pointwise(_, expr):
                return bounds.of(expr).both
            case _:
                return False

    def is_kept_as_returned(state: str) -> bool:
        """The output is rounded, and overflows in float16, as it is: where the backward step makes only sums of its
        multiples, none of which compounds, that is as good as any other rounding of a cotangent."""
        names = (state, f"{state}__1")
        is_exact = any(name in exact_again for name in names)
        return state == output and not is_exact and _is_affine(elementwise, names)

    read = reads(node for node in elementwise if not isinstance(node, Contraction))
    values = [name for name in savings.saved if name not in exact and fits(name)]
    states = [s for s in savings.saved_states if not {s, f"{s}__1"} & read.keys() or is_kept_as_returned(s)]
    return (*values, *states)


def _is_affine(nodes: Iterable[Node], names: Iterable[str]) -> bool:
    """Whether all that the nodes make is an affine map of the named values; products take them as they are."""
    forms: dict[str, Affine | None] = {name: own(name) for name in names}
    for node in nodes:
        match node:
            case Pointwise(target, expr):
                form = form_of(expr, forms)
                if form is None:
                    return False
                if form.slopes:
                    forms[target] = in_names(form, target, lambda name, _: Ref(name))
            case RowOp():
                if any(name in forms for name in operands(node)):
                    return False
            case Contraction() | Delay():
                pass
            case _:
                assert_never(node)
    return True


def compounding(
    nodes: Sequence[Node], state_cotangents: Iterable[tuple[str, str]], recompute: Sequence[Node]
) -> frozenset[str]:
    """What a cotangent meets at every step on its way back through a state, without a product between; `recompute` are
    the forward nodes that are run again, in order. An error there
    is raised to the power of the steps. A forget gate near 1 in bfloat16 would be 1 itself."""
    onward: dict[str, list[str]] = {}
    reads_of: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        if not isinstance(node, Contraction):
            reads_of[node.target] = operands(node)
            for name in operands(node):
                onward.setdefault(name, []).append(node.target)
    for state, cotangent in state_cotangents:
        onward.setdefault(cotangent, []).append(f"d_{state}__carry")
    returning = {
        name for circle in components(onward) for name in circle if len(circle) > 1 or name in onward.get(name, ())
    }
    exact = {name for target, names in reads_of.items() if target in returning for name in names}
    # What a factor is made of counts as well; what a cotangent is made of does not.
    products = {node.target for node in nodes if isinstance(node, Contraction)}
    driven = _reached(onward, [name for name in onward if name in products or name.endswith(("__carry", "__sequence"))])
    for node in reversed((*recompute, *nodes)):
        if node.target in exact and node.target not in driven:
            exact.update(operands(node))
    return frozenset(exact)


def _reached(onward: Mapping[str, Sequence[str]], starts: Iterable[str]) -> set[str]:
    """The names to which a way leads from one of `starts`, and these themselves."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        for name in onward.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


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
