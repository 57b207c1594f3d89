"""Runs one loop: by its op, or in eager torch where no kernel runs. Second derivatives take the eager way, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .autograd import gradients_again, regroup
from .call import LoopCall
from .kernels import Kernels
from .lengths import active_steps, cut_backwards
from .spec import CellSpec, SegmentSpec, Sizes

States = tuple[Tensor, ...]
# One step: its states [B, width] and what it reads, to the next states and what it gives.
Advance = Callable[[States, Sequence[Tensor]], tuple[States, list[Tensor]]]
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
    weights = [weight.to(compute) for weight in call.weights]
    states = tuple(state.to(compute) for state in call.states)
    steps, batch = call.streams[0].shape[:2]
    backwards, lengths, reset = bool(call.reverse[0]), call.lengths, call.reset
    if backwards and reset is not None:
        reset = cut_backwards(reset, lengths)
    # What a step reads, [T, B, ...]: its streams, where it starts anew, and where it counts.
    streams = [stream.to(compute) for stream in call.streams]
    restart = [] if reset is None else [reset.unsqueeze(-1)]
    active = [] if lengths is None else [active_steps(steps, lengths).unsqueeze(-1)]
    widths = [segment.sequences[index].width(sizes) for index in call.sequences]

    def make(weights: Sequence[Tensor]) -> Advance:
        step = segment.make_step(weights, call.constants, sizes)

        def advance(current: States, read: Sequence[Tensor]) -> tuple[States, list[Tensor]]:
            marks = iter(read[len(streams) :])
            started = current
            if restart:
                anew = next(marks)
                started = tuple(
                    torch.where(anew, _initial(segment, i, weights, state), state) for i, state in enumerate(current)
                )
            new, values = step(read[: len(streams)], started)
            # A state may have become a number: `h[t] = 1`. In a trace, its batch is that of what the step reads.
            batch = read[0].shape[0]
            new = tuple(value.expand(batch, old.shape[-1]) for value, old in zip(new, current, strict=True))
            if active:
                # An inactive batch entry keeps its states, also where a reset stands past its length.
                counts = next(marks)
                new = tuple(torch.where(counts, state, old) for state, old in zip(new, current, strict=True))
            return new, [values[i].expand(batch, width) for i, width in zip(call.sequences, widths, strict=True)]

        return advance

    read = [*streams, *restart, *active]
    if isinstance(steps, torch.SymInt) and torch.onnx.is_in_onnx_export():
        sequences, finals = _scan(make, weights, states, read, backwards)
    else:
        sequences, finals = _unroll(make(weights), states, read, backwards)
    if not steps:
        # A trace of no steps takes no others: there this `reshape` is an error.
        first = streams[0].reshape(0)
        sequences = [first.new_empty((0, batch, width)) for width in widths]
        # As kernels do, no steps give gradients of zero, not None: -0 is added, made from no elements of every tensor.
        others = [tensor.reshape(-1)[:0] for tensor in (*streams[1:], *weights, *states)]
        nothing = torch.cat([first, *others]).sum().neg()
        sequences = [sequence + nothing for sequence in sequences]
        finals = tuple(state + nothing for state in finals)
    finals = [new.to(old.dtype) for new, old in zip(finals, call.states, strict=True)]
    return [sequence.to(dtype) for sequence in sequences], finals


def _unroll(advance: Advance, states: States, read: Sequence[Tensor], backwards: bool) -> tuple[list[Tensor], States]:
    """One step after the other, of `read` [T, ...]: what they give, [T, ...], and the last states."""
    # `unbind`, not `read[t]`: whoever runs a trace with another number of steps gets an error, and never fewer of them.
    columns = list(zip(*(tensor.unbind() for tensor in read), strict=True))
    made = []
    for column in reversed(columns) if backwards else columns:
        states, values = advance(states, column)
        made.append(values)
    ordered = made[::-1] if backwards else made
    return [torch.stack(values) for values in zip(*ordered, strict=True)], states


def _scan(
    make: Callable[[Sequence[Tensor]], Advance],
    weights: Sequence[Tensor],
    states: States,
    read: Sequence[Tensor],
    backwards: bool,
) -> tuple[list[Tensor], States]:
    """The same by torch's operator `scan`, of which torch.onnx.export makes ONNX's. It takes any number of steps."""
    from torch._higher_order_ops.scan import scan_op

    count, end = len(states), len(states) + len(read)

    # What `scan` takes and what `combine` returns must not share memory with anything else.
    def apart(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]

    def combine(*given: Tensor) -> list[Tensor]:
        new, made = make(given[end:])(given[:count], given[count:end])
        return apart((*new, *made))

    if backwards:
        read = [tensor.flip(0) for tensor in read]
    results = scan_op(combine, apart(states), apart(read), apart(weights))
    sequences = results[count:]
    return [tensor.flip(0) for tensor in sequences] if backwards else sequences, tuple(results[:count])


def _initial(segment: SegmentSpec, index: int, weights: Sequence[Tensor], like: Tensor) -> Tensor:
    initial = segment.initials[index]
    if segment.learned[index]:
        return weights[int(initial)].expand_as(like)
    return torch.full((), float(initial), dtype=like.dtype, device=like.device)
