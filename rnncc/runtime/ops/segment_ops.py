"""The ops of a segment: its loop's forward and backward, with a fake kernel, autograd and autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments.tensors import autocast_dtype, is_batched
from ..spec import BORDER_STEPS, CellSpec, LoopSpec, SegmentSpec, Sizes, TensorSpec
from .autograd import autograd_of_loop, unrecorded
from .call import BackwardCall, LoopCall, shares
from .loop import differentiable_gradients, run_eagerly
from .registration import check_fake_call, implement, mark_compliant, spread


def make_segment(
    library: torch.library.Library | None, namespace: str, cell: CellSpec, segment: SegmentSpec
) -> Callable[..., Any]:
    """The forward of a segment, as eager code calls it. With a `library`, its fake kernels, autograd and autocast are
    registered there."""
    ops = SegmentOps(namespace, cell, segment)
    recorded = autograd_of_loop(ops.forward_op, ops.save, ops.backward, ops.run_eagerly)
    if library is not None:
        name = f"{segment.name}_forward"
        torch.library.register_fake(f"{namespace}::{name}", ops.fake_forward, lib=library)
        implement(library, name, recorded.kernel, "Autograd")
        implement(library, name, ops.forward_under_autocast, "AutocastCPU", "AutocastCUDA")
        backward_name = f"{namespace}::{segment.name}_backward"
        torch.library.register_fake(backward_name, ops.fake_backward, lib=library)
        torch.library.register_autograd(backward_name, ops.refuse_second_derivative, lib=library)
        mark_compliant(ops.forward_op, ops.backward_op)
    return recorded.call


class SegmentOps:
    """The two ops of a segment, and what torch asks for beside them. Arguments stand in the order of `LoopCall` and
    `BackwardCall`."""

    def __init__(self, namespace: str, cell: CellSpec, segment: SegmentSpec) -> None:
        self.cell, self.segment = cell, segment
        ops = getattr(torch.ops, namespace)
        self.forward_op = getattr(ops, f"{segment.name}_forward").default
        self.backward_op = getattr(ops, f"{segment.name}_backward").default

    def fake_forward(self, *arguments: Any) -> Any:
        """Empty results of the forward, of the right shapes and dtypes."""
        call, segment = LoopCall(*arguments), self.segment
        first = call.streams[0]
        check_fake_call(first, (*call.streams, *call.weights, *call.states, call.offsets, call.lengths, call.reset))
        sizes = self.cell.sizes_by_name(call.sizes, call.num_heads)

        def make(what: TensorSpec, dtype: torch.dtype) -> Tensor:
            return first.new_empty((*first.shape[:2], what.width(sizes)), dtype=dtype)

        saved = []
        if call.training:
            loop = self._loop(call)
            dtypes, places = _saved_dtypes(loop, first), _places_in_returned(loop, first, call.sequences)
            saved = [(loop.saved[i], dtypes[i]) for i in loop.read_by_backward(call.recompute) if places[i] < 0]
        kept = [make(*what) for _ in call.reverse for what in saved]
        if call.training and segment.keeps_borders(first):
            steps = first.shape[0] if call.offsets is None else call.offsets.shape[0] - 1
            borders = torch.sym_max(0, (steps - 1) // BORDER_STEPS)  # type: ignore[no-untyped-call]
            rows = (borders, first.shape[1])
            if call.offsets is not None:
                batch = call.states[0].shape[0]
                rows = (torch.sym_min(borders * batch, first.shape[0] // BORDER_STEPS + batch), 1)  # type: ignore[no-untyped-call]
            shapes = [(*rows, state.width(sizes)) for state in segment.states]
            kept = [first.new_empty(shape, dtype=_compute(first)) for _ in call.reverse for shape in shapes]
        finals = [
            state.new_empty((state.shape[0], spec.width(sizes)))
            for state, spec in zip(call.states, segment.states * len(call.reverse), strict=True)
        ]
        returned = [make(segment.sequences[i], first.dtype) for _ in call.reverse for i in call.sequences]
        return returned, finals, kept

    def fake_backward(self, *arguments: Any) -> Any:
        """Empty gradients of those streams, weights and states that need one."""
        call = BackwardCall(*arguments)
        needs = iter(call.needs)
        return tuple(
            [tensor.new_empty(tensor.shape) for tensor in group if next(needs)]
            for group in (call.streams, call.weights, call.states)
        )

    def save(self, ctx: Any, call: LoopCall, results: Any) -> None:
        """Save for `backward` what it reads. A value that the call returns is saved as the returned tensor."""
        sequences, _, extra = results
        loop = self._loop(call)
        if self.segment.keeps_borders(call.streams[0]):
            saved = list(extra)
        else:
            unused, places = iter(extra), _places_in_returned(loop, call.streams[0], call.sequences)
            saved = [
                next(unused) if places[i] < 0 else returned[places[i]]
                for returned in shares(sequences, len(call.reverse))
                for i in loop.read_by_backward(call.recompute)
            ]
        ctx.save_for_backward(
            *call.streams, *call.weights, *call.states, *saved, call.offsets, call.lengths, call.reset
        )
        ctx.counts = (len(call.streams), len(call.weights), len(call.states), len(saved))
        # Without its tensors, which autograd must own.
        ctx.call = call._replace(streams=(), weights=(), states=(), offsets=None, lengths=None, reset=None)

    def backward(self, ctx: Any, gradients: Any, needs: Any) -> Any:
        """The gradients of streams, weights and states; None for those that need none."""
        d_sequences, d_final, _ = gradients
        tensors = iter(ctx.saved_tensors)
        streams, weights, states, saved = ([next(tensors) for _ in range(count)] for count in ctx.counts)
        offsets, lengths, reset = tensors
        call: LoopCall = ctx.call._replace(
            streams=streams, weights=weights, states=states, offsets=offsets, lengths=lengths, reset=reset
        )
        if torch.is_grad_enabled() or any(map(is_batched, (*d_sequences, *d_final))):
            return differentiable_gradients(self.cell, self.segment, call, d_sequences, d_final, needs)
        count = len(self.segment.sequences)
        places = [direction * count + i for direction in range(len(call.reverse)) for i in call.sequences]
        given = [(i, d) for i, d in zip(places, d_sequences, strict=True) if d is not None]
        given_final = [(i, d) for i, d in enumerate(d_final) if d is not None]
        arguments = BackwardCall(
            d_sequences=[d for _, d in given], d_sequence_index=[i for i, _ in given],
            d_final=[d for _, d in given_final], d_final_index=[i for i, _ in given_final],
            streams=streams, weights=weights, states=states, saved=saved, offsets=offsets, steps=call.steps,
            lengths=lengths, reset=reset, constants=call.constants, sizes=call.sizes,
            num_heads=call.num_heads, reverse=call.reverse, needs=[need for group in needs for need in group],
        )  # fmt: skip
        made = unrecorded(self.backward_op, *arguments)
        return tuple(spread(group, need) for group, need in zip(made, needs, strict=True))

    def run_eagerly(self, call: LoopCall) -> Any:
        """The forward in torch's own operators, for tensors that carry tangents. It saves nothing."""
        return *run_eagerly(self.cell, self.segment, call), []

    def refuse_second_derivative(self, ctx: Any, *gradients: Any) -> Any:
        """The autograd of the backward op: a call of it by name has none."""
        name = self.backward_op._schema.name
        forward = self.forward_op._schema.name
        raise RuntimeError(f"{name} has no derivative of its own; differentiate {forward} twice instead")

    def forward_under_autocast(self, keyset: Any, streams: Any, weights: Any, *rest: Any) -> Any:
        """The forward with its streams in autocast's dtype. Weights are cast too where one of them is a matrix."""
        device = streams[0].device.type
        streams = [_cast(stream, autocast_dtype(stream, device)) for stream in streams]
        # A loop without products gains nothing by vectors in 16 bits, and what it makes of them grows with the steps: a
        # decay rounded to 1, a rotation that is none.
        if any(weight.dim() > 1 for weight in weights):
            weights = [weight.to(autocast_dtype(weight, device)) for weight in weights]
        with torch.autocast(device, enabled=False):
            return self.forward_op(streams, weights, *rest)

    def _loop(self, call: LoopCall) -> LoopSpec:
        return self.segment.loop_of(call.offsets, call.lengths, call.reset)


