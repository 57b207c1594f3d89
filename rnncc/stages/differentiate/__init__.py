"""`differentiate`: the backward program of each segment's loop.

Input: a Cell (masked or not). Output: one Adjoint a segment: reverse equations, made equation by equation in reverse
order, and the split of the forward values they read into saved and recomputed ones.
Fails with: InternalError only.
"""

from __future__ import annotations

from dataclasses import replace

from rnncc.analysis.bounds import Bounds
from rnncc.analysis.recurrent import CLIP, loop_constants, recurrent_reads, with_aliases, without_aliases
from rnncc.analysis.untrained import untrained
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Contraction, Segment, value_table
from rnncc.stages.differentiate.normalise import Normaliser, without_derivatives
from rnncc.stages.differentiate.savings import alive, choose, compounding, reads, rounded
from rnncc.stages.differentiate.sweep import Sweep

__all__ = ["differentiate", "forward_only"]


def differentiate(cell: Cell) -> tuple[Adjoint, ...]:
    """Return one Adjoint for each segment of the cell, in order."""
    return tuple(_adjoint(cell, segment) for segment in cell.segments)


def forward_only(cell: Cell) -> Adjoint:
    """The loop of a cell that has one, without a backward: nothing is saved."""
    (segment,) = cell.segments
    normaliser = Normaliser(value_table(cell))
    nodes = tuple(without_derivatives(new) for node in segment.nodes for new in normaliser.nodes(node))
    return Adjoint(replace(segment, nodes=nodes), (), (), (), (), (), (), (), (), (), (), tuple(normaliser.new))


def _adjoint(cell: Cell, segment: Segment) -> Adjoint:
    products = recurrent_reads(segment)
    aliases = products.aliases
    normaliser = Normaliser(with_aliases(value_table(cell), aliases))
    aliased = tuple(new for node in products.nodes for new in normaliser.nodes(node))
    sweep = Sweep(replace(segment, nodes=aliased), normaliser.values, aliases, untrained(cell))
    sweep.run()
    # Only the sweep tells the reads apart, and asks for derivatives that the text gives.
    plain, swept = (
        tuple(map(without_derivatives, without_aliases(tuple(made), aliases))) for made in (aliased, sweep.nodes)
    )
    forward = replace(segment, nodes=plain, constants=loop_constants(segment))
    outer_products = tuple(replace(p, operand=aliases.get(p.operand, p.operand)) for p in sweep.outer_products)
    yields = [
        name
        for pairs in (sweep.state_cotangents, sweep.stream_cotangents, sweep.vector_cotangents)
        for _, name in pairs
    ]
    factors = {name for product in outer_products for name in (product.cotangent, product.operand)}
    nodes = alive(swept, {*yields, *factors})
    read = {**reads(nodes), **dict.fromkeys(sorted(factors))}
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
            cell.output,
            savings,
            bounds,
            (*again, *savings.recompute, *nodes),
            (
                compounding(nodes, sweep.state_cotangents, savings.recompute),
                compounding(nodes, sweep.state_cotangents, (*again, *savings.recompute)),
            ),
        ),
        savings.streams_read,
        savings.recompute,
        nodes,
        tuple(sweep.state_cotangents),
        tuple(sweep.stream_cotangents),
        outer_products,
        tuple(sweep.vector_cotangents),
        (*normaliser.new, *(value for value in sweep.new if value.name in known), *((CLIP,) if aliases else ())),
    )
