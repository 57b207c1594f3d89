"""A call of a loop as a record: the arguments of its op, forward and backward.

Fields have the names and the order of the op's schema (templates/include/rnncc/torch/schema.h), which says what they
mean. So `op(*call)` calls the op, and `LoopCall(*arguments)` names what torch hands over by position. A named tuple
costs a call next to nothing, and torch.compile takes its methods (but not its properties) in every version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor

from ..arguments.packing import Packing

T = TypeVar("T")


def shares(values: Sequence[T], directions: int) -> list[Sequence[T]]:
    """The part of each direction: those of the first stand first."""
    each = len(values) // directions
    return [values[k * each : (k + 1) * each] for k in range(directions)]


class LoopCall(NamedTuple):
    """A call of a loop's forward op."""

    streams: Sequence[Tensor]
    weights: Sequence[Tensor]
    states: Sequence[Tensor]
    offsets: Tensor | None
    steps: int
    lengths: Tensor | None
    reset: Tensor | None
    constants: Sequence[float]
    sizes: Sequence[int]
    num_heads: int
    reverse: Sequence[int]
    sequences: Sequence[int]
    training: bool = False
    recompute: bool = False

    def packing(self) -> Packing | None:
        """How rows lie where tensors are packed, else None."""
        if self.offsets is None:
            return None
        batch, total = self.states[0].shape[0], self.streams[0].shape[0]
        by_step = self.offsets.is_cpu
        steps = self.offsets.shape[0] - 1 if by_step else self.steps
        return Packing(self.offsets, steps, batch, total, by_step)

    def directions(self) -> list[LoopCall]:
        """A call for each direction."""
        groups = (shares(group, len(self.reverse)) for group in (self.streams, self.weights, self.states))
        return [
            self._replace(streams=streams, weights=weights, states=states, reverse=[backwards])
            for streams, weights, states, backwards in zip(*groups, self.reverse, strict=True)
        ]

    def for_training(self) -> LoopCall:
        """The same call, which also returns what the backward reads."""
        return self._replace(training=True)


class BackwardCall(NamedTuple):
    """A call of a loop's backward op. Gradients that are absent are not in its lists: the index beside a list says
    which there are."""

    d_sequences: Sequence[Tensor]
    d_sequence_index: Sequence[int]
    d_final: Sequence[Tensor]
    d_final_index: Sequence[int]
    streams: Sequence[Tensor]
    weights: Sequence[Tensor]
    states: Sequence[Tensor]
    saved: Sequence[Tensor]
    offsets: Tensor | None
    steps: int
    lengths: Tensor | None
    reset: Tensor | None
    constants: Sequence[float]
    sizes: Sequence[int]
    num_heads: int
    reverse: Sequence[int]
    needs: Sequence[bool]

    def forward(self) -> LoopCall:
        """The call of the forward op whose gradients it computes, but for the sequences that were asked for."""
        return LoopCall(
            self.streams, self.weights, self.states, self.offsets, self.steps, self.lengths, self.reset,
            self.constants, self.sizes, self.num_heads, self.reverse, (),
        )  # fmt: skip
