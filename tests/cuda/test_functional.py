"""Functional ops on a GPU."""

from __future__ import annotations

import pytest
import torch

import rnncc
from tests.cuda.test_packed import assert_as_true, exactly, offsets_of


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "class_name"), [("gru", "GRU"), ("mingru", "minGRU")])
def test_packed_rows(name: str, class_name: str) -> None:
    """Unsorted lengths, backwards, with resets and initial states; the CPU's results for the same rows, in float64."""
    torch.manual_seed(3)
    op, lengths = getattr(rnncc.load(name), name), (4, 0, 21, 9, 1)
    layer = getattr(rnncc.load(name), class_name)(16, 32)
    (segment,) = layer.spec.segments
    weights = [getattr(layer, f"{weight.attribute}_l0").detach() for weight in segment.plain.weights]
    widths = [stream.width(layer._sizes[0]) for stream in segment.streams]
    tensors = [torch.randn(sum(lengths), width) for width in widths] + weights + [0.1 * torch.randn(5, 32)]
    reset = torch.rand(sum(lengths)) < 0.2
    results = []
    for like in (torch.zeros(()), torch.zeros((), device="cuda"), torch.zeros((), dtype=torch.float64)):
        leaves = [tensor.to(like, copy=True).requires_grad_() for tensor in tensors]
        streams, own, state = leaves[: len(widths)], leaves[len(widths) : -1], leaves[-1]
        output, last, sequences = op(
            streams, own, [state], reset=reset.to(like.device), offsets=offsets_of(lengths).to(like.device),
            max_length=21, reverse=True, return_sequences_of=("h",),
        )  # fmt: skip
        (output.square().sum() + last.square().sum() + sequences["h"].sum()).backward()
        gradients = {f"gradient {i}": leaf.grad for i, leaf in enumerate(leaves)}
        results.append(exactly({"y": output, "last": last, "h": sequences["h"], **gradients}))
    assert_as_true(results[1], results[0], results[2], 1e-4)
