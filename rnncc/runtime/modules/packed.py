"""Sequences of different lengths without padding: a PackedSequence, or rows with `offsets`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..arguments.arguments import read_int
from ..arguments.packing import Packing, falling_lengths, gather, is_shared, of_entries, scatter
from ..arguments.tensors import check_memory, is_batched, is_symbol, under_trace
from ..kernels.kernels import Kernels
from ..spec import CellSpec

# Up to which CUDA copies pageable memory without waiting for the stream (CUDA Runtime API, "API synchronization
# behavior").
_STAGED_BYTES = 64 * 1024

# permute(rows, back): the caller's rows in our order, or (`back`) ours in the caller's.
Permute = Callable[[Tensor, bool], Tensor]


@dataclass(frozen=True, slots=True)
class Packed:
    """What a layer's call was given as packed sequences.

    order, back    [B]: the caller's batch entry of each of ours, and the other way round; None where they are the same
    permute        how rows come into our order, and back; None where the caller's is ours
    like           the PackedSequence that was given, or None
    firsts         its rows lie step by step: where those of each step begin, [T + 1]
    """

    packing: Packing
    order: Tensor | None = None
    back: Tensor | None = None
    permute: Permute | None = None
    like: PackedSequence | None = None
    firsts: Tensor | None = None

    @property
    def batch(self) -> int:
        """B."""
        return self.packing.batch

    def take_all(
        self, x: Tensor | PackedSequence, extra: Mapping[str, Any], reset: Any, per_sequence: Collection[str] = ()
    ) -> tuple[Tensor, dict[str, Any], Tensor | None]:
        """The inputs [total, 1, width] and `reset` [total, 1] of a call, in our order. The inputs `per_sequence` stay
        as they are. Raises TypeError, ValueError."""
        taken = {
            name: value if value is None or name in per_sequence else self.take(value, name, 2)
            for name, value in extra.items()
        }
        return self.take(x, "input", 2), taken, None if reset is None else self.take(reset, "reset", 1)

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
        """Our rows of a PackedSequence of the same lengths whose entries may be sorted in another order.
        Raises ValueError where lengths differ, on the CPU: elsewhere the host would have to wait."""
        assert self.like is not None and self.firsts is not None
        packing, numbers = self.packing, torch.arange(self.batch, device=value.data.device)
        ours = numbers if self.like.sorted_indices is None else self.like.sorted_indices
        theirs = numbers if value.unsorted_indices is None else value.unsorted_indices
        others = theirs.index_select(0, ours)
        if value.data.device.type == "cpu":
            lengths = packing.lengths()
            if not _are_equal(lengths[others], lengths):
                raise ValueError(f"{name} is a PackedSequence of other lengths than the input's")
        steps, entries = packing.places()
        rows = self.firsts[steps] + others[entries]
        return value.data.index_select(0, rows.clamp(max=value.data.shape[0] - 1))

    def sort(self, states: Tensor, dim: int = 0) -> Tensor:
        """Initial states [B, width] in our order, or what has the batch entries in another dimension. What is the same
        for all entries stays as it is."""
        return states if self.order is None or is_shared(states, dim) else of_entries(states, dim, self.order)

    def unsort(self, states: Tensor) -> Tensor:
        """Final states [..., B, width] in the caller's order."""
        return states if self.back is None else states.index_select(-2, self.back)

    def give_rows(self, output: Tensor) -> Tensor:
        """The output [total, 1, width] as [total, width] in the caller's order."""
        output = output.squeeze(1)
        return output if self.permute is None else self.permute(output, True)

    def give(self, output: Tensor) -> Tensor | PackedSequence:
        """The output [total, 1, width], brought into the form of the input."""
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
    if under_trace():
        batch = _traced(counts[0])
        _check_trace(data)
    elif torch.compiler.is_compiling() and indices is not None:
        # Numbers of the host's memory would break the graph.
        batch = indices.shape[0]
    else:
        batch = int(counts[0])
        if int(firsts[-1]) != total or int(counts[-1]) < 1 or bool((counts.diff() > 0).any()):
            raise ValueError(
                f"a PackedSequence's batch_sizes must be positive, not rise, and add up to its {total} rows, got "
                f"{counts.tolist()}"
            )
        if indices is not None and indices.shape[0] != batch:
            raise ValueError(f"a PackedSequence with a batch of {batch} has indices of {indices.shape[0]}")
    permute = None
    if data.is_cpu:
        packing = Packing(firsts, steps, batch, total, by_step=True)
    else:
        # One copy to the device.
        table = torch.cat((firsts, counts.new_zeros(1), falling_lengths(counts, batch).cumsum(0)))
        firsts, starts = torch.split(_put(table, data.device), [steps + 1, batch + 1])
        packing = Packing(starts, steps, batch, total, by_step=False)
        if kernels is not None and data.is_cuda:
            permute = _permute_by_kernel(kernels, firsts, starts)
        else:
            step_of, entry_of = packing.places()
            permute = _permute_by(firsts[step_of] + entry_of)
    return Packed(packing, given.sorted_indices, given.unsorted_indices, permute, given, firsts)


