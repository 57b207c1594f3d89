"""Autograd kernels of our ops, written out.

torch.library.register_autograd does the same for any op, but walks through nested lists of arguments, results and
gradients on every call; for a loop that is some 0.1 ms, as long as a small loop takes.

Each is there twice. `kernel` is the dispatcher's, for whoever calls the op by its name: compiled code, autocast, tools.
`call` is for our own eager code, which need not go through the dispatcher to come back to Python.

No op has a rule for forward mode: tensors that carry tangents take the way `written_out`, in torch's own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..eager.elementwise import in_forward_mode
from .call import LoopCall
from .registration import spread

Groups = tuple[list[Any], ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """An op with autograd: see the module."""

    kernel: Callable[..., Any]
    call: Callable[..., Any]


@dataclass(slots=True)
class _Run:
    """What goes past autograd: the op below it, its call, and then the lengths of the lists of its results."""

    below: Callable[..., Any]
    call: LoopCall
    made: tuple[int, ...] = ()


def regroup(flat: Sequence[Any], counts: Sequence[int]) -> Groups:
    """One list for each count, of so many of the values."""
    groups, first = [], 0
    for count in counts:
        groups.append(list(flat[first : first + count]))
        first += count
    return tuple(groups)


def _carry_tangents(tensors: Sequence[Any]) -> bool:
    """Whether one of the tensors is dual."""
    unpack: Callable[[Tensor], Any] = forward_ad.unpack_dual
    return any(isinstance(tensor, Tensor) and unpack(tensor).tangent is not None for tensor in tensors)


def below_autograd(op: Any, keyset: Any, *arguments: Any) -> Any:
    """The op's kernel under autograd, whatever that is: the CPU's, a fake one, one that traces."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


def unrecorded(op: Any, *arguments: Any) -> Any:
    """A call of an op that autograd does not record, or that has no derivative of its own."""
    if torch.compiler.is_compiling():  # compiled autograd, which knows nothing of keys
        return op(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return op(*arguments)


def gradients_again(
    run: Callable[[list[Any]], Sequence[Tensor]],
    tensors: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, or batched: of those tensors that `needs` marks, None for the others.

    run(tensors) computes the results once more, in torch's own operators. `gradients`: one for each result, or None.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: autograd.grad must see each argument as independent of the others.
        own = [tensor if tensor is None else tensor.view_as(tensor) for tensor in tensors]
        results = run(own)
    pairs = [(value, d) for value, d in zip(results, gradients, strict=True) if d is not None and value.requires_grad]
    inputs = [tensor for tensor, need in zip(own, needs, strict=True) if need and tensor is not None]
    if not pairs or not inputs:
        return [None] * len(needs)
    values, d_values = zip(*pairs, strict=True)
    return spread(torch.autograd.grad(values, inputs, d_values, create_graph=again, allow_unused=True), needs)


def autograd_of_loop(
    op: Any,
    setup: Callable[[Any, LoopCall, Groups], None],
    backward: Callable[[Any, Groups, Groups], Sequence[Sequence[Tensor | None]]],
    written_out: Callable[[LoopCall], Groups],
) -> Recorded:
    """Make the autograd function of a loop's forward op. Its streams, weights and states have gradients.

    A call that autograd records asks for what the backward reads by itself: whoever traced or compiled the call may not
    have known. So what a call returns follows its arguments alone, also where gradients are on in one run and off in
    the next.

    setup(ctx, call, results) saves; backward(ctx, gradients of results, needs) returns the gradients of streams,
    weights and states, where `needs` says which of them want one.
    """

    class Loop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, run: _Run, *tensors: Tensor) -> tuple[Tensor, ...]:
            call = run.call
            results = run.below(*call.for_training())
            setup(ctx, call, results)
            ctx.set_materialize_grads(False)
            *returned, saved = results
            if not call.training:  # it was autograd that asked for them, not the caller
                saved = []
            ctx.mark_non_differentiable(*saved)
            run.made = ctx.made = tuple(len(group) for group in (*returned, saved))
            ctx.given = (len(call.streams), len(call.weights), len(call.states))
            return tuple(tensor for group in (*returned, saved) for tensor in group)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            needs = regroup(ctx.needs_input_grad[1:], ctx.given)
            made = backward(ctx, regroup(gradients, ctx.made), needs)
            return (None, *(gradient for group in made for gradient in group))

    def run(below: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        recording = torch.is_grad_enabled()
        if not recording and not in_forward_mode():
            return below(*arguments)
        call = LoopCall(*arguments)
        tensors = (*call.streams, *call.weights, *call.states)
        if in_forward_mode() and _carry_tangents(tensors):
            return written_out(call)
        if not recording or not any(tensor.requires_grad for tensor in tensors):
            return below(*arguments)
        past = _Run(below, call)
        flat = Loop.apply(past, *tensors)  # type: ignore[no-untyped-call]
        return regroup(flat, past.made)

    return _recorded(op, run)


def autograd_of_tensors(
    op: Any,
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[[Any, Tensor], Any],
    written_out: Callable[..., Any],
) -> Recorded:
    """For an op whose only result, or whose first, has a gradient. Every argument that is a tensor may have one.

    setup(ctx, arguments, results) saves; backward(ctx, gradient) returns the gradients of the arguments.
    """

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, below: Callable[..., Any], *arguments: Any) -> Any:
            results = below(*arguments)
            setup(ctx, arguments, results)
            # Else torch fills a tensor with zeros for each result that has no gradient.
            ctx.set_materialize_grads(False)
            if not isinstance(results, Tensor):
                ctx.mark_non_differentiable(*results[1:])
            return results

        @staticmethod
        def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
            if gradient is None:
                return (None,) * len(ctx.needs_input_grad)
            return (None, *backward(ctx, gradient))

    def run(below: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if in_forward_mode() and _carry_tangents(arguments):
            return written_out(*arguments)
        if not torch.is_grad_enabled() or not any(isinstance(a, Tensor) and a.requires_grad for a in arguments):
            return below(*arguments)
        return Op.apply(below, *arguments)  # type: ignore[no-untyped-call]

    return _recorded(op, run)


def _recorded(op: Any, run: Callable[[Callable[..., Any], tuple[Any, ...]], Any]) -> Recorded:
    below = partial(unrecorded, op)
    return Recorded(
        lambda keyset, *arguments: run(partial(below_autograd, op, keyset), arguments),
        lambda *arguments: run(below, arguments),
    )
