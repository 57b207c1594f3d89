"""Runs a segment's loop forward, and its Adjoint backward, step by step in torch: what a kernel must compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rnncc.analysis.recurrent import CLIP, recurrent_reads, with_aliases
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Segment, value_table
from rnncc.ir.dim import HEADS, ONE
from rnncc.runtime.eager.elementwise import clip_gradient
from rnncc.verify.reference import Interpreter

Tensors = Mapping[str, Tensor]


def machine_of(cell: Cell, adjoint: Adjoint, sizes: Mapping[str, int], num_heads: int, like: Tensor) -> Interpreter:
    """An interpreter that knows the adjoint's values too."""
    values = value_table(cell) | {value.name: value for value in adjoint.values}
    values = with_aliases(values, recurrent_reads(adjoint.segment).aliases)
    return Interpreter(values, sizes, num_heads, like)


def forward(
    segment: Segment, machine: Interpreter, fixed: Tensors, streams: Tensors, initial: Tensors
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(every value of the loop and s__1, [T, B, width]; final states). `streams` by member, [T, B, width]. `fixed`
    holds the bound of the recurrent gradient."""
    products = recurrent_reads(segment)
    steps, batch = next(iter(streams.values())).shape[:2]
    states = {name: initial[name] for name in segment.states}
    found: dict[str, list[Tensor]] = {}
    for t in range(steps):
        known = {**fixed, **{name: value[t] for name, value in streams.items()}}
        known |= {f"{name}__1": value for name, value in states.items()}
        for node in products.nodes:
            if node.target in products.aliases:
                earlier = known[products.aliases[node.target]]
                known[node.target] = clip_gradient(earlier, float(fixed[CLIP.name]))
                continue
            value = machine.node(node, known)
            known[node.target] = value.expand(batch, machine.width(node.target))
        states = {name: known[name] for name in segment.states}
        for name in (*(f"{state}__1" for state in segment.states), *(node.target for node in segment.nodes)):
            found.setdefault(name, []).append(known[name])
    return {name: torch.stack(values) for name, values in found.items()}, states


@dataclass(frozen=True)
class Gradients:
    """By stream member, by weight's member, by state; zeros where the adjoint has no pair."""

    streams: dict[str, Tensor]
    weights: dict[str, Tensor]
    states: dict[str, Tensor]


def backward(
    adjoint: Adjoint,
    machine: Interpreter,
    fixed: Tensors,
    streams: Tensors,
    initial: Tensors,
    sequences: Tensors,
    d_sequences: Tensors,
    d_final: Tensors,
) -> Gradients:
    """The gradients. A step is given exactly what the Adjoint says it reads, so that a missing name is a KeyError.

    sequences   what `forward` returned; only `saved` and `saved_states` are taken from it
    """
    segment = adjoint.segment
    steps, batch = next(iter(streams.values())).shape[:2]
    members = [member for stream in segment.streams for member in stream.members]
    weights = [member for weight in segment.weights for member in weight.members]
    d_streams = {name: torch.zeros_like(streams[name]) for name in members}
    d_weights = {name: torch.zeros_like(fixed[name]) for name in weights}
    carry = {name: d_final[name] for name in segment.states}
    # Weights and constants that a loop may read; parameters of the batched parts are no business of it.
    own = {name: fixed[name] for name in (*weights, *segment.constants)}
    for t in reversed(range(steps)):
        known = {**own, **{name: streams[name][t] for name in adjoint.streams_read}}
        known |= {name: sequences[name][t] for name in (*adjoint.saved, *adjoint.saved_states)}
        known |= {f"{s}__1": sequences[s][t - 1] if t else initial[s] for s in adjoint.saved_states}
        known |= {f"d_{name}__carry": value for name, value in carry.items()}
        known |= {f"d_{name}__sequence": value[t] for name, value in d_sequences.items()}
        for node in (*adjoint.recompute, *adjoint.nodes):
            value = machine.node(node, known)
            assert node.target not in known, f"{node.target} is made twice"
            known[node.target] = value.expand(batch, machine.width(node.target))
        _check_widths(machine, known, adjoint)
        for name, cotangent in adjoint.stream_cotangents:
            d_streams[name][t] = known[cotangent]
        for name, cotangent in adjoint.vector_cotangents:
            d_weights[name] += _reduced(machine, name, cotangent, known)
        for product in adjoint.outer_products:
            d_weights[product.matrix] += _outer(
                machine, product.matrix, known[product.cotangent], known[product.operand]
            )
        pairs = dict(adjoint.state_cotangents)
        carry = {
            name: known[pairs[name]] if name in pairs else torch.zeros_like(carry[name]) for name in segment.states
        }
    return Gradients(d_streams, d_weights, carry)


def _check_widths(machine: Interpreter, known: Tensors, adjoint: Adjoint) -> None:
    def same(names: Iterable[tuple[str, str]]) -> None:
        for key, cotangent in names:
            assert machine.width(cotangent) == machine.width(key)

    same(adjoint.stream_cotangents)
    same(adjoint.state_cotangents)
    # One pair a key.
    for pairs in (adjoint.stream_cotangents, adjoint.state_cotangents, adjoint.vector_cotangents):
        assert len({key for key, _ in pairs}) == len(pairs)


def _reduced(machine: Interpreter, member: str, cotangent: str, known: Tensors) -> Tensor:
    value = known[cotangent]
    if machine.values[member].width == ONE:
        return value.sum()[None]
    if machine.values[member].width == HEADS:  # what reaches a head's number comes from all of its units
        return value.sum(0).reshape(machine.width(member), -1).sum(-1)
    assert machine.width(cotangent) == machine.width(member)
    return value.sum(0)


def _outer(machine: Interpreter, matrix: str, cotangent: Tensor, operand: Tensor) -> Tensor:
    value = machine.values[matrix]
    assert value.columns is not None
    blocks = machine.matrix_blocks(matrix)
    rows = machine.blocked(cotangent, value.width, blocks)
    columns = machine.blocked(operand, value.columns, blocks)
    return machine.from_blocks(matrix, torch.einsum("bno,bni->noi", rows, columns))
