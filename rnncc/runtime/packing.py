"""Sequences of different lengths without padding: a PackedSequence, or rows with `offsets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .inputs import check_memory, is_batched
from .kernels import Kernels
from .spec import CellSpec

# Up to which CUDA copies pageable memory without waiting for the stream (CUDA Runtime API, "API synchronization
# behavior").
_STAGED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Packing:
    """Which step and which column the rows of packed tensors [total, 1, width] belong to.

    offsets  of int64, as the ops take them: where the rows of each step begin, [T + 1], or of each column, [B + 1]
    steps, columns, total  T (on a GPU what the caller says it is at most), B, the number of rows
    by_step  on the CPU, and without kernels in a PackedSequence of a GPU, rows lie step by step: columns stand in the
             order of falling lengths, so that those of a step are the first ones. Else they lie column by column.
    """

    offsets: Tensor
    steps: int
    columns: int
    total: int
    by_step: bool

    def lengths(self) -> Tensor:
        """[B] of int64."""
        if not self.by_step:
            return self.offsets.diff()
        return _lengths(self.offsets.diff(), self.columns)

    def places(self) -> tuple[Tensor, Tensor]:
        """Each row's step and column, [total] both."""
        rows = torch.arange(self.total, device=self.offsets.device)
        # Clamped for the sake of wrong offsets, at which a GPU cannot look.
        outer = (torch.searchsorted(self.offsets, rows, right=True) - 1).clamp(0, self.offsets.shape[0] - 2)
        inner = rows - self.offsets[outer]
        return (outer, inner) if self.by_step else (inner, outer)

    def rows(self, steps: Tensor, columns: Tensor) -> Tensor:
        """Which row a step of a column has."""
        return self.offsets[steps] + columns if self.by_step else self.offsets[columns] + steps

    def _padded_places(self) -> Tensor:
        """Each row's place among T*B."""
        steps, columns = self.places()
        return steps * self.columns + columns

    def pad(self, rows: Tensor) -> Tensor:
        """[T, B, width]. A column is filled with its last row, or with another's: zeros might make an infinity of it
        (log(0)), and 0*inf is NaN in the backward."""
        rows = rows.squeeze(1)
        if not rows.shape[0]:
            return rows.new_ones(self.steps, self.columns, rows.shape[-1])
        numbers, lengths = torch.arange(self.columns, device=rows.device), self.lengths()
        last = torch.minimum(torch.arange(self.steps, device=rows.device).unsqueeze(1), (lengths - 1).clamp(min=0))
        filler = self.rows(last, numbers.expand_as(last)).clamp(max=rows.shape[0] - 1)
        filled = rows.detach().index_select(0, filler.reshape(-1)).index_copy(0, self._padded_places(), rows)
        return filled.view(self.steps, self.columns, -1)

    def pack(self, padded: Tensor) -> Tensor:
        """[total, 1, width] of what is [T, B, width]."""
        return padded.flatten(0, 1).index_select(0, self._padded_places()).unsqueeze(1)

    def pad_reset(self, reset: Tensor | None) -> Tensor | None:
        """[T, B] of what is [total, 1], False past a column's end."""
        if reset is None:
            return None
        flat = reset.new_zeros(self.steps * self.columns).index_copy(0, self._padded_places(), reset.squeeze(1))
        return flat.view(self.steps, self.columns)

    def cut_backwards(self, reset: Tensor) -> Tensor:
        """That of inputs.py, of `reset` [total, 1]."""
        steps, columns = self.places()
        inside = steps + 1 < self.lengths()[columns]
        following = self.rows(torch.where(inside, steps + 1, steps), columns)
        most = max(self.total - 1, 0)
        return reset.index_select(0, following.clamp(0, most)) & inside.unsqueeze(1)

    def delay(self, rows: Tensor, before: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
        """Rows one step later in the order of the loop, `before` [B, width] at each column's first one; and what comes
        out at its last, [B, width]."""
        first, lengths = self.columns, self.lengths()
        chain = torch.cat((before, rows.squeeze(1)))
        steps, columns = self.places()
        numbers = torch.arange(first, device=rows.device)
        if reverse:
            inside = steps + 1 < lengths[columns]
            other = torch.where(inside, steps + 1, steps)
            end = torch.zeros_like(lengths)
        else:
            inside, other = steps > 0, (steps - 1).clamp(min=0)
            end = (lengths - 1).clamp(min=0)
        source = torch.where(inside, first + self.rows(other, columns), columns)
        final = torch.where(lengths > 0, first + self.rows(end, numbers), numbers)
        most = chain.shape[0] - 1
        return chain.index_select(0, source.clamp(0, most)).unsqueeze(1), chain.index_select(0, final.clamp(0, most))


def _lengths(counts: Tensor, columns: int) -> Tensor:
    """[B], falling, of the numbers of columns at each step, [T]."""
    return torch.searchsorted(-counts, torch.arange(0, -columns, -1, device=counts.device))


def gather(rows: Tensor, source: Tensor) -> Tensor:
    """rows[source], a permutation."""
    # What flows back is then gathered, and not added up in a tensor of zeros.
    return _scattered(rows, _inverse(source)) if _has_gradient(rows) else rows.index_select(0, source)


def scatter(rows: Tensor, target: Tensor) -> Tensor:
    """Row i at target[i], a permutation."""
    # Of many rows a gather is the quicker one.
    return _scattered(rows, target) if _has_gradient(rows) else rows.index_select(0, _inverse(target))


def _has_gradient(rows: Tensor) -> bool:
    return torch.is_grad_enabled() and rows.requires_grad


def _scattered(rows: Tensor, target: Tensor) -> Tensor:
    fresh = torch.empty_like(rows)
    # vmap does not write into what it does not batch.
    return fresh.index_copy(0, target, rows) if is_batched(target) else fresh.index_copy_(0, target, rows)


def _inverse(permutation: Tensor) -> Tensor:
    return _scattered(torch.arange(permutation.shape[0], device=permutation.device), permutation)


@dataclass(frozen=True, slots=True)
class Packed:
    """What a layer's call was given as packed sequences.

    order, back    [B]: the caller's column of each of ours, and the other way round; None where they are the same
    permute        the caller's rows in our order, or (with True) ours in the caller's; None where they are the same
    like           the PackedSequence that was given, or None
    firsts         its rows lie step by step: where those of each step begin, [T + 1]
    """

    packing: Packing
    order: Tensor | None = None
    back: Tensor | None = None
    permute: Callable[[Tensor, bool], Tensor] | None = None
    like: PackedSequence | None = None
    firsts: Tensor | None = None

    @property
    def columns(self) -> int:
        """B."""
        return self.packing.columns

    def take(self, value: Any, name: str, dim: int) -> Tensor:
        """One of the call's inputs (`dim` 2), or its `reset` (`dim` 1), as [total, 1, …] in our order. Raises
        TypeError, ValueError where it is not packed as the input is."""
        in_order = False
        if isinstance(value, PackedSequence):
            if self.like is None or not _are_equal(value.batch_sizes, self.like.batch_sizes):
                raise ValueError(f"{name} is a PackedSequence of other lengths than the input's")
            in_order = value.sorted_indices is not self.like.sorted_indices
            value = self._in_order_of_input(value, name) if in_order else value.data
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be packed as the input is, got: {type(value).__name__}")
        if value.dim() != dim or value.shape[0] != self.packing.total:
            wanted = "[total, width]" if dim == 2 else "[total]"
            raise ValueError(f"packed, {name} must be {wanted} with the rows of the input, got {list(value.shape)}")
        if value.device != self.packing.offsets.device:
            raise ValueError(f"{name} must be on the input's device, {self.packing.offsets.device}, not {value.device}")
        rows: Tensor = value
        check_memory(rows)
        if not in_order and self.permute is not None:
            rows = self.permute(rows, False)
        return rows.unsqueeze(1)

    def _in_order_of_input(self, value: PackedSequence, name: str) -> Tensor:
        """Our rows of a PackedSequence of the same lengths whose columns may be sorted in another order. Raises
        ValueError where lengths differ, on the CPU: elsewhere the host would have to wait."""
        assert self.like is not None and self.firsts is not None
        packing, numbers = self.packing, torch.arange(self.columns, device=value.data.device)
        ours = numbers if self.like.sorted_indices is None else self.like.sorted_indices
        theirs = numbers if value.unsorted_indices is None else value.unsorted_indices
        others = theirs.index_select(0, ours)
        if value.data.device.type == "cpu":
            lengths = packing.lengths()
            if not _are_equal(lengths[others], lengths):
                raise ValueError(f"{name} is a PackedSequence of other lengths than the input's")
        steps, columns = packing.places()
        rows = self.firsts[steps] + others[columns]
        return value.data.index_select(0, rows.clamp(max=value.data.shape[0] - 1))

    def sort(self, states: Tensor) -> Tensor:
        """Initial states [B, width] in our order."""
        return states if self.order is None else states.index_select(0, self.order)

    def unsort(self, states: Tensor) -> Tensor:
        """Final states [..., B, width] in the caller's order."""
        return states if self.back is None else states.index_select(-2, self.back)

    def give_rows(self, output: Tensor) -> Tensor:
        """The output [total, 1, width] as [total, width] in the caller's order."""
        output = output.squeeze(1)
        return output if self.permute is None else self.permute(output, True)

    def give(self, output: Tensor) -> Tensor | PackedSequence:
        """The output [total, 1, width] in the form of the input."""
        output = self.give_rows(output)
        if self.like is not None:
            return PackedSequence(output, self.like.batch_sizes, self.like.sorted_indices, self.like.unsorted_indices)
        return output


def _are_equal(one: Tensor, other: Tensor) -> bool:
    # To compare numbers would break a graph.
    return one is other or torch.compiler.is_compiling() or torch.equal(one, other)


def read_sequence(given: PackedSequence, kernels: Kernels | None) -> Packed:
    """A PackedSequence's lengths, which stand on the host. Raises ValueError where they are not those of its rows, of
    which torch takes any."""
    data, counts = given.data, given.batch_sizes
    check_memory(counts)
    firsts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    steps, total, indices = counts.shape[0], data.shape[0], given.sorted_indices
    if torch.compiler.is_compiling() and indices is not None:
        # Numbers of the host's memory would break the graph.
        columns = indices.shape[0]
    else:
        columns = int(counts[0])
        if int(firsts[-1]) != total or int(counts[-1]) < 1 or bool((counts.diff() > 0).any()):
            raise ValueError(
                f"a PackedSequence's batch_sizes must be positive, not rise, and add up to its {total} rows, got "
                f"{counts.tolist()}"
            )
        if indices is not None and indices.shape[0] != columns:
            raise ValueError(f"a PackedSequence of {columns} columns has indices of {indices.shape[0]}")
    if kernels is None or not data.is_cuda:
        firsts = _put(firsts, data.device)
        packing, permute = Packing(firsts, steps, columns, total, by_step=True), None
    else:
        table = torch.cat((firsts, counts.new_zeros(1), _lengths(counts, columns).cumsum(0)))
        firsts, starts = torch.split(_put(table, data.device), [steps + 1, columns + 1])
        packing = Packing(starts, steps, columns, total, by_step=False)

        def permute(rows: Tensor, back: bool) -> Tensor:
            permuted: Tensor = kernels.run("permute_rows", rows, firsts, starts, back)
            return permuted

    return Packed(packing, given.sorted_indices, given.unsorted_indices, permute, given, firsts)


def _put(table: Tensor, device: torch.device) -> Tensor:
    """A table of the host on the device; where that is a GPU, the host does not wait for the stream."""
    if device.type != "cuda":
        return table.to(device)
    if not torch.compiler.is_compiling() and table.nbytes > _STAGED_BYTES:
        table = table.pin_memory()
    return table.to(device, non_blocking=True)


def read_offsets(cell: CellSpec, rows: Tensor, offsets: Tensor, max_length: int | None) -> Packed:
    """Rows [total, width], sequence after sequence; sequence b has those from offsets[b] to offsets[b + 1].

    Raises TypeError, ValueError. On a GPU nothing is looked at, since the host would wait for it.
    """
    if not isinstance(offsets, Tensor) or offsets.dtype not in (torch.int32, torch.int64):
        raise TypeError("offsets must be a tensor of int32 or int64")
    if offsets.dim() != 1 or not offsets.shape[0]:
        raise ValueError(f"offsets must be [B + 1], got {list(offsets.shape)}")
    check_memory(offsets)
    if rows.dim() != 2:
        raise ValueError(f"{cell.name}: with offsets the input must be [total, width], got {list(rows.shape)}")
    if offsets.device != rows.device:
        raise ValueError(f"offsets must be on the input's device, {rows.device}, not {offsets.device}")
    offsets, columns, total = offsets.to(torch.int64), offsets.shape[0] - 1, rows.shape[0]
    lengths = offsets.diff()
    on_host = offsets.device.type == "cpu" and not torch.compiler.is_compiling() and not is_batched(offsets)
    if on_host and (int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((lengths < 0).any())):
        raise ValueError(f"offsets must begin with 0, not fall, and end with the number of rows, {total}")
    longest = int(lengths.max()) if on_host and columns else 0
    if max_length is None:
        if not on_host:
            raise ValueError("on a GPU, compiled, or under vmap, offsets need max_length=, which is not looked for")
        max_length = longest
    elif on_host and max_length < longest:
        raise ValueError(f"max_length is {max_length}, but a sequence has {longest} steps")
    if offsets.is_cuda:
        if total and max_length < 1:
            raise ValueError(f"max_length is {max_length}, but there are {total} rows")
        return Packed(Packing(offsets, max_length, columns, total, by_step=False))
    falling, order = lengths.sort(descending=True, stable=True)
    counts = (falling > torch.arange(max_length, device=rows.device).unsqueeze(1)).sum(1)
    packing = Packing(torch.cat((counts.new_zeros(1), counts.cumsum(0))), max_length, columns, total, by_step=True)
    step_of, column_of = packing.places()
    source = offsets[order[column_of]] + step_of

    def permute(rows: Tensor, back: bool) -> Tensor:
        return scatter(rows, source) if back else gather(rows, source)

    return Packed(packing, order, order.argsort(), permute)


def read_packed(
    cell: CellSpec,
    x: Tensor | PackedSequence,
    extra: Mapping[str, Any],
    lengths: Any,
    reset: Any,
    offsets: Tensor | None,
    max_length: int | None,
    kernels: Kernels | None = None,
) -> tuple[Packed, Tensor, dict[str, Tensor], Tensor | None]:
    """What is packed, then the inputs [total, 1, width] and `reset` [total, 1] in its order. `kernels`: those that run
    a PackedSequence, None for the reference. Raises TypeError, ValueError."""
    if lengths is not None:
        raise ValueError("packed sequences have their lengths; lengths= is for padded ones")
    if isinstance(x, PackedSequence):
        if offsets is not None:
            raise ValueError("a PackedSequence has its own offsets")
        packed = read_sequence(x, kernels)
    else:
        assert offsets is not None
        packed = read_offsets(cell, x, offsets, max_length)
    taken = {name: packed.take(value, name, 2) for name, value in extra.items()}
    return packed, packed.take(x, "input", 2), taken, None if reset is None else packed.take(reset, "reset", 1)
