"""The reverse of one segment's loop: what a backward step reads, computes and adds up.

The cotangent of value v is `d_v`. A backward step runs, for one t from the last to the first:

  reads      streams, s__1, new states and `saved` values of step t; `d_v__sequence` for every v of
             `Segment.sequences` (the gradient of the returned sequence at t; zero where none was given);
             `d_s__carry` for every state s (from step t+1, at the last step the gradient of the final state)
  recompute  forward nodes run again from what was read
  nodes      the reverse equations, the same kinds of node as forward
  yields     `state_cotangents` (the next `d_s__carry`), `stream_cotangents`, the operands of `outer_products`,
             and `vector_cotangents`

Two places in it are there to be changed:

  published  where the step makes a state known: forward the node `s`, which in a masked cell chooses between
             `s__stepped` and s__1 (lengths; a reset chooses at `s__restarted`, before the step), backward what
             becomes of `d_s__carry` and `d_s__sequence`. Whatever acts on a new state (zoneout too) is an equation
             there: a rewrite of the cell, like `mask`, which this stage differentiates.
  joined     where what matrix products hand back to an earlier value of a state joins its cotangent:
             `d_s__1__recurrent__clipped` (in a masked cell `d_s__restarted__…`), a clamp to the loop's last constant
             (`rnncc.analysis.recurrent`: which reads these are). Zero cuts the path, infinity leaves it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnncc.ir.cell import Node, Segment, Value


@dataclass(frozen=True, slots=True)
class OuterProduct:
    """`d_matrix += cotangent ⊗ operand`, over all steps and the batch (block by block where the matrix is blocked):
    one GEMM after the loop, or accumulated in it. One of the two is a forward value, the other a cotangent.
    Several with one matrix add up."""

    matrix: str
    cotangent: str
    operand: str


@dataclass(frozen=True, slots=True)
class Adjoint:
    """The backward program of a segment; see the module's docstring.

    segment           the cell's segment with nonlinear calls named (`i__sigmoid = sigmoid(i)`), so that their values
                      can be saved: the forward loop to compile, arithmetic unchanged
    saved             values the training forward stores at every step, in order. New states that the backward
                      reads (as s or as s__1), or that `saved` follows from, are in `saved_states` instead: their
                      sequences are stored, and with streams and weights they are enough to make `saved` again.
    rounded           those of both that lose little in the streams' dtype, where that has 16 bits: bounded values, sums
                      of products, states that only products read, and the output where only sums of its multiples
                      are made; not what a cotangent is multiplied by at every step on its way back through a state
    streams_read      members of streams that recompute, nodes or outer products read
    state_cotangents  (state, value): the gradient that flows into s__1, i.e. out of the step to t-1; without a pair: 0
    stream_cotangents (stream member, value); a member without a pair has gradient zero
    vector_cotangents (vector weight's member, value): summed over steps and the batch, and over units (of a head)
                      where the member is narrower than the value; at most one pair per member; without a pair: 0
    values            every value that the cell does not list: names given to forward subexpressions, all `d_…` and
                      their temporaries, `d_s__carry` and `d_v__sequence`

    A cotangent may share its value with another (`d_i__R` is `d_i`), so yields name any value: a `d_…` of `nodes`,
    or `d_s__carry` or `d_v__sequence` itself.
    """

    segment: Segment
    saved: tuple[str, ...]
    saved_states: tuple[str, ...]
    rounded: tuple[str, ...]
    streams_read: tuple[str, ...]
    recompute: tuple[Node, ...]
    nodes: tuple[Node, ...]
    state_cotangents: tuple[tuple[str, str], ...]
    stream_cotangents: tuple[tuple[str, str], ...]
    outer_products: tuple[OuterProduct, ...]
    vector_cotangents: tuple[tuple[str, str], ...]
    values: tuple[Value, ...]
