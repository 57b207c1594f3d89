"""Layers with matrix states, where threads divide the heads of a batch entry (rnncc/cpu/sharing.h says when)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc

CELLS = {
    "gateddeltanet": "GatedDeltaNet",
    "mlstm": "mLSTM",  # two loops
    "titans": "Titans",  # two matrices
    "ttt_linear": "TTT_Linear",  # a norm within the step
    "ntm": "NTM",  # products with parameters
}
# Large enough that the threads of a group divide the heads, also with vectors of 512 bits.
STEPS, HEADS, HIDDEN = 12, 8, 1024
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lengths": {"lengths": torch.tensor([9])},
    "reset": {"reset": torch.arange(STEPS)[:, None] % 5 == 3},
}


def tensors(layer: torch.nn.Module, threads: int, call: dict[str, Any]) -> list[Tensor]:
    """The output, the final states and all gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(1)
        x = torch.randn(STEPS, 1, 32, requires_grad=True)
        output, states = layer(x, **call)
        given = [x, *layer.parameters()]
        loss = (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum()
        gradients = torch.autograd.grad(loss, given, allow_unused=True)
        ends = states if isinstance(states, tuple) else (states,)
        return [output, *ends, *(gradient for gradient in gradients if gradient is not None)]
    finally:
        torch.set_num_threads(before)


@pytest.mark.always(cell=("gateddeltanet",))
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_the_bits_are_the_same_for_any_number_of_threads(cell: str, recompute: bool, call: str) -> None:
    torch.manual_seed(0)
    heads = {} if cell == "ntm" else {"num_heads": HEADS}
    layer = getattr(rnncc.load(cell), CELLS[cell])(32, HIDDEN, recompute=recompute, **heads)
    alone = tensors(layer, 1, CALLS[call])
    assert all(torch.isfinite(tensor).all() for tensor in alone)
    for threads in (2, 3, 8):
        together = tensors(layer, threads, CALLS[call])
        assert all(map(torch.equal, alone, together)), threads


# Row operators read what rows of a matrix were summed to: other threads wrote some of it.
NORMED = """
cell Normed
dim K = 8
state S: matrix(H, K)
local k: K, q: K
output y
k = tanh(W@x + b)
q = tanh(W@x)
u = softmax(S[t-1]@k)
m = mean(S[t-1]@q)
S[t] = 0.5*S[t-1] + 0.01*(u + m)@T(k)
y = S[t]@q
"""


def test_row_operators_wait_for_the_sums_of_other_threads() -> None:
    torch.manual_seed(0)
    layer = rnncc.compile(NORMED).Normed(32, 1024, num_heads=HEADS, K=1024)
    alone = tensors(layer, 1, {})
    assert all(torch.isfinite(tensor).all() for tensor in alone)
    for threads in (2, 4, 8):
        for _ in range(5):
            assert all(map(torch.equal, alone, tensors(layer, threads, {}))), threads
