"""Resets: what stands before one and what stands behind it are sequences of their own, in both directions."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_sequence, unpack_sequence

from tests.runtime.test_layers import BACKENDS, DOUBLE, IN, H, T, close, layer_class

pytestmark = pytest.mark.usefixtures("float64_first")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_reset_starts_a_batch_entry_anew(backend: str, reverse: bool) -> None:
    """What lies before a reset and what lies behind it are sequences of their own, in both directions; initial states
    are those of the first one, which backwards is the one that lies behind."""
    layer = layer_class("lstm", "LSTM")(IN, H, bidirectional=True, **DOUBLE, backend=backend)
    x, at = torch.randn(T, 1, IN, **DOUBLE), 3
    reset = torch.zeros(T, 1)
    reset[at] = 1
    hx = tuple(torch.randn(2, 1, H, **DOUBLE) for _ in range(2))
    output, last = layer(x, hx, reset=reset)
    half = slice(H, None) if reverse else slice(H)
    (early, early_last), (late, late_last) = (
        layer(part, hx if own else None) for part, own in ((x[:at], not reverse), (x[at:], reverse))
    )
    close(output[..., half], torch.cat((early, late))[..., half])
    for found, expected in zip(last, early_last if reverse else late_last, strict=True):
        close(found[int(reverse)], expected[int(reverse)])


CELLS_THAT_RESTART = [
    ("lstm", "LSTM"), ("gru", "GRU"), ("mingru", "minGRU"), ("tgru", "TGRU"), ("slstm", "sLSTM"), ("brc", "BRC"),
]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["lengths", "packed", "offsets"])
@pytest.mark.parametrize(("file", "name"), CELLS_THAT_RESTART)
def test_resets_cut_what_passes_either_way(file: str, name: str, way: str, backend: str) -> None:
    """Pieces between resets, each alone in both directions; a reset past a batch entry's end, and one at its beginning,
    are none. Steps of ragged batch entries, given in every way."""
    layer = layer_class(file, name)(IN, H, bidirectional=True, **DOUBLE, backend=backend)
    lengths, cuts = (6, 9, 1, 0, 4), ((2, 3), (0, 5), (), (), (3,))
    batch = [torch.randn(length, IN, **DOUBLE) for length in lengths]
    resets = [
        torch.tensor([t in cut for t in range(length)], dtype=torch.bool)
        for length, cut in zip(lengths, cuts, strict=True)
    ]
    expected = []
    for entry, cut in zip(batch, cuts, strict=True):
        edges = sorted({0, *cut, len(entry)})
        pieces = [layer(entry[a:b])[0] for a, b in pairwise(edges)]
        expected.append(torch.cat(pieces) if pieces else torch.zeros(0, 2 * H, **DOUBLE))
    present = [b for b, length in enumerate(lengths) if length]
    if way == "lengths":
        x, reset = pad_sequence(batch), pad_sequence(resets, padding_value=True)
        output = layer(x, lengths=lengths, reset=reset)[0]
        found = [output[:length, b] for b, length in enumerate(lengths)]
    elif way == "packed":
        packed = pack_sequence([batch[b] for b in present], enforce_sorted=False)
        cut_rows = pack_sequence([resets[b] for b in present], enforce_sorted=False)
        output = unpack_sequence(layer(packed, reset=cut_rows)[0])
        found, expected = list(output), [expected[b] for b in present]
    else:
        offsets = torch.tensor((0, *lengths)).cumsum(0)
        output = layer(torch.cat(batch), offsets=offsets, reset=torch.cat(resets))[0]
        found = list(output.split(list(lengths)))
    assert [len(part) for part in found] == [len(part) for part in expected]
    close(torch.cat(found), torch.cat(expected))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", [0, T])
def test_lengths_of_an_empty_batch(backend: str, steps: int) -> None:
    """A tensor of no lengths has no memory."""
    layer = layer_class("lstm", "LSTM")(IN, H, bidirectional=True, **DOUBLE, backend=backend)
    x = torch.randn(steps, 0, IN, **DOUBLE, requires_grad=True)
    reset = torch.zeros(steps, 0, dtype=torch.bool)
    for marks in ({}, {"reset": reset}):
        output, (h, c) = layer(x, lengths=torch.zeros(0, dtype=torch.int64), **marks)
        assert output.shape == (steps, 0, 2 * H) and h.shape == c.shape == (2, 0, H)
        output.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
