"""Runs one loop: by its op, or in eager torch where no kernel runs. Second derivatives take the eager way, too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .autograd import gradients_again, regroup
from .call import LoopCall
from .kernels import Kernels
from .lengths import cut_backwards
from .spec import CellSpec, SegmentSpec, Sizes

# The sequences that a call asks for, [T, B, width] (packed: [total, 1, width]), and the final states [B, width].
Results = tuple[Sequence[Tensor], Sequence[Tensor]]


def run_loop(cell: CellSpec, segment: SegmentSpec, kernels: Kernels | None, call: LoopCall) -> Results:
    """Run a loop, in eager torch where there are no kernels. Its final states have the dtypes of the call's states, all
    else has the streams'."""
    if kernels is None:
        return run_eagerly(cell, segment, call)
    asked = call
    if torch.compiler.is_compiling():
        # AOTInductor passes an empty list as None. So a weight without elements stands for no weights, and sequence 0
        # for none.
        nothing = [call.streams[0].new_empty(0) for _ in call.reverse]
        asked = call._replace(weights=call.weights or nothing, sequences=call.sequences or [0])
    sequences, finals, _ = kernels.run(segment.name, *asked)
    return sequences if call.sequences else [], finals


def run_eagerly(cell: CellSpec, segment: SegmentSpec, call: LoopCall) -> Results:
    """The same in torch's own operators, one direction after the other."""
    packing = call.packing()
    if packing is not None:
        call = call._replace(
            streams=[packing.pad(stream) for stream in call.streams],
            lengths=packing.lengths(),
            reset=packing.pad_reset(call.reset),
        )
    sizes = cell.sizes_by_name(call.sizes, call.num_heads)
    all_sequences: list[Tensor] = []
    all_finals: list[Tensor] = []
    for own in call.directions():
        sequences, finals = _run_direction(segment, sizes, own)
        all_sequences += sequences
        all_finals += finals
    if packing is not None:
        all_sequences = [packing.pack(sequence) for sequence in all_sequences]
    return all_sequences, all_finals


def differentiable_gradients(
    cell: CellSpec,
    segment: SegmentSpec,
    call: LoopCall,
    d_sequences: Sequence[Tensor | None],
    d_final: Sequence[Tensor | None],
    needs: Sequence[Sequence[bool]],
) -> tuple[list[Tensor | None], ...]:
    """The gradients of a call by those of its streams, weights and states that `needs` names, in a way that they can be
    differentiated again, or batched."""
    counts = (len(call.streams), len(call.weights), len(call.states))

    def run(tensors: list[Tensor]) -> list[Tensor]:
        streams, weights, states = regroup(tensors, counts)
        own = call._replace(streams=streams, weights=weights, states=states)
        sequences, finals = run_eagerly(cell, segment, own)
        return [*sequences, *finals]

    tensors, gradients = [*call.streams, *call.weights, *call.states], [*d_sequences, *d_final]
    return regroup(gradients_again(run, tensors, gradients, [need for group in needs for need in group]), counts)


def _run_direction(segment: SegmentSpec, sizes: Sizes, call: LoopCall) -> tuple[list[Tensor], list[Tensor]]:
    """One direction of tensors that are not packed. 16-bit tensors are computed in float32."""
    dtype = call.streams[0].dtype
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    streams = [stream.to(compute) for stream in call.streams]
    weights = [weight.to(compute) for weight in call.weights]
    current = tuple(state.to(compute) for state in call.states)
    steps, batch = streams[0].shape[:2]
    backwards, lengths, reset = bool(call.reverse[0]), call.lengths, call.reset
    if backwards and reset is not None:
        reset = cut_backwards(reset, lengths)
    step = segment.make_step(weights, call.constants, sizes)
    collected: list[list[Tensor]] = [[] for _ in call.sequences]
    for t in reversed(range(steps)) if backwards else range(steps):
        started = current
        if reset is not None:
            restart = reset[t].reshape(batch, 1)
            started = tuple(
                torch.where(restart, _initial(segment, i, weights, state), state) for i, state in enumerate(current)
            )
        new, values = step([stream[t] for stream in streams], started)
        # A state may have become a number: `h[t] = 1`.
        new = tuple(value.expand_as(old) for value, old in zip(new, current, strict=True))
        if lengths is not None:
            # An inactive batch entry keeps its states, also where a reset stands past its length.
            active = (lengths > t).reshape(batch, 1)
            new = tuple(torch.where(active, state, old) for state, old in zip(new, current, strict=True))
        current = new
        for values_so_far, index in zip(collected, call.sequences, strict=True):
            values_so_far.append(values[index])
    sequences = []
    for values_so_far, index in zip(collected, call.sequences, strict=True):
        width = segment.sequences[index].width(sizes)
        if not steps:
            sequences.append(streams[0].new_empty((0, batch, width), dtype=dtype))
            continue
        ordered = values_so_far[::-1] if backwards else values_so_far
        sequences.append(torch.stack([value.expand(batch, width) for value in ordered]).to(dtype))
    if not steps:
        # As kernels do, no steps give gradients of zero, not None: -0 is added, made from no elements of every tensor.
        nothing = torch.cat([tensor.reshape(-1)[:0] for tensor in (*streams, *weights, *current)]).sum().neg()
        sequences = [sequence + nothing.to(sequence) for sequence in sequences]
        current = tuple(state + nothing for state in current)
    return sequences, [new.to(old.dtype) for new, old in zip(current, call.states, strict=True)]


def _initial(segment: SegmentSpec, index: int, weights: Sequence[Tensor], like: Tensor) -> Tensor:
    initial = segment.initials[index]
    if segment.learned[index]:
        return weights[int(initial)].expand_as(like)
    return torch.full((), float(initial), dtype=like.dtype, device=like.device)
