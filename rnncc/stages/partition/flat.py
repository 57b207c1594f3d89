"""A cell as nodes, and the names of values that the stage makes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from rnncc.analysis.widths import joint
from rnncc.ir.cell import Node, operands
from rnncc.ir.dim import ONE, Dim
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.ir.typed import Shape, Typed, delay_states


@dataclass(frozen=True, slots=True)
class FlatCell:
    """A cell as nodes, which are not yet divided into parts and segments.

    typed      the cell that the nodes were made from
    nodes      the definition of every value, by name; every name without one is an input, a parameter, a constant or a
               previous state
    shapes     of all values
    """

    typed: Typed
    nodes: Mapping[str, Node]
    shapes: Mapping[str, Shape]

    @property
    def states(self) -> tuple[str, ...]:
        """Visible and hidden states; a hidden state follows the state that it delays."""
        states = (state.name for state in self.typed.states)
        return tuple(name for state in states for name in (state, *delay_states(self.typed, state)))

    def width(self, name: str) -> Dim:
        """The width of a value."""
        return self.shapes[name].width


def live(flat: FlatCell) -> FlatCell:
    """The cell without nodes that neither a state nor the output needs."""
    nodes = flat.nodes
    seen: set[str] = set()
    # A previous state needs no further nodes, since all states are roots.
    waiting = [*flat.states, flat.typed.output]
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in seen:
            seen.add(name)
            waiting += operands(nodes[name])
    return replace(flat, nodes={name: node for name, node in nodes.items() if name in seen})


def width_of(expr: Expr, shapes: Mapping[str, Shape], input_dims: frozenset[str]) -> Dim:
    """The width of an elementwise expression."""
    match expr:
        case Const():
            return ONE
        case Ref(name):
            return shapes[name].width
        case Apply(_, arguments):
            return joint([width_of(argument, shapes, input_dims) for argument in arguments], input_dims)
        case _:
            assert_never(expr)


class Numbered:
    """Names that differ by a number."""

    def __init__(self) -> None:
        self.next: dict[str, int] = {}

    def name(self, stem: str, taken: Container[str], *, but_one: bool) -> str:
        """`i__0`, `i__1`, …: the first of these that is not taken. `but_one`: `h__1` is a previous state."""
        number = self.next.get(stem, 0)
        while f"{stem}{number}" in taken or (but_one and number == 1):
            number += 1
        self.next[stem] = number + 1
        return f"{stem}{number}"
