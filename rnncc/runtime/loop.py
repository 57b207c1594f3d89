"""One segment's loop in plain eager torch: the fallback where no kernel runs, and the way of second derivatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .inputs import cut_backwards
from .packing import Packing
from .spec import SegmentSpec, Sizes


def shares(tensors: Sequence[Tensor], directions: int) -> list[Sequence[Tensor]]:
    """The tensors of each direction."""
    each = len(tensors) // directions
    return [tensors[k * each : (k + 1) * each] for k in range(directions)]


def run_loops(
    segment: SegmentSpec,
    streams: Sequence[Tensor],
    weights: Sequence[Tensor],
    states: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    constants: Sequence[float],
    sizes: Sizes,
    reverse: Sequence[int],
    wanted: Sequence[int],
    packing: Packing | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Arguments and results as the op's: those of `run_loop`, one direction after the other. With a `packing`, streams
    and sequences are [total, 1, width]."""
    if packing is not None:
        streams, lengths, reset = [packing.pad(s) for s in streams], packing.lengths(), packing.pad_reset(reset)
    all_sequences: list[Tensor] = []
    all_finals: list[Tensor] = []
    groups = [shares(group, len(reverse)) for group in (streams, weights, states)]
    for s, w, h, backwards in zip(*groups, reverse, strict=True):
        cut = cut_backwards(reset, lengths) if backwards and reset is not None else reset
        sequences, finals = run_loop(segment, s, w, h, lengths, cut, constants, sizes, bool(backwards), wanted)
        all_sequences += sequences
        all_finals += finals
    if packing is not None:
        all_sequences = [packing.pack(sequence) for sequence in all_sequences]
    return all_sequences, all_finals


def run_call(
    segment: SegmentSpec,
    sizes: Sizes,
    streams: Sequence[Tensor],
    weights: Sequence[Tensor],
    states: Sequence[Tensor],
    offsets: Tensor | None,
    steps: int,
    lengths: Tensor | None,
    reset: Tensor | None,
    constants: Sequence[float],
    reverse: Sequence[int],
    wanted: Sequence[int],
) -> tuple[list[Tensor], list[Tensor]]:
    """`run_loops` of a call of the op, whose arguments these are."""
    packing = None
    if offsets is not None:
        by_step = offsets.device.type == "cpu"
        packing = Packing(offsets, steps, states[0].shape[0], streams[0].shape[0], by_step)
    return run_loops(segment, streams, weights, states, lengths, reset, constants, sizes, reverse, wanted, packing)


def differentiable_gradients(
    segment: SegmentSpec,
    sizes: Sizes,
    streams: list[Tensor],
    weights: list[Tensor],
    states: list[Tensor],
    offsets: Tensor | None,
    steps: int,
    lengths: Tensor | None,
    reset: Tensor | None,
    constants: list[float],
    reverse: list[int],
    wanted: list[int],
    d_sequences: Sequence[Tensor | None],
    d_final: Sequence[Tensor | None],
    needs: list[list[bool]],
) -> tuple[list[Tensor | None], ...]:
    """The gradients of such a call by its streams, weights and states, so that they can be differentiated again, or
    batched."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: autograd.grad must see each argument as independent of the others.
        groups = [[tensor.view_as(tensor) for tensor in group] for group in (streams, weights, states)]
        sequences, finals = run_call(
            segment, sizes, groups[0], groups[1], groups[2], offsets, steps, lengths, reset, constants, reverse, wanted
        )
    outputs, d_outputs = [], []
    for value, d_value in zip((*sequences, *finals), (*d_sequences, *d_final), strict=True):
        if d_value is not None and value.requires_grad:
            outputs.append(value)
            d_outputs.append(d_value)
    inputs = [
        t for group, need in zip(groups, needs, strict=True) for t, wants in zip(group, need, strict=True) if wants
    ]
    if outputs and inputs:
        made = torch.autograd.grad(outputs, inputs, d_outputs, create_graph=again, allow_unused=True)
    else:
        made = (None,) * len(inputs)  # type: ignore[assignment]
    fresh = iter(made)
    return tuple([next(fresh) if wants else None for wants in need] for need in needs)


def run_loop(
    segment: SegmentSpec,
    streams: Sequence[Tensor],
    weights: Sequence[Tensor],
    states: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    constants: Sequence[float],
    sizes: Sizes,
    reverse: bool,
    wanted: Sequence[int],
) -> tuple[list[Tensor], list[Tensor]]:
    """One direction: the wanted sequences [T, B, width] and the final states [B, width]. `reset` is as the loop has it:
    before which steps, in its order, a column starts anew.

    Sequences have the streams' dtype, final states that of the states given. 16-bit tensors are computed in float32.
    """
    dtype = streams[0].dtype
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    streams = [stream.to(compute) for stream in streams]
    weights = [weight.to(compute) for weight in weights]
    current = tuple(state.to(compute) for state in states)
    steps, columns = streams[0].shape[:2]
    step = segment.make_step(weights, constants, sizes)
    collected: list[list[Tensor]] = [[] for _ in wanted]
    for t in reversed(range(steps)) if reverse else range(steps):
        started = current
        if reset is not None:
            restart = reset[t].reshape(columns, 1)
            started = tuple(
                torch.where(restart, _initial(segment, i, weights, state), state) for i, state in enumerate(current)
            )
        new, values = step([stream[t] for stream in streams], started)
        # A state may have become a number: `h[t] = 1`.
        new = tuple(value.expand_as(old) for value, old in zip(new, current, strict=True))
        if lengths is not None:
            # An inactive column keeps its states, also where a reset stands past its length.
            active = (lengths > t).reshape(columns, 1)
            new = tuple(torch.where(active, state, old) for state, old in zip(new, current, strict=True))
        current = new
        for values_so_far, index in zip(collected, wanted, strict=True):
            values_so_far.append(values[index])
    sequences = []
    for values_so_far, index in zip(collected, wanted, strict=True):
        if not steps:
            sequences.append(streams[0].new_empty((0, columns, segment.sequences[index].width(sizes)), dtype=dtype))
            continue
        width = segment.sequences[index].width(sizes)
        ordered = values_so_far[::-1] if reverse else values_so_far
        sequences.append(torch.stack([value.expand(columns, width) for value in ordered]).to(dtype))
    if not steps:
        # As kernels do, no steps give gradients of zero, not None: -0 is added, made from no elements of every tensor.
        nothing = torch.cat([tensor.reshape(-1)[:0] for tensor in (*streams, *weights, *current)]).sum().neg()
        sequences = [sequence + nothing.to(sequence) for sequence in sequences]
        current = tuple(state + nothing for state in current)
    return sequences, [new.to(old.dtype) for new, old in zip(current, states, strict=True)]


def _initial(segment: SegmentSpec, index: int, weights: Sequence[Tensor], like: Tensor) -> Tensor:
    initial = segment.initials[index]
    if segment.learned[index]:
        return weights[int(initial)].expand_as(like)
    return torch.full((), float(initial), dtype=like.dtype, device=like.device)