def _cast(stream: Tensor, dtype: torch.dtype) -> Tensor:
    """A stream [T, B, width] in a dtype. One that is the same at all steps still lies in memory once."""
    if stream.dim() == 3 and stream.dtype != dtype and stream.shape[0] > 1 and stream.stride(0) == 0:
        return stream[:1].to(dtype).expand(stream.shape)
    return stream.to(dtype)


def _compute(first: Tensor) -> torch.dtype:
    """The dtype in which steps are computed; `first` is the call's first stream."""
    return torch.float64 if first.dtype == torch.float64 else torch.float32


def _saved_dtypes(loop: LoopSpec, first: Tensor) -> list[torch.dtype]:
    """The dtypes of the tensors that a training forward saves; `first` is the call's first stream."""
    compute = _compute(first)
    return [first.dtype if rounded and first.is_cuda else compute for rounded in loop.saved_rounded]


def _places_in_returned(loop: LoopSpec, first: Tensor, sequences: Sequence[int]) -> list[int]:
    """For each saved tensor: its place among the sequences that a call returns, or -1 where none of them holds the same
    values."""
    return [
        list(sequences).index(same) if same in sequences and dtype == first.dtype else -1
        for same, dtype in zip(loop.saved_sequence, _saved_dtypes(loop, first), strict=True)
    ]


def saved_bytes(segment: SegmentSpec, sizes: Sizes, like: Tensor, *, recompute: bool) -> int:
    """Bytes that one step of one batch entry saves for the backward, beside the loop's streams and what it returns;
    `like` has the streams' dtype and device."""
    if segment.keeps_borders(like):
        return sum(_compute(like).itemsize * state.width(sizes) for state in segment.states) // BORDER_STEPS
    loop = segment.plain
    dtypes, places = _saved_dtypes(loop, like), _places_in_returned(loop, like, segment.needed)
    read = loop.read_by_backward(recompute)
    return sum(dtypes[i].itemsize * loop.saved[i].width(sizes) for i in read if places[i] < 0)
