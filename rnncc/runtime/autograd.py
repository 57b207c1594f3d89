"""Autograd kernels of our ops, written out.

torch.library.register_autograd does the same for any op, but walks through nested lists of arguments, results and
gradients on every call; for a loop that is some 0.1 ms, as long as a small loop takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Groups = tuple[list[Any], ...]


@dataclass(slots=True)
class _Call:
    """What goes past autograd: the dispatcher's keys and the arguments that have no gradient; `given` and `made` are
    the lengths of the lists of arguments and results."""

    keyset: Any
    rest: tuple[Any, ...]
    given: tuple[int, ...]
    made: tuple[int, ...] = ()


def _regroup(flat: Sequence[Any], counts: Sequence[int]) -> Groups:
    groups, first = [], 0
    for count in counts:
        groups.append(list(flat[first : first + count]))
        first += count
    return tuple(groups)


def below_autograd(op: Any, keyset: Any, arguments: Sequence[Any]) -> Any:
    """The op's kernel under autograd, whatever that is: the CPU's, a fake one, one that traces."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


def unrecorded(op: Any, *arguments: Any) -> Any:
    """A call of an op that has no derivative of its own, from a backward that records nothing."""
    with torch._C._AutoDispatchBelowAutograd():
        return op(*arguments)


def autograd_of_lists(
    op: Any,
    lists: int,
    setup: Callable[[Any, tuple[Any, ...], Groups], None],
    backward: Callable[[Any, Groups, Groups], Sequence[Sequence[Tensor | None]]],
) -> Callable[..., Groups]:
    """The autograd kernel of an op whose first arguments, `lists` of them, are lists of tensors and whose results are
    lists of tensors; no other argument has a gradient.

    setup(ctx, arguments, results) saves; backward(ctx, gradients of results, needs) returns the gradients of the lists,
    where `needs` says which of their tensors want one.
    """

    class Loop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
            arguments = (*_regroup(tensors, call.given), *call.rest)
            results = below_autograd(op, call.keyset, arguments)
            call.made = tuple(len(group) for group in results)
            ctx.given, ctx.made = call.given, call.made
            setup(ctx, arguments, results)
            return tuple(tensor for group in results for tensor in group)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            needs = _regroup(ctx.needs_input_grad[1:], ctx.given)
            made = backward(ctx, _regroup(gradients, ctx.made), needs)
            return (None, *(gradient for group in made for gradient in group))

    def kernel(keyset: Any, *arguments: Any) -> Any:
        groups = arguments[:lists]
        if not torch.is_grad_enabled() or not any(t.requires_grad for group in groups for t in group):
            return below_autograd(op, keyset, arguments)
        call = _Call(keyset, arguments[lists:], tuple(len(group) for group in groups))
        flat = Loop.apply(call, *(tensor for group in groups for tensor in group))  # type: ignore[no-untyped-call]
        return _regroup(flat, call.made)

    return kernel


def autograd_of_tensors(
    op: Any, setup: Callable[[Any, tuple[Any, ...]], None], backward: Callable[[Any, Tensor], Any]
) -> Callable[..., Tensor]:
    """The autograd kernel of an op of tensors (or None) with one result."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, *tensors: Any) -> Any:
            setup(ctx, tensors)
            return below_autograd(op, keyset, tensors)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return (None, *backward(ctx, gradient))

    def kernel(keyset: Any, *tensors: Any) -> Any:
        if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in tensors):
            return below_autograd(op, keyset, tensors)
        return Product.apply(keyset, *tensors)  # type: ignore[no-untyped-call]

    return kernel
