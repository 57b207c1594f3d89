"""Sequences of different lengths without padding: a PackedSequence, or rows with `offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .spec import CellSpec


@dataclass(frozen=True, slots=True)
class Packing:
    """Which step and which column the rows of packed tensors [total, 1, width] belong to. They lie step by step, as in
    a PackedSequence: columns stand in the order of falling lengths, so that those of a step are the first ones.

    offsets  [T + 1] of int64: where the rows of each step begin
    lengths  [B] of int64, falling
    steps, places  [total]: each row's step; its place among T*B
    """

    offsets: Tensor
    lengths: Tensor
    steps: Tensor
    places: Tensor

    @staticmethod
    def of(offsets: Tensor, columns: int, total: int) -> Packing:
        """What follows from `offsets`, on their device and without the host waiting for it."""
        counts = offsets.diff()
        numbers = torch.arange(max(columns, total), device=offsets.device)
        lengths = (counts.unsqueeze(1) > numbers[:columns]).sum(0)
        steps = torch.searchsorted(offsets, numbers[:total], right=True) - 1
        return Packing(offsets, lengths, steps, steps * columns + numbers[:total] - offsets[steps])

    @property
    def columns(self) -> Tensor:
        """[total]: each row's column."""
        return self.places - self.steps * self.lengths.shape[0]

    def pad(self, rows: Tensor) -> Tensor:
        """[T, B, width]. A column is filled with its last row, or with another's: zeros might make an infinity of it
        (log(0)), and 0*inf is NaN in the backward."""
        count, columns = self.offsets.shape[0] - 1, self.lengths.shape[0]
        rows = rows.squeeze(1)
        if not rows.shape[0]:
            return rows.new_ones(count, columns, rows.shape[-1])
        numbers = torch.arange(columns, device=rows.device)
        last = torch.minimum(torch.arange(count, device=rows.device).unsqueeze(1), (self.lengths - 1).clamp(min=0))
        filler = (self.offsets[last] + numbers).clamp(max=rows.shape[0] - 1)
        filled = rows.detach().index_select(0, filler.reshape(-1)).index_copy(0, self.places, rows)
        return filled.view(count, columns, -1)

    def pack(self, padded: Tensor) -> Tensor:
        """[total, 1, width] of what is [T, B, width]."""
        return padded.flatten(0, 1).index_select(0, self.places).unsqueeze(1)

    def pad_reset(self, reset: Tensor | None) -> Tensor | None:
        """[T, B] of what is [total, 1], False past a column's end."""
        if reset is None:
            return None
        count, columns = self.offsets.shape[0] - 1, self.lengths.shape[0]
        return reset.new_zeros(count * columns).index_copy(0, self.places, reset.squeeze(1)).view(count, columns)

    def delay(self, rows: Tensor, before: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
        """Rows one step later in the order of the loop, `before` [B, width] at each column's first one; and what comes
        out at its last, [B, width]."""
        first = self.lengths.shape[0]
        chain = torch.cat((before, rows.squeeze(1)))
        columns, numbers = self.columns, torch.arange(first, device=rows.device)
        if reverse:
            inside, other = self.steps + 1 < self.lengths[columns], self.steps + 1
            end = torch.zeros_like(self.lengths)
        else:
            inside, other = self.steps > 0, (self.steps - 1).clamp(min=0)
            end = (self.lengths - 1).clamp(min=0)
        source = torch.where(inside, first + self.offsets[other] + columns, columns)
        final = torch.where(self.lengths > 0, first + self.offsets[end] + numbers, numbers)
        return chain.index_select(0, source).unsqueeze(1), chain.index_select(0, final)


@dataclass(frozen=True, slots=True)
class Packed:
    """What a layer's call was given as packed sequences.

    order, back    [B]: the caller's column of each of ours, and the other way round; None where they are the same
    source, back_rows  [total]: the same for rows
    like           the PackedSequence that was given, or None
    """

    packing: Packing
    order: Tensor | None
    back: Tensor | None
    source: Tensor | None
    back_rows: Tensor | None
    like: PackedSequence | None

    @property
    def columns(self) -> int:
        """B."""
        return self.packing.lengths.shape[0]

    def take(self, value: Any, name: str, dim: int) -> Tensor:
        """One of the call's inputs (`dim` 2), or its `reset` (`dim` 1), as [total, 1, …] in our order. Raises
        TypeError, ValueError where it is not packed as the input is."""
        if isinstance(value, PackedSequence):
            if self.like is None or not torch.equal(value.batch_sizes, self.like.batch_sizes):
                raise ValueError(f"{name} is a PackedSequence of other lengths than the input's")
            value = self._in_order_of_input(value, name)
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be packed as the input is, got: {type(value).__name__}")
        if value.dim() != dim or value.shape[0] != self.packing.places.shape[0]:
            wanted = "[total, width]" if dim == 2 else "[total]"
            raise ValueError(f"packed, {name} must be {wanted} with the rows of the input, got {list(value.shape)}")
        return (value if self.source is None else value.index_select(0, self.source)).unsqueeze(1)

    def _in_order_of_input(self, value: PackedSequence, name: str) -> Tensor:
        """The rows of a PackedSequence of the same lengths whose columns may be sorted in another order. Raises
        ValueError where lengths differ, on the CPU: elsewhere the host would have to wait."""
        assert self.like is not None
        if value.sorted_indices is self.like.sorted_indices:
            return value.data
        packing, numbers = self.packing, torch.arange(self.columns, device=value.data.device)
        ours = numbers if self.like.sorted_indices is None else self.like.sorted_indices
        theirs = numbers if value.unsorted_indices is None else value.unsorted_indices
        places = theirs.index_select(0, ours)
        if value.data.device.type == "cpu" and not torch.equal(packing.lengths[places], packing.lengths):
            raise ValueError(f"{name} is a PackedSequence of other lengths than the input's")
        rows = packing.offsets[packing.steps] + places[packing.columns]
        return value.data.index_select(0, rows.clamp(max=value.data.shape[0] - 1))

    def sort(self, states: Tensor) -> Tensor:
        """Initial states [B, width] in our order."""
        return states if self.order is None else states.index_select(0, self.order)

    def unsort(self, states: Tensor) -> Tensor:
        """Final states in the caller's order."""
        return states if self.back is None else states.index_select(1, self.back)

    def give(self, output: Tensor) -> Tensor | PackedSequence:
        """The output [total, 1, width] in the form of the input."""
        output = output.squeeze(1)
        if self.like is not None:
            return PackedSequence(output, self.like.batch_sizes, self.like.sorted_indices, self.like.unsorted_indices)
        return output if self.back_rows is None else output.index_select(0, self.back_rows)


def read_sequence(given: PackedSequence) -> Packed:
    """A PackedSequence's lengths, which stand on the host."""
    data, sizes = given.data, given.batch_sizes
    offsets = torch.cat((sizes.new_zeros(1), sizes.cumsum(0))).to(data.device, non_blocking=True)
    packing = Packing.of(offsets, int(sizes[0]), data.shape[0])
    return Packed(packing, given.sorted_indices, given.unsorted_indices, None, None, given)


def read_offsets(cell: CellSpec, rows: Tensor, offsets: Tensor, max_length: int | None) -> Packed:
    """Rows [total, width], sequence after sequence; sequence b has those from offsets[b] to offsets[b + 1].

    Raises TypeError, ValueError. On a GPU nothing is looked at, since the host would wait for it.
    """
    if not isinstance(offsets, Tensor) or offsets.dtype not in (torch.int32, torch.int64):
        raise TypeError("offsets must be a tensor of int32 or int64")
    if offsets.dim() != 1 or not offsets.shape[0]:
        raise ValueError(f"offsets must be [B + 1], got {list(offsets.shape)}")
    if rows.dim() != 2:
        raise ValueError(f"{cell.name}: with offsets the input must be [total, width], got {list(rows.shape)}")
    if offsets.device != rows.device:
        raise ValueError(f"offsets must be on the input's device, {rows.device}, not {offsets.device}")
    offsets, total = offsets.to(torch.int64), rows.shape[0]
    lengths = offsets.diff()
    on_host = offsets.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_host and (int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((lengths < 0).any())):
        raise ValueError(f"offsets must begin with 0, not fall, and end with the number of rows, {total}")
    longest = int(lengths.max()) if on_host and lengths.shape[0] else 0
    if max_length is None:
        if not on_host:
            raise ValueError("on a GPU, or compiled, offsets need max_length=, which is not asked of the device")
        max_length = longest
    elif on_host and max_length < longest:
        raise ValueError(f"max_length is {max_length}, but a sequence has {longest} steps")
    falling, order = lengths.sort(descending=True, stable=True)
    counts = (falling > torch.arange(max_length, device=rows.device).unsqueeze(1)).sum(1)
    packing = Packing.of(torch.cat((counts.new_zeros(1), counts.cumsum(0))), lengths.shape[0], total)
    source = offsets[order[packing.columns]] + packing.steps
    return Packed(packing, order, order.argsort(), source, source.argsort(), None)


def read_packed(
    cell: CellSpec,
    x: Tensor | PackedSequence,
    extra: Mapping[str, Any],
    lengths: Any,
    reset: Any,
    offsets: Tensor | None,
    max_length: int | None,
) -> tuple[Packed, Tensor, dict[str, Tensor], Tensor | None]:
    """What is packed, then the inputs [total, 1, width] and `reset` [total, 1] in its order. Raises TypeError,
    ValueError."""
    if lengths is not None:
        raise ValueError("packed sequences have their lengths; lengths= is for padded ones")
    if isinstance(x, PackedSequence):
        if offsets is not None:
            raise ValueError("a PackedSequence has its own offsets")
        packed = read_sequence(x)
    else:
        assert offsets is not None
        packed = read_offsets(cell, x, offsets, max_length)
    taken = {name: packed.take(value, name, 2) for name, value in extra.items()}
    return packed, packed.take(x, "input", 2), taken, None if reset is None else packed.take(reset, "reset", 1)
