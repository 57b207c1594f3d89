"""Packed tensors: rows of sequences of different lengths, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .tensors import is_batched, under_trace


@dataclass(frozen=True, slots=True)
class Packing:
    """Which step and which batch entry the rows of packed tensors [total, 1, width] belong to.

    offsets  of int64, as the ops take them: where the rows of each step begin, [T + 1], or of each entry, [B + 1]
    steps    T; on a GPU the most that the caller says it may be
    batch    B
    total    the number of rows
    by_step  on the CPU, rows lie step by step: entries stand in the order of falling lengths, so that a step has the
             first ones. On a GPU, rows lie entry by entry.
    """

    offsets: Tensor
    steps: int
    batch: int
    total: int
    by_step: bool

    def lengths(self) -> Tensor:
        """[B] of int64."""
        counts = self.offsets.diff()
        return falling_lengths(counts, self.batch) if self.by_step else counts

    def places(self) -> tuple[Tensor, Tensor]:
        """The step and the batch entry that each row belongs to; both are [total]."""
        rows = torch.arange(self.total, device=self.offsets.device)
        # Clamped for the sake of wrong offsets, at which a GPU cannot look.
        outer = (torch.searchsorted(self.offsets, rows, right=True) - 1).clamp(0, self.offsets.shape[0] - 2)
        inner = rows - self.offsets[outer]
        return (outer, inner) if self.by_step else (inner, outer)

    def rows(self, steps: Tensor, entries: Tensor) -> Tensor:
        """Which row a step of a batch entry has."""
        return self.offsets[steps] + entries if self.by_step else self.offsets[entries] + steps

    def _padded_places(self) -> Tensor:
        """Each row's place among T*B."""
        steps, entries = self.places()
        return steps * self.batch + entries

    def pad(self, rows: Tensor) -> Tensor:
        """[T, B, width]. An entry is filled with its last row, or with another's: zeros might make an infinity of it
        (log(0)), and 0*inf is NaN in the backward."""
        rows = rows.squeeze(1)
        if not rows.shape[0]:
            return rows.new_ones(self.steps, self.batch, rows.shape[-1])
        numbers, lengths = torch.arange(self.batch, device=rows.device), self.lengths()
        last = torch.minimum(torch.arange(self.steps, device=rows.device).unsqueeze(1), (lengths - 1).clamp(min=0))
        filler = self.rows(last, numbers.expand_as(last)).clamp(max=rows.shape[0] - 1)
        filled = rows.detach().index_select(0, filler.reshape(-1)).index_copy(0, self._padded_places(), rows)
        return filled.view(self.steps, self.batch, -1)

    def pack(self, padded: Tensor) -> Tensor:
        """[total, 1, width] of what is [T, B, width]."""
        return padded.flatten(0, 1).index_select(0, self._padded_places()).unsqueeze(1)

    def pad_reset(self, reset: Tensor | None) -> Tensor | None:
        """[T, B] of what is [total, 1], False past an entry's end."""
        if reset is None:
            return None
        flat = reset.new_zeros(self.steps * self.batch).index_copy(0, self._padded_places(), reset.squeeze(1))
        return flat.view(self.steps, self.batch)

    def cut_backwards(self, reset: Tensor) -> Tensor:
        """What cut_backwards in lengths.py does, for `reset` [total, 1]."""
        steps, entries = self.places()
        inside = steps + 1 < self.lengths()[entries]
        following = self.rows(torch.where(inside, steps + 1, steps), entries)
        most = max(self.total - 1, 0)
        return reset.index_select(0, following.clamp(0, most)) & inside.unsqueeze(1)

    def delay(self, rows: Tensor, before: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
        """Rows one step later in the order of the loop, `before` [B, width] at each entry's first one; and what comes
        out at its last, [B, width]."""
        first, lengths = self.batch, self.lengths()
        chain = torch.cat((before, rows.squeeze(1)))
        steps, entries = self.places()
        numbers = torch.arange(first, device=rows.device)
        if reverse:
            inside = steps + 1 < lengths[entries]
            other = torch.where(inside, steps + 1, steps)
            end = torch.zeros_like(lengths)
        else:
            inside, other = steps > 0, (steps - 1).clamp(min=0)
            end = (lengths - 1).clamp(min=0)
        source = torch.where(inside, first + self.rows(other, entries), entries)
        final = torch.where(lengths > 0, first + self.rows(end, numbers), numbers)
        most = chain.shape[0] - 1
        return chain.index_select(0, source.clamp(0, most)).unsqueeze(1), chain.index_select(0, final.clamp(0, most))


def falling_lengths(counts: Tensor, batch: int) -> Tensor:
    """[B], falling: the lengths of a batch that has so many entries at each step, [T]."""
    return torch.searchsorted(-counts, torch.arange(0, -batch, -1, device=counts.device))


def is_shared(value: Tensor, dim: int) -> bool:
    """Whether a dimension of batch entries has one value for all of them. A trace cannot tell that from a batch of
    one."""
    return value.shape[dim] == 1 and not under_trace()


def of_entries(value: Tensor, dim: int, entries: Tensor) -> Tensor:
    """The values of these batch entries, which lie along `dim`."""
    # One for all of them, see `is_shared`.
    index = entries.clamp(max=value.shape[dim] - 1) if under_trace() else entries
    return value.index_select(dim, index)


def gather(rows: Tensor, source: Tensor) -> Tensor:
    """rows[source], a permutation."""
    # What flows back is then gathered, and not added up in a tensor of zeros.
    return _scattered(rows, _inverse(source)) if _has_gradient(rows) else rows.index_select(0, source)


def scatter(rows: Tensor, target: Tensor) -> Tensor:
    """Row i at target[i], a permutation."""
    # A gather is quicker for many rows.
    return _scattered(rows, target) if _has_gradient(rows) else rows.index_select(0, _inverse(target))


def _has_gradient(rows: Tensor) -> bool:
    # A trace is the same with gradients and without.
    return under_trace() or (torch.is_grad_enabled() and rows.requires_grad)


def _scattered(rows: Tensor, target: Tensor) -> Tensor:
    fresh = torch.empty_like(rows)
    # vmap does not write into what it does not batch.
    return fresh.index_copy(0, target, rows) if is_batched(target) else fresh.index_copy_(0, target, rows)


def _inverse(permutation: Tensor) -> Tensor:
    return _scattered(torch.arange(permutation.shape[0], device=permutation.device), permutation)
