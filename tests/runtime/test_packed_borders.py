"""Packed sequences of layers whose states are matrices: training keeps the states every 32 steps alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import rnncc

INPUTS, HIDDEN, HEADS = 6, 16, 2
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
# An input that each sequence has once, and one of each step.
GIVEN = """
cell Given
dim K = 8
input x, g: 1, u: 1 per sequence
state S: matrix(H, K)
local k: K
output y
k = tanh(W@x + b)
S[t] = sigmoid(u)*S[t-1] + (sigmoid(g)*tanh(W@x))@T(k)
y = S[t]@k
"""
CELLS = {"gateddeltanet": "GatedDeltaNet", "mlstm": "mLSTM", "given": "Given"}
# Ends at borders, before and after them; an empty sequence; all of one length.
LENGTHS = ([100, 70, 0, 33, 32, 31, 1, 64, 65], [40, 40, 36], [33], [20, 5])


@cache
def module_of(cell: str) -> Any:
    return rnncc.compile(GIVEN) if cell == "given" else rnncc.load(cell)


def made(cell: str, bidirectional: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    layer: torch.nn.Module = getattr(module_of(cell), CELLS[cell])(
        INPUTS, HIDDEN, num_heads=HEADS if cell != "given" else 1, bidirectional=bidirectional, **DOUBLE
    )
    return layer


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("longer", [0, 50])
def test_each_sequence_is_as_if_it_were_alone(cell: str, bidirectional: bool, lengths: list[int], longer: int) -> None:
    """`longer`: by how much `max_length` is above the longest sequence; then there are resets, too."""
    layer = made(cell, bidirectional)
    rows = torch.randn(sum(lengths), INPUTS, **DOUBLE, requires_grad=True)
    of_rows = {"g": torch.randn(sum(lengths), 1, **DOUBLE)} if cell == "given" else {}
    of_rows["reset"] = torch.rand(sum(lengths)) < (0.1 if longer else 0)
    of_entries = {"u": torch.randn(len(lengths), 1, **DOUBLE, requires_grad=True)} if cell == "given" else {}
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    ways = 2 if bidirectional else 1
    _, last = layer(rows[: lengths[0]][:, None], **{k: v[: lengths[0]][:, None] for k, v in of_rows.items()},
                    **{k: v[:1] for k, v in of_entries.items()})  # fmt: skip
    shapes = [(ways, len(lengths), *state.shape[2:]) for state in (last if isinstance(last, tuple) else (last,))]
    first = [torch.randn(shape, **DOUBLE, requires_grad=True) for shape in shapes]

    def results(output: Tensor, states: Any, weight: Tensor) -> Tensor:
        ends = states if isinstance(states, tuple) else (states,)
        return (output * weight).sum() + torch.stack([(end * end.detach().cos()).sum() for end in ends]).sum()

    def given(chosen: slice) -> Any:
        own = tuple(state[:, chosen] for state in first)
        return own if len(own) > 1 else own[0]

    weight = torch.randn(sum(lengths), HIDDEN * ways, **DOUBLE)
    output, states = layer(
        rows, given(slice(None)), offsets=offsets, max_length=max(lengths) + longer, **of_rows, **of_entries
    )
    leaves = [rows, *of_entries.values(), *first, *layer.parameters()]
    found = torch.autograd.grad(results(output, states, weight), leaves)
    total = torch.zeros((), **DOUBLE)
    for entry, length in enumerate(lengths):
        own = slice(int(offsets[entry]), int(offsets[entry]) + length)
        alone, ends = layer(
            rows[own][:, None], given(slice(entry, entry + 1)),
            **{k: v[own][:, None] for k, v in of_rows.items()}, **{k: v[entry][None] for k, v in of_entries.items()},
        )  # fmt: skip
        torch.testing.assert_close(output[own], alone[:, 0], rtol=1e-11, atol=1e-11)
        total = total + results(alone[:, 0], ends, weight[own])
    for one, other in zip(found, torch.autograd.grad(total, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_what_training_keeps() -> None:
    """Of each state one of 32 steps, as for padded sequences; and as much for as many rows of any lengths, but for
    states of each sequence: its first one, and one at borders."""
    layer = made("gateddeltanet", False)

    def kept(*call: Any, **options: Any) -> int:
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(*call, **options)
        return sum(seen.values())

    steps, batch = 320, 4
    x = torch.randn(steps, batch, INPUTS, **DOUBLE)
    rows, offsets = x.transpose(0, 1).reshape(-1, INPUTS).clone(), torch.arange(batch + 1) * steps
    padded, packed = kept(x), kept(rows, offsets=offsets, max_length=steps)
    others = [1000, *[4] * 70]
    apart = kept(rows, offsets=torch.tensor([0, *others]).cumsum(0), max_length=5000)
    state = layer(x[:1])[1].numel() * x.element_size()
    assert packed < padded + steps * state / 4
    assert apart < packed + 3 * len(others) * state / batch


def test_a_compiled_layer_keeps_the_same() -> None:
    """torch.compile knows how many borders there are before anything runs."""
    layer = made("gateddeltanet", True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    lengths = (70, 33, 2)
    rows = torch.randn(sum(lengths), INPUTS, **DOUBLE, requires_grad=True)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    found = []
    for callee in (layer, compiled):
        output, last = callee(rows, offsets=offsets, max_length=max(lengths))
        loss = output.square().sum() + last.sin().sum()
        found.append([output, last, *torch.autograd.grad(loss, [rows, *layer.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("reverse", [False, True])
def test_nothing_that_is_kept_is_left_unwritten(reverse: bool) -> None:
    """There is room for more borders than these lengths have. New memory is what was freed before: NaN."""
    layer = module_of("gateddeltanet").GatedDeltaNet(INPUTS, HIDDEN, num_heads=HEADS, reverse=reverse, **DOUBLE)
    lengths = (100, 40, 3)
    rows, offsets = torch.randn(sum(lengths), INPUTS, **DOUBLE), torch.tensor([0, *lengths]).cumsum(0)

    def kept() -> list[Tensor]:
        seen: list[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            seen.append(tensor)
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(rows, offsets=offsets, max_length=200)
        return [tensor for tensor in seen if tensor.is_floating_point()]

    for _ in range(5):
        shapes = [tensor.shape for tensor in kept()]
        spoiled = [torch.full(shape, torch.nan, **DOUBLE) for shape in 4 * shapes]
        del spoiled
        assert all(tensor.isfinite().all() for tensor in kept())
