"""`differentiate`: the backward program of each segment's loop.

Input: a Cell (masked or not). Output: one Adjoint a segment: reverse equations, made equation by equation in reverse
order, and the split of the forward values they read into saved and recomputed ones.
Fails with: InternalError only.
"""

from __future__ import annotations

from dataclasses import replace

from rnncc.bounds import Bounds
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Contraction, Segment, value_table
from rnncc.stages.differentiate.normalise import Normaliser
from rnncc.stages.differentiate.savings import alive, choose, compounding, reads, rounded
from rnncc.stages.differentiate.sweep import Sweep

__all__ = ["differentiate"]


def differentiate(cell: Cell) -> tuple[Adjoint, ...]:
    """One Adjoint for each segment of the cell, in order."""
    return tuple(_adjoint(cell, segment) for segment in cell.segments)


def _adjoint(cell: Cell, segment: Segment) -> Adjoint:
    normaliser = Normaliser(value_table(cell))
    forward = replace(segment, nodes=tuple(new for node in segment.nodes for new in normaliser.nodes(node)))
    sweep = Sweep(forward, normaliser.values)
    sweep.run()
    yields = [
        name
        for pairs in (sweep.state_cotangents, sweep.stream_cotangents, sweep.vector_cotangents)
        for _, name in pairs
    ]
    products = {name for product in sweep.outer_products for name in (product.cotangent, product.operand)}
    nodes = alive(sweep.nodes, {*yields, *products})
    read = {**reads(nodes), **dict.fromkeys(sorted(products))}
    made = {value.name for value in sweep.new}
    savings = choose(forward, (name for name in read if name not in made))
    again = [node for node in alive(forward.nodes, savings.saved) if not isinstance(node, Contraction)]
    placement = {value.name: value.placement for value in cell.values}
    bounds = Bounds((forward,), placement, cell.prologue, frozenset())
    known = {*read, *yields, *(node.target for node in nodes)}
    return Adjoint(
        forward,
        savings.saved,
        savings.saved_states,
        rounded(
            forward,
            savings,
            bounds,
            reads((*savings.recompute, *again, *nodes)),
            compounding(nodes, sweep.state_cotangents, savings.recompute),
        ),
        savings.streams_read,
        savings.recompute,
        nodes,
        tuple(sweep.state_cotangents),
        tuple(sweep.stream_cotangents),
        tuple(sweep.outer_products),
        tuple(sweep.vector_cotangents),
        (*normaliser.new, *(value for value in sweep.new if value.name in known)),
    )
