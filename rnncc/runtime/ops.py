"""Makes the functions of a package's library into torch ops: schema, kernels, fake kernel, autograd, autocast."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .autograd import autograd_of_loop, autograd_of_tensors, unrecorded
from .call import BackwardCall, LoopCall, shares
from .flops import register_formulas
from .fork import release_threads
from .kernels import Kernels
from .loop import differentiable_gradients, run_eagerly
from .spec import CellSpec, LoopSpec, SegmentSpec, Sizes, TensorSpec
from .tensors import autocast_dtype, is_batched

# torch forgets a registration when its Library object dies.
_LIBRARIES: list[torch.library.Library] = []


def open_library(path: Path, namespace: str, cells: Sequence[CellSpec], architectures: tuple[str, ...] = ()) -> Kernels:
    """Open the library, which makes its ops known as `namespace`, and give them what Python adds, once a process.
    Raises RuntimeError, OSError."""
    segments = [(cell, segment) for cell in cells for segment in cell.segments]
    # The schemas stand in templates/include/rnncc/torch/schema.h.
    opened = ctypes.CDLL(str(path)).rnncc_register
    opened.restype = ctypes.c_char_p
    if (problem := opened()) is not None:
        raise RuntimeError(f"torch refused an op: {problem.decode()}")
    space = getattr(torch.ops, namespace)
    library = None
    # Another copy of the package may have been imported before, and the library opened without one.
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{namespace}::linear", "AutocastCPU"):
        library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        _LIBRARIES.append(library)
        os.register_at_fork(before=release_threads)
        register_formulas(namespace, segments)
    calls = {segment.name: _make_segment(library, namespace, cell, segment) for cell, segment in segments}
    calls["linear"] = _make_linear(library, namespace)
    ops = {segment.name: getattr(space, f"{segment.name}_forward") for _, segment in segments}
    ops["linear"] = space.linear
    if hasattr(space, "permute_rows"):
        calls["permute_rows"] = make_permute_rows(library, namespace)
        ops["permute_rows"] = space.permute_rows
    return Kernels(namespace, ops, architectures, calls)


def _make_segment(
    library: torch.library.Library | None, namespace: str, cell: CellSpec, segment: SegmentSpec
) -> Callable[..., Any]:
    """The forward of a segment, as eager code calls it; registered with a library that is new."""
    forward_name = f"{namespace}::{segment.name}_forward"
    backward_name = f"{namespace}::{segment.name}_backward"
    forward_op = getattr(getattr(torch.ops, namespace), f"{segment.name}_forward").default
    backward_op = getattr(getattr(torch.ops, namespace), f"{segment.name}_backward").default

    def fake_forward(*arguments: Any) -> Any:
        call = LoopCall(*arguments)
        first = call.streams[0]
        _check_devices(first, (*call.streams, *call.weights, *call.states, call.offsets, call.lengths, call.reset))
        sizes = cell.sizes_by_name(call.sizes, call.num_heads)

        def make(what: TensorSpec, dtype: torch.dtype) -> Tensor:
            return first.new_empty((*first.shape[:2], what.width(sizes)), dtype=dtype)

        loop = segment.loop_of(call.offsets, call.lengths, call.reset)
        kept = []
        if call.training:
            dtypes, where = _saved_dtypes(loop, first), _shared(loop, first, call.sequences)
            kept = [(loop.saved[i], dtypes[i]) for i in loop.kept(call.recompute) if where[i] < 0]
        finals = [
            state.new_empty((state.shape[0], spec.width(sizes)))
            for state, spec in zip(call.states, segment.states * len(call.reverse), strict=True)
        ]
        returned = [make(segment.sequences[i], first.dtype) for _ in call.reverse for i in call.sequences]
        return returned, finals, [make(*what) for _ in call.reverse for what in kept]

    def fake_backward(*arguments: Any) -> Any:
        call = BackwardCall(*arguments)
        needs = iter(call.needs)
        return tuple(
            [tensor.new_empty(tensor.shape) for tensor in group if next(needs)]
            for group in (call.streams, call.weights, call.states)
        )

    def setup(ctx: Any, call: LoopCall, results: Any) -> None:
        sequences, _, extra = results
        fresh = iter(extra)
        loop = segment.loop_of(call.offsets, call.lengths, call.reset)
        where = _shared(loop, call.streams[0], call.sequences)
        saved = [
            next(fresh) if where[i] < 0 else returned[where[i]]
            for returned in shares(sequences, len(call.reverse))
            for i in loop.kept(call.recompute)
        ]
        ctx.save_for_backward(
            *call.streams, *call.weights, *call.states, *saved, call.offsets, call.lengths, call.reset
        )
        ctx.counts = (len(call.streams), len(call.weights), len(call.states), len(saved))
        ctx.steps, ctx.options = call.steps, call.options()

    def backward(ctx: Any, gradients: Any, needs: Any) -> Any:
        d_sequences, d_final, _ = gradients
        tensors = iter(ctx.saved_tensors)
        streams, weights, states, saved = ([next(tensors) for _ in range(count)] for count in ctx.counts)
        offsets, lengths, reset = tensors
        if torch.is_grad_enabled() or any(map(is_batched, (*d_sequences, *d_final))):
            call = LoopCall(streams, weights, states, offsets, ctx.steps, lengths, reset, None, *ctx.options)
            return differentiable_gradients(cell, segment, call, d_sequences, d_final, needs)
        constants, sizes, num_heads, reverse, wanted, *_ = ctx.options
        places = [k * len(segment.sequences) + i for k in range(len(reverse)) for i in wanted]
        given = [(i, d) for i, d in zip(places, d_sequences, strict=True) if d is not None]
        given_final = [(i, d) for i, d in enumerate(d_final) if d is not None]
        made = unrecorded(
            backward_op,
            [d for _, d in given], [i for i, _ in given],
            [d for _, d in given_final], [i for i, _ in given_final],
            streams, weights, states, saved, offsets, ctx.steps, lengths, reset, None,
            constants, sizes, num_heads, reverse, [need for group in needs for need in group],
        )  # fmt: skip
        return tuple(_spread(group, need) for group, need in zip(made, needs, strict=True))

    def written_out(call: LoopCall) -> Any:
        return *run_eagerly(cell, segment, call), []

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"{backward_name} has no derivative of its own; differentiate {forward_name} twice instead")

    def autocast(keyset: Any, streams: Any, weights: Any, *rest: Any) -> Any:
        device = streams[0].device.type
        streams = [stream.to(autocast_dtype(stream, device)) for stream in streams]
        # A loop without products gains nothing by vectors in 16 bits, and what it makes of them grows with the steps: a
        # decay rounded to 1, a rotation that is none.
        if any(weight.dim() > 1 for weight in weights):
            weights = [weight.to(autocast_dtype(weight, device)) for weight in weights]
        with torch.autocast(device, enabled=False):
            return forward_op(streams, weights, *rest)

    recorded = autograd_of_loop(forward_op, setup, backward, written_out)
    if library is not None:
        torch.library.register_fake(forward_name, fake_forward, lib=library)
        torch.library.register_fake(backward_name, fake_backward, lib=library)
        _implement(library, f"{segment.name}_forward", recorded.kernel, "Autograd")
        torch.library.register_autograd(backward_name, refuse, lib=library)
        _implement(library, f"{segment.name}_forward", autocast, "AutocastCPU", "AutocastCUDA")
    return recorded.call


def _saved_dtypes(loop: LoopSpec, first: Tensor) -> list[torch.dtype]:
    """The dtypes of the tensors that a training forward saves; `first` is the call's first stream."""
    compute = torch.float64 if first.dtype == torch.float64 else torch.float32
    return [first.dtype if rounded and first.is_cuda else compute for rounded in loop.saved_rounded]


