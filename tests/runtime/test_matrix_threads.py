"""Layers with matrix states, where threads divide the heads of a batch entry, or the rows of a head
(rnncc/cpu/sharing.h says when)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify

CELLS = {
    "gateddeltanet": "GatedDeltaNet",
    "mlstm": "mLSTM",  # two loops
    "titans": "Titans",  # two matrices
    "ttt_linear": "TTT_Linear",  # a norm within the step
    "ntm": "NTM",  # products with parameters
}
# Large enough that the threads of a group divide the heads, also with vectors of 512 bits; and the rows of one head.
STEPS, HEADS, HIDDEN, OF_ONE_HEAD = 12, 8, 1024, 500
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lengths": {"lengths": torch.tensor([9])},
    "reset": {"reset": torch.arange(STEPS)[:, None] % 5 == 3},
}


def tensors(layer: torch.nn.Module, threads: int, call: dict[str, Any], batch: int = 1) -> list[Tensor]:
    """The output, the final states and all gradients, with the weights' dtype."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(1)
        x = torch.randn(STEPS, batch, 32, dtype=next(layer.parameters()).dtype, requires_grad=True)
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
@pytest.mark.parametrize(("cell", "heads"), [(cell, heads) for cell in CELLS for heads in (1, HEADS)])
def test_the_bits_are_the_same_for_any_number_of_threads(cell: str, heads: int, recompute: bool, call: str) -> None:
    torch.manual_seed(0)
    # An NTM has one head, whose memory has a size of its own.
    sizes = {"L": 64 * heads, "M": 96} if cell == "ntm" else {"num_heads": heads}
    hidden = OF_ONE_HEAD if heads == 1 else HIDDEN
    layer = getattr(rnncc.load(cell), CELLS[cell])(32, hidden, recompute=recompute, **sizes)
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


# What columns add up to, and their largest elements: the tiles of rows have theirs, which are joined.
COLUMNS = """
cell Columns
state S: matrix(H, K)
dim K = 24
local k: K, a: K, c: K
output y
k = tanh(W@x + b)
a = max(S[t-1], axis=columns)
c = T(S[t-1])@(W@x)
S[t] = 0.5*S[t-1] + (W@x)@T(k + 0.1*tanh(a) + 0.1*tanh(c))
y = S[t]@k
"""


@pytest.mark.parametrize("hidden", [32, 33, 100])
@pytest.mark.parametrize("cell", ["Columns", *CELLS])
def test_tiles_of_rows_equal_the_eager_loop(cell: str, hidden: int) -> None:
    """A head of one tile of rows, of a second one that has one row, and of four."""
    module = rnncc.compile(COLUMNS) if cell == "Columns" else rnncc.load(cell)
    layer_class = getattr(module, CELLS.get(cell, cell))
    sizes = {"L": hidden, "M": 24} if cell == "ntm" else {}
    torch.manual_seed(0)
    layer = layer_class(32, hidden, dtype=torch.float64, **sizes)
    eager = layer_class(32, hidden, dtype=torch.float64, backend="reference", **sizes)
    eager.load_state_dict(layer.state_dict())
    found, expected = (tensors(each, 1, {}, batch=3) for each in (layer, eager))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.isfinite(b).all() and verify.relative_error(a, b) <= 1e-10


# Twelve threads are planned in four groups of three, and six come: some groups have one thread, which runs whole heads,
# while others divide the rows of theirs.
SMALLER = """
import torch
import rnncc
layer = rnncc.load("mlstm").mLSTM(32, 500, num_heads=1)
x = torch.randn(16, 4, 32)

def outcome(threads):
    torch.set_num_threads(threads)
    layer.zero_grad()
    output, _ = layer(x)
    (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
    return [output.detach(), *(parameter.grad.clone() for parameter in layer.parameters())]

alone = outcome(1)
for _ in range(10):
    assert all(torch.equal(a, b) for a, b in zip(alone, outcome(12), strict=True))
"""


def test_a_team_that_is_smaller_than_planned_has_the_same_bits() -> None:
    # OpenMP reads the limit when a process begins.
    environment = os.environ | {"OMP_THREAD_LIMIT": "6"}
    done = subprocess.run([sys.executable, "-c", SMALLER], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
