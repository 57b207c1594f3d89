"""Functional ops with offsets: nn.LSTM's own results, and those of the equations step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import rnncc
from tests.packages import float64_package
from tests.runtime.test_layers import BACKENDS, DOUBLE, IN, H, close, gradients
from tests.runtime.test_packed import LENGTHS, sequences

pytestmark = pytest.mark.usefixtures("float64_first")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_functional_op_takes_offsets_as_torch_takes_sequences(reverse: bool, backend: str) -> None:
    theirs = nn.LSTM(IN, H, bidirectional=True, **DOUBLE)
    own = {name: p for name, p in theirs.named_parameters() if ("reverse" in name) == reverse}
    w_ih, w_hh, b_ih, b_hh = own.values()
    rows = torch.cat(sequences()).requires_grad_()
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    states = [torch.randn(2, len(LENGTHS), H, **DOUBLE).requires_grad_() for _ in range(2)]
    expected, last = theirs(pack_sequence([*torch.split(rows, [*LENGTHS])], enforce_sorted=False), tuple(states))
    half = slice(H, None) if reverse else slice(H)
    padded, _ = nn.utils.rnn.pad_packed_sequence(expected)
    expected_rows = torch.cat([padded[:length, b, half] for b, length in enumerate(LENGTHS)])
    output, finals, found = rnncc.load("lstm").lstm(
        rows @ w_ih.T + b_ih + b_hh, w_hh, [state[int(reverse)] for state in states], offsets=offsets,
        reverse=reverse, return_sequences_of=("h", "c"), backend=backend,
    )  # fmt: skip
    expected_finals = tuple(state[int(reverse)] for state in last)
    assert torch.equal(found["h"], output) and found["c"].shape == output.shape
    ends = offsets[:-1] if reverse else offsets[1:] - 1
    close(found["c"][ends], finals[1])
    wanted = [rows, *states, *own.values()]
    ours = [output, *finals, *gradients(output, finals, wanted)]
    for value, other in zip(ours, (expected_rows, *expected_finals, *gradients(expected_rows, expected_finals, wanted)),
                            strict=True):  # fmt: skip
        close(value, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_functional_op_with_offsets_learned_states_and_resets(backend: str) -> None:
    module = float64_package("cell Learned\nstate h = learned\nh[t] = tanh(x + R@h[t-1])\n")
    recurrent, start = torch.randn(H, H, **DOUBLE), torch.randn(H, **DOUBLE)
    rows, offsets = torch.randn(14, H, **DOUBLE), torch.tensor([0, 4, 13, 13, 14])
    reset = torch.zeros(14)
    reset[[2, 7]] = 1
    states = start.expand(4, H)
    plain, _ = module.learned(rows, [recurrent, start], states, offsets=offsets, backend=backend)
    output, last = module.learned(rows, [recurrent, start], states, offsets=offsets, reset=reset, backend=backend)
    for found, cuts in ((plain, {0, 4, 13}), (output, {0, 2, 4, 7, 13})):
        h = start
        for row in range(14):
            h = (rows[row] + recurrent @ (start if row in cuts else h)).tanh()
            close(found[row], h)
    for entry, row in ((0, 3), (1, 12), (3, 13)):
        close(last[entry], output[row])
    close(last[2], start)


def test_what_the_functional_op_refuses_with_offsets() -> None:
    op, recurrent = rnncc.load("elman").elman, torch.randn(H, H)
    rows, offsets = torch.randn(14, H), torch.tensor([0, 4, 13, 14])
    cases: list[tuple[Tensor, dict[str, Any], str]] = [
        (rows, {"offsets": offsets, "lengths": [4, 9, 1]}, "lengths= is for padded"),
        (rows.unsqueeze(1), {"offsets": offsets}, r"must be \[total, width\]"),
        (rows, {"offsets": offsets, "max_length": 8}, "max_length is 8, but a sequence has 9 steps"),
        (rows, {"offsets": offsets, "reset": torch.zeros(13)}, "reset must be"),
        (rows, {"offsets": offsets + 1}, "offsets must begin with 0"),
        (rows.unsqueeze(1), {"max_length": 14}, "max_length goes with offsets"),
    ]
    for stream, options, message in cases:
        with pytest.raises(ValueError, match=message):
            op(stream, recurrent, hidden_size=H, **options)