def _shared(loop: LoopSpec, first: Tensor, wanted: Sequence[int]) -> list[int]:
    """For each saved tensor the place in `sequences` of the returned one that holds the same, or -1."""
    return [
        list(wanted).index(same) if same in wanted and dtype == first.dtype else -1
        for same, dtype in zip(loop.saved_sequence, _saved_dtypes(loop, first), strict=True)
    ]


def kept_bytes(segment: SegmentSpec, sizes: Sizes, like: Tensor, *, recompute: bool) -> int:
    """Bytes that one step of one batch entry keeps for the backward, beside the loop's streams and what it returns;
    `like` has the streams' dtype and device."""
    loop = segment.plain
    dtypes, where = _saved_dtypes(loop, like), _shared(loop, like, segment.needed)
    return sum(dtypes[i].itemsize * loop.saved[i].width(sizes) for i in loop.kept(recompute) if where[i] < 0)


def _check_devices(first: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """One tensor on the meta device sends a call to the fake kernel, whose result on the CPU would hold anything.
    Raises RuntimeError as torch.nn.LSTM does."""
    for tensor in tensors:
        if tensor is not None and tensor.device != first.device:
            raise RuntimeError(
                "Input, hidden and parameter tensors are not at the same device, found tensors at "
                f"{first.device} and {tensor.device}"
            )


def _implement(library: torch.library.Library, name: str, kernel: Any, *keys: str) -> None:
    for key in keys:
        library.impl(name, kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]


def _spread(made: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    fresh = iter(made)
    return [next(fresh) if need else None for need in needs]


def _make_linear(library: torch.library.Library | None, namespace: str) -> Callable[..., Any]:
    """As `_make_segment`."""
    forward_op = getattr(torch.ops, namespace).linear.default
    backward_op = getattr(torch.ops, namespace).linear_backward.default

    def fake_linear(x: Any, weight: Any, bias: Any) -> Any:
        _check_devices(x, (weight, bias))
        fits = x.shape[-1] == weight.shape[1]
        torch._check(fits, lambda: f"linear: x {x.shape} does not fit weight {weight.shape}")  # type: ignore[no-untyped-call]
        same = x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype)
        torch._check(same, lambda: "linear: x, weight and bias must have the same dtype")  # type: ignore[no-untyped-call]
        return x.new_empty((*x.shape[:-1], weight.shape[0]))

    def fake_backward(d_y: Any, x: Any, weight: Any, needs: Any) -> Any:
        made = (x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty((weight.shape[0],)))
        return [tensor for tensor, need in zip(made, needs, strict=True) if need]

    def setup(ctx: Any, tensors: Any) -> None:
        x, weight, _ = tensors
        ctx.save_for_backward(x, weight)

    def backward(ctx: Any, d_y: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[1:])
        if not torch.is_grad_enabled() and not is_batched(d_y):
            return tuple(_spread(unrecorded(backward_op, d_y, x, weight, needs), needs))
        rows = d_y.reshape(-1, d_y.shape[-1])
        return (
            d_y @ weight if needs[0] else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs[1] else None,
            rows.sum(0) if needs[2] else None,
        )

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"{namespace}::linear_backward has no derivative of its own; differentiate linear twice instead"
        )

    def autocast(keyset: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        device = x.device.type
        cast = [t if t is None else t.to(autocast_dtype(t, device)) for t in (x, weight, bias)]
        with torch.autocast(device, enabled=False):
            return forward_op(*cast)

    recorded = autograd_of_tensors(forward_op, setup, backward, torch.nn.functional.linear)
    if library is not None:
        torch.library.register_fake(f"{namespace}::linear", fake_linear, lib=library)
        torch.library.register_fake(f"{namespace}::linear_backward", fake_backward, lib=library)
        _implement(library, "linear", recorded.kernel, "Autograd")
        torch.library.register_autograd(f"{namespace}::linear_backward", refuse, lib=library)
        _implement(library, "linear", autocast, "AutocastCPU", "AutocastCUDA")
    return recorded.call


def make_permute_rows(library: torch.library.Library | None, namespace: str) -> Callable[..., Any]:
    """As `_make_segment`. What flows back goes the other way; autocast leaves it alone."""
    op = getattr(torch.ops, namespace).permute_rows.default

    def fake(rows: Any, firsts: Any, starts: Any, to_steps: Any) -> Any:
        _check_devices(rows, (firsts, starts))
        return rows.new_empty(rows.shape)

    def setup(ctx: Any, arguments: Any) -> None:
        _, firsts, starts, ctx.to_steps = arguments
        ctx.save_for_backward(firsts, starts)

    def backward(ctx: Any, gradient: Tensor) -> Any:
        return recorded.call(gradient, *ctx.saved_tensors, not ctx.to_steps), None, None, None

    def of_dual(rows: Tensor, *rest: Any) -> Tensor:
        value, tangent = forward_ad.unpack_dual(rows)  # type: ignore[no-untyped-call]
        made: Tensor = forward_ad.make_dual(recorded.call(value, *rest), recorded.call(tangent, *rest))  # type: ignore[no-untyped-call]
        return made

    recorded = autograd_of_tensors(op, setup, backward, of_dual)
    if library is not None:
        torch.library.register_fake(f"{namespace}::permute_rows", fake, lib=library)
        _implement(library, "permute_rows", recorded.kernel, "Autograd")
    return recorded.call
