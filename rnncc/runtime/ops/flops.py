"""FLOP formulas of the ops for torch.utils.flop_counter, which counts matrix products alone (2 per multiply-add)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..kernels.on_import import when_imported
from ..spec import CellSpec, SegmentSpec
from .call import BackwardCall, LoopCall, shares

# The products of one step are counted for a batch of this size, and scaled to the batch of the call. (A batch of 1
# could be broadcast.)
_BATCH = 2

Shape = Sequence[int]


def register_formulas(namespace: str, segments: Sequence[tuple[CellSpec, SegmentSpec]]) -> None:
    """Make the ops of a package known to FlopCounterMode, as soon as a program imports it."""

    def register() -> None:
        from torch.utils.flop_counter import flop_registry, register_flop_formula

        space = getattr(torch.ops, namespace)
        if space.linear in flop_registry:  # another copy of the package registered them
            return
        register_flop_formula(space.linear)(_linear)
        register_flop_formula(space.linear_backward)(_linear_backward)
        for cell, segment in segments:
            forward, backward = _loop(cell, segment)
            register_flop_formula(getattr(space, f"{segment.name}_forward"))(forward)
            register_flop_formula(getattr(space, f"{segment.name}_backward"))(backward)

    when_imported("torch.utils.flop_counter", register)


def _linear(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(x[:-1]) * prod(weight)


def _linear_backward(d_y: Shape, x: Shape, weight: Shape, needs: Sequence[bool], **_: Any) -> int:
    return (needs[0] + needs[1]) * _linear(x, weight)


def _loop(cell: CellSpec, segment: SegmentSpec) -> tuple[Any, Any]:
    """The formulas of a loop's forward and backward op. FlopCounterMode calls them with the op's arguments, and gives
    shapes in place of tensors."""

    @cache
    def step(call: LoopCall, needs: tuple[bool, ...] | None) -> int:
        """The FLOPs of one step for a batch of _BATCH in one direction: of the forward where `needs` is None, else of
        the backward. `needs` says which of the streams, weights and states want gradients."""
        from torch.utils.flop_counter import FlopCounterMode

        sizes = cell.sizes_by_name(call.sizes, call.num_heads)

        def count() -> int:
            wanted = iter(needs or [False] * (len(call.streams) + len(call.weights) + len(call.states)))

            def make(shapes: Sequence[Any], leading: tuple[int, ...] | None) -> list[Tensor]:
                return [
                    torch.empty(shape if leading is None else (*leading, shape[-1]), device="meta", requires_grad=want)
                    for shape, want in zip(shapes, wanted, strict=False)
                ]

            s, w, h = make(call.streams, (_BATCH,)), make(call.weights, None), make(call.states, (_BATCH,))
            with FlopCounterMode(display=False) as forward:
                new, values = segment.make_step(w, call.constants, sizes)(s, h)
            if needs is None:
                return int(forward.get_total_flops())
            results = [value for value in (*new, *values) if isinstance(value, Tensor) and value.requires_grad]
            inputs = [tensor for tensor in (*s, *w, *h) if tensor.requires_grad]
            with FlopCounterMode(display=False) as backward:
                if results:
                    torch.autograd.grad(results, inputs, [torch.empty_like(r) for r in results], allow_unused=True)
            return int(backward.get_total_flops())

        # These formulas run within a dispatch mode, where autograd records nothing. A new thread is in no such mode.
        with ThreadPoolExecutor(1) as thread:
            found: int = thread.submit(count).result()
        return found

    def key(shapes: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(tuple(int(size) for size in shape) for shape in shapes)

    def directions(call: LoopCall) -> list[LoopCall]:
        """What the FLOPs of a step follow, for each direction."""
        known = call._replace(
            streams=key(call.streams), weights=key(call.weights), states=key(call.states),
            constants=tuple(call.constants), sizes=tuple(call.sizes), offsets=None, steps=0, lengths=None, reset=None,
            sequences=(), training=False, recompute=False,
        )  # fmt: skip
        return [own._replace(reverse=()) for own in known.directions()]

    def forward(*arguments: Any, **_: Any) -> int:
        call = LoopCall(*arguments)
        each = sum(step(own, None) for own in directions(call))
        return int(prod(call.streams[0][:2]) * each // _BATCH)

    def backward(*arguments: Any, **_: Any) -> int:
        made = BackwardCall(*arguments)
        call: Any = made.forward()
        # With packed rows, streams are [total, 1, width].
        rows, batch = prod(call.streams[0][:2]), call.states[0][0] if call.states else call.streams[0][1]
        flags, first = [], 0
        for group in (call.streams, call.weights, call.states):
            flags.append(shares(list(made.needs[first : first + len(group)]), len(call.reverse)))
            first += len(group)
        total = 0
        for own, *wanted in zip(directions(call), *flags, strict=True):
            # At the first step of a batch entry, states are the given ones. At later steps they depend on all that the
            # loop reads, so they need gradients where anything does.
            of_first = tuple(bool(need) for group in wanted for need in group)
            of_others = (*of_first[: len(of_first) - len(own.states)], *(any(of_first) for _ in own.states))
            total += min(batch, rows) * step(own, of_first)
            total += max(rows - batch, 0) * step(own, of_others)
        total //= _BATCH
        is_plain = call.lengths is None and call.reset is None and call.offsets is None
        loop = segment.plain if is_plain else segment.masked
        if len(made.saved) < len(loop.saved) * len(call.reverse):  # with `recompute`, the forward runs again
            total += forward(*call)
        return total

    return forward, backward
