"""Runs one loop: by its op, or in eager torch where no kernel runs. Second derivatives take the eager way, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..arguments.lengths import active_steps, cut_backwards
from ..arguments.tensors import in_dtype, is_symbol, under_trace
from ..kernels.kernels import Kernels
from ..spec import CellSpec, SegmentSpec, Sizes
from .autograd import gradients_again, regroup
from .call import LoopCall

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
    weights = [in_dtype(weight, compute) for weight in call.weights]
    states = tuple(in_dtype(state, compute) for state in call.states)
    steps, batch = call.streams[0].shape[:2]
    backwards, lengths, reset = bool(call.reverse[0]), call.lengths, call.reset
    if backwards and reset is not None:
        reset = cut_backwards(reset, lengths)
    # What a step reads, [T, B, ...]: its streams, where it starts anew, and where it is within the entry's length.
    read = [in_dtype(stream, compute) for stream in call.streams]
    first = read[0]
    if reset is not None:
        read.append(reset.unsqueeze(-1))
    if lengths is not None:
        read.append(active_steps(steps, lengths).unsqueeze(-1))
    if is_symbol(steps) and torch.onnx.is_in_onnx_export() and not under_trace():
        sequences, finals = _scan(partial(_advance, segment, sizes, call), weights, states, read, backwards)
    else:
        sequences, finals = _unroll(_advance(segment, sizes, call, weights), states, read, backwards)
    if not steps:
        # As kernels do, no steps give gradients of zero, not None: -0 is added, made from no elements of every tensor.
        # A trace of no steps takes no others: there `reshape(0)` is an error.
        empty = [tensor.reshape(0) for tensor in read[: len(call.streams)]]
        nothing = torch.cat([*empty, *(tensor.reshape(-1)[:0] for tensor in (*weights, *states))]).sum().neg()
        widths = [segment.sequences[i].width(sizes) for i in call.sequences]
        sequences = [first.new_empty((0, batch, width)) for width in widths]
        sequences = [sequence + nothing for sequence in sequences]
        finals = tuple(state + nothing for state in finals)
    return (
        [in_dtype(sequence, dtype) for sequence in sequences],
        [in_dtype(new, old.dtype) for new, old in zip(finals, call.states, strict=True)],
    )


def _advance(segment: SegmentSpec, sizes: Sizes, call: LoopCall, weights: Sequence[Tensor]) -> Advance:
    """One step: what it reads are its streams and, where the call has resets and lengths, a mark of either."""
    step = segment.make_step(weights, call.constants, sizes)
    widths = [segment.sequences[i].width(sizes) for i in call.sequences]

    def advance(current: States, read: Sequence[Tensor]) -> tuple[States, list[Tensor]]:
        streams, marks = read[: len(call.streams)], iter(read[len(call.streams) :])
        started = current
        if call.reset is not None:
            anew = next(marks)
            started = tuple(
                torch.where(anew, _initial(segment, i, weights, state, sizes), state) for i, state in enumerate(current)
            )
        new, values = step(streams, started)
        # A state may have become a number: `h[t] = 1`. In a trace, its batch is that of what the step reads.
        batch = streams[0].shape[0]
        new = tuple(value.expand(batch, old.shape[-1]) for value, old in zip(new, current, strict=True))
        if call.lengths is not None:
            # An inactive batch entry keeps its states, also where a reset stands past its length.
            active = next(marks)
            new = tuple(torch.where(active, state, old) for state, old in zip(new, current, strict=True))
        return new, [values[i].expand(batch, width) for i, width in zip(call.sequences, widths, strict=True)]

    return advance


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

    # What `scan` takes and what `combine` returns must not share memory with anything else. ONNX is for inference, and
    # the gradients of `scan` would fail for dynamic sizes.
    def apart(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]

    def combine(*given: Tensor) -> list[Tensor]:
        new, made = make(given[end:])(given[:count], given[count:end])
        return apart((*new, *made))

    if backwards:
        read = [tensor.flip(0) for tensor in read]
    results = scan_op(combine, apart(states), apart(read), apart(weights))
    sequences = results[count:]
    return [tensor.flip(0) for tensor in sequences] if backwards else sequences, tuple(results[:count])


def _initial(segment: SegmentSpec, index: int, weights: Sequence[Tensor], like: Tensor, sizes: Sizes) -> Tensor:
    initial = segment.initials[index]
    if segment.states[index].diagonal:
        return segment.states[index].start(like, 1, sizes)
    if segment.learned[index]:
        return weights[int(initial)].flatten().expand_as(like)
    return torch.full((), float(initial), dtype=like.dtype, device=like.device)
