"""Which reads of a state's earlier value serve matrix products: what `recurrent_gradient_clip` bounds.

h[t-1] serves a product where it is the operand (`R@h[t-1]`), or where the value of an equation goes into operands alone
(`R@(r*h[t-1])`). Such reads are renamed: `h__1__recurrent = h__1`, and products begin there. Forward the two are
one; backward, what comes back to `h__1__recurrent` is clipped before it joins the cotangent of `h__1`, where
elementwise reads (`z*h[t-1]`) have put theirs. A bound of zero is `.detach()` at these reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rnncc.ir.cell import (
    Contraction,
    Node,
    Placement,
    Pointwise,
    Role,
    Segment,
    Value,
    operands,
    rename,
    restarted,
)
from rnncc.ir.dim import ONE
from rnncc.ir.expr import Ref

# The bound, as a constant of the loop: the last one, infinity where a call gives none.
CLIP = Value("recurrent_clip__", Role.CONSTANT, Placement.P, ONE)


@dataclass(frozen=True, slots=True)
class RecurrentReads:
    """A loop's body whose products read aliases. `aliases`: the earlier value by its alias; a node `alias = earlier
    value` stands where that is known."""

    nodes: tuple[Node, ...]
    aliases: Mapping[str, str]


def recurrent_reads(segment: Segment) -> RecurrentReads:
    """The body of a segment, of a masked cell or not, with aliases for products."""
    made = {node.target for node in segment.nodes}
    earlier = [name if (name := restarted(state)) in made else f"{state}__1" for state in segment.states]
    serving = _serving(segment)
    wanted = {name for node in segment.nodes if node.target in serving for name in operands(node)}
    alias = {name: f"{name}__recurrent" for name in earlier if name in wanted}
    copies = {name: Pointwise(new, Ref(name)) for name, new in alias.items()}
    nodes: list[Node] = [copy for name, copy in copies.items() if name not in made]
    for node in segment.nodes:
        nodes.append(rename(node, alias) if node.target in serving else node)
        if node.target in copies:
            nodes.append(copies[node.target])
    return RecurrentReads(tuple(nodes), {new: name for name, new in alias.items()})


def loop_constants(segment: Segment) -> tuple[str, ...]:
    """The constants that the loops of a segment are given: its own, and the bound where a product reads a state."""
    return (*segment.constants, CLIP.name) if recurrent_reads(segment).aliases else segment.constants


def with_aliases(table: Mapping[str, Value], aliases: Mapping[str, str]) -> dict[str, Value]:
    """The values and those aliases."""
    return {**table, **{alias: replace(table[name], name=alias, role=Role.NODE) for alias, name in aliases.items()}}


def without_aliases(nodes: tuple[Node, ...], aliases: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes with the earlier values themselves."""
    return tuple(rename(node, aliases) for node in nodes if node.target not in aliases)


def _serving(segment: Segment) -> set[str]:
    """The targets of products and of what goes into their operands alone."""
    readers: dict[str, list[str]] = {}
    for node in segment.nodes:
        for name in operands(node):
            readers.setdefault(name, []).append(node.target)
    found: set[str] = set()
    for node in reversed(segment.nodes):
        name = node.target
        returned = name in segment.states or name in segment.sequences
        if isinstance(node, Contraction) or (not returned and found.issuperset(readers.get(name, [name]))):
            found.add(name)
    return found
