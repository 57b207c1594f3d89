"""FLOP formulas of the ops for torch.utils.flop_counter, which counts matrix products alone (2 per multiply-add)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from .later import when_imported
from .loop import shares
from .spec import CellSpec, SegmentSpec

# The products of one step are counted for a batch of this size, and scaled to the batch of the call. (A batch of 1
# could be broadcast.)
_COLUMNS = 2

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
    def step(
        streams: tuple[Shape, ...], weights: tuple[Shape, ...], states: tuple[Shape, ...], constants: tuple[float, ...],
        sizes: tuple[int, ...], num_heads: int, needs: tuple[bool, ...] | None,
    ) -> int:  # fmt: skip
        """The FLOPs of one step for _COLUMNS columns: of the forward where `needs` is None, else of the backward.
        `needs` says which of the streams, weights and states want gradients."""
        from torch.utils.flop_counter import FlopCounterMode

        named = dict(zip(("I", "H", *(size.name for size in cell.sizes)), sizes, strict=True))
        named["num_heads"] = num_heads

        def count() -> int:
            wanted = iter(needs or [False] * (len(streams) + len(weights) + len(states)))

            def make(shapes: Sequence[Shape], leading: tuple[int, ...] | None) -> list[Tensor]:
                return [
                    torch.empty(shape if leading is None else (*leading, shape[-1]), device="meta", requires_grad=want)
                    for shape, want in zip(shapes, wanted, strict=False)
                ]

            s, w, h = make(streams, (_COLUMNS,)), make(weights, None), make(states, (_COLUMNS,))
            with FlopCounterMode(display=False) as forward:
                new, values = segment.make_step(w, constants, named)(s, h)
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

    def key(given: Sequence[Shape]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(size) for size in shape) for shape in given)

    def directions(
        streams: Sequence[Shape], weights: Sequence[Shape], states: Sequence[Shape], reverse: Sequence[int]
    ) -> list[tuple[Any, Any, Any]]:
        groups = [shares(key(group), len(reverse)) for group in (streams, weights, states)]  # type: ignore[arg-type]
        return [(tuple(s), tuple(w), tuple(h)) for s, w, h in zip(*groups, strict=True)]

    def forward(
        streams: Any, weights: Any, states: Any, offsets: Any, steps: Any, lengths: Any, reset: Any, seed: Any,
        constants: Any, sizes: Any, num_heads: Any, reverse: Any, *_: Any, **__: Any,
    ) -> int:  # fmt: skip
        rest = (tuple(constants), tuple(sizes), num_heads, None)
        each = sum(step(*own, *rest) for own in directions(streams, weights, states, reverse))
        return int(prod(streams[0][:2]) * each // _COLUMNS)

    def backward(
        d_sequences: Any, d_sequence_index: Any, d_final: Any, d_final_index: Any,
        streams: Any, weights: Any, states: Any, saved: Any, offsets: Any, steps: Any, lengths: Any, reset: Any,
        seed: Any, constants: Any, sizes: Any, num_heads: Any, reverse: Any, needs: Any, **_: Any,
    ) -> int:  # fmt: skip
        rest = (tuple(constants), tuple(sizes), num_heads)
        # With packed rows, streams are [total, 1, width].
        rows, columns = prod(streams[0][:2]), states[0][0] if states else streams[0][1]
        flags, first = [], 0
        for group in (streams, weights, states):
            flags.append(shares(list(needs[first : first + len(group)]), len(reverse)))
            first += len(group)
        total = 0
        for own, *wanted in zip(directions(streams, weights, states, reverse), *flags, strict=True):
            # At the first step of a column, states are the given ones. At later steps they depend on all that the loop
            # reads, so they need gradients where anything does.
            of_first = tuple(bool(need) for group in wanted for need in group)
            of_others = (*of_first[: len(of_first) - len(own[2])], *(any(of_first) for _ in own[2]))
            total += min(columns, rows) * step(*own, *rest, of_first)
            total += max(rows - columns, 0) * step(*own, *rest, of_others)
        total //= _COLUMNS
        loop = segment.plain if lengths is None and reset is None and offsets is None else segment.masked
        if len(saved) < len(loop.saved) * len(reverse):  # with `recompute`, the backward runs the forward again
            total += forward(streams, weights, states, offsets, steps, lengths, reset, seed, *rest, reverse)
        return total

    return forward, backward