def _traced(number: Tensor) -> int:
    """A number that a trace computes again at each call. torch takes such a tensor where it takes an int."""
    return number  # type: ignore[return-value]


def _check_trace(rows: Tensor) -> None:
    """Raises NotImplementedError where a trace would hold on to the number of steps."""
    if not rows.is_cpu:
        raise NotImplementedError(
            f"torch.jit.trace would hold on to the number of steps of packed sequences on {rows.device}: give padded "
            "input and lengths=, or use torch.export [RNN721]"
        )


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
    if max_length is not None and not is_symbol(max_length):
        max_length = read_int("max_length", max_length)
    offsets, batch, total = offsets.to(torch.int64), offsets.shape[0] - 1, rows.shape[0]
    lengths = offsets.diff()
    traced = under_trace()
    known = not (torch.compiler.is_compiling() or traced or is_batched(offsets))
    on_host = offsets.device.type == "cpu" and known
    if on_host and (int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((lengths < 0).any())):
        raise ValueError(f"offsets must begin with 0, not fall, and end with the number of rows, {total}")
    longest = int(lengths.max()) if on_host and batch else 0
    if traced:
        _check_trace(rows)
        max_length = _traced(torch.cat((lengths, lengths.new_zeros(1))).max())
    elif max_length is None:
        if not on_host:
            raise ValueError("on a GPU, compiled, or under vmap, offsets need max_length=, which is not looked for")
        max_length = longest
    elif on_host and max_length < longest:
        raise ValueError(f"max_length is {max_length}, but a sequence has {longest} steps")
    if not offsets.is_cpu:
        if total and max_length < 1:
            raise ValueError(f"max_length is {max_length}, but there are {total} rows")
        return Packed(Packing(offsets, max_length, batch, total, by_step=False))
    falling, order = lengths.sort(descending=True, stable=True)
    counts = (falling > torch.arange(max_length, device=rows.device).unsqueeze(1)).sum(1)
    packing = Packing(torch.cat((counts.new_zeros(1), counts.cumsum(0))), max_length, batch, total, by_step=True)
    step_of, entry_of = packing.places()
    source = offsets[order[entry_of]] + step_of
    return Packed(packing, order, order.argsort(), _permute_by(source))


def _permute_by(source: Tensor) -> Permute:
    """Our row i is the caller's row source[i]."""

    def permute(rows: Tensor, back: bool) -> Tensor:
        return scatter(rows, source) if back else gather(rows, source)

    return permute


def _permute_by_kernel(kernels: Kernels, firsts: Tensor, starts: Tensor) -> Permute:
    """Our rows lie entry by entry from `starts` on, the caller's step by step from `firsts` on."""

    def permute(rows: Tensor, back: bool) -> Tensor:
        permuted: Tensor = kernels.run("permute_rows", rows, firsts, starts, back)
        return permuted

    return permute


def read_packed(
    cell: CellSpec,
    x: Tensor | PackedSequence,
    lengths: Any,
    offsets: Tensor | None,
    max_length: int | None,
    kernels: Kernels | None = None,
) -> Packed:
    """What is packed, and how. `kernels`: those that run a PackedSequence, None for the eager fallback. Raises
    TypeError, ValueError."""
    if lengths is not None:
        raise ValueError("packed sequences have their lengths; lengths= is for padded ones")
    if not isinstance(x, PackedSequence):
        assert offsets is not None
        return read_offsets(cell, x, offsets, max_length)
    if offsets is not None:
        raise ValueError("a PackedSequence has its own offsets")
    return read_sequence(x, kernels)
