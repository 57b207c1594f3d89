"""Packed sequences on a GPU: what the CPU gives, and the host never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tests.cuda.test_gpu import assert_close, pair

pytestmark = pytest.mark.gpu

LENGTHS = (4, 9, 1, 30, 2, 30)


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """For tests that ask torch to raise where the host waits: not any longer than they do."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def found(layer: Any, output: Tensor, last: Any, rows: Tensor) -> dict[str, Any]:
    """Values and gradients, on their device."""
    finals = last if isinstance(last, tuple) else (last,)
    torch.stack([(value * value).sum() for value in (output, *finals)]).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"y": output, "d_x": rows.grad, **{f"final {i}": v for i, v in enumerate(finals)}, **gradients}


@pytest.mark.parametrize("name", ["LSTM", "minGRU", "IndRNN", "GRUv3", "SCRN", "TGRU"])
def test_as_on_the_cpu(name: str, no_waiting: None) -> None:
    torch.manual_seed(1)
    values = [torch.randn(length, 16) for length in LENGTHS]
    layers = pair(name, 16, 16, bidirectional=True)
    results = []
    for layer in layers:
        packed = pack_sequence(values, enforce_sorted=False)
        if layer is layers[1]:
            packed = packed.cuda()
            layer(packed)  # what is compiled or loaded at first use may wait
            torch.cuda.set_sync_debug_mode("error")
        rows = packed.data.detach().requires_grad_()
        given = PackedSequence(rows, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        output, last = layer(given)
        results.append(found(layer, output.data, last, rows))
    torch.cuda.set_sync_debug_mode("default")
    cpu, gpu = ({key: value.detach().cpu() for key, value in result.items()} for result in results)
    assert_close(gpu, cpu, 1e-4)


def test_offsets(no_waiting: None) -> None:
    torch.manual_seed(1)
    lengths = torch.tensor((0, *LENGTHS, 0))
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    x = torch.randn(int(lengths.sum()), 16)
    results = []
    for layer in pair("GRU", 16, 32, num_layers=2):
        device = next(layer.parameters()).device
        rows, own = x.to(device).requires_grad_(), offsets.to(device)
        layer(rows, offsets=own, max_length=30)
        torch.cuda.set_sync_debug_mode("error")
        output, last = layer(rows, offsets=own, max_length=30)
        results.append(found(layer, output, last, rows))
        torch.cuda.set_sync_debug_mode("default")
    cpu, gpu = ({key: value.detach().cpu() for key, value in result.items()} for result in results)
    assert_close(gpu, cpu, 1e-4)


def test_offsets_need_a_length() -> None:
    _, layer = pair("GRU", 4, 8)
    with pytest.raises(ValueError, match="max_length"):
        layer(torch.randn(5, 4, device="cuda"), offsets=torch.tensor([0, 5], device="cuda"))


def test_masks_do_not_wait(no_waiting: None) -> None:
    _, layer = pair("LSTM", 16, 32, bidirectional=True)
    x = torch.randn(9, 3, 16, device="cuda", requires_grad=True)
    lengths, reset = torch.tensor([9, 2, 5], device="cuda"), torch.zeros(9, 3, dtype=torch.bool, device="cuda")
    layer(x, lengths=lengths, reset=reset)[0].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    layer(x, lengths=lengths, reset=reset)[0].sum().backward()
