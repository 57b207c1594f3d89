"""`recurrent_gradient_clip` on a GPU: every family of fused kernels, and the alternating one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rnncc import verify
from tests.cuda.harness import DEVICE, DTYPES, FUSED, Call, Packages, assert_true, draw
from tests.runtime.test_clip import loop

pytestmark = pytest.mark.gpu

BATCH, STEPS = 5, 9
# gather and scatter, in clusters, grid, their float32, alternating; several gates, and an elementwise path beside.
SIZES = [
    ("lstm", 64), ("lstm", 256), ("lstm", 768), ("lstm", 192), ("lstm", 512), ("lstm", 40),
    ("gru", 64), ("gru", 768), ("gru", 15), ("slstm", 64), ("elman", 96),
]  # fmt: skip


def call_of(packages: Packages, cell: str, head_dim: int, heads: int = 2, **keywords: Any) -> Call:
    dtype = DTYPES[dict(FUSED[cell]).get(head_dim, "fp32")]
    return draw(packages(cell), cell, head_dim, heads, BATCH, STEPS, dtype, **keywords)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(("cell", "head_dim"), SIZES)
def test_clipped_and_cut(cell: str, head_dim: int, masked: bool, packages: Packages) -> None:
    masks: dict[str, Any] = {}
    if masked:
        generator = torch.Generator().manual_seed(head_dim)
        masks = {
            "lengths": torch.tensor([9, 1, 4, 0, 7], device=DEVICE),
            "reset": (torch.rand(STEPS, BATCH, generator=generator) < 0.2).to(DEVICE),
        }
    plain = call_of(packages, cell, head_dim, **masks)
    free, dtype = plain.run(), plain.streams[0].dtype
    for clip in (0.02, 0.0):
        call = call_of(packages, cell, head_dim, recurrent_gradient_clip=clip, **masks)
        assert_true(call, dtype)
        found = call.run()
        # No bound would not pass as one.
        assert verify.relative_error(found["d_stream 0"], free["d_stream 0"]) > 2 * verify.BOUNDS[dtype]
        assert_true(call_of(packages, cell, head_dim, recurrent_gradient_clip=clip, recompute=True, **masks), dtype)
    off = call_of(packages, cell, head_dim, recurrent_gradient_clip=math.inf, **masks).run()
    assert all(torch.equal(off[name], value) for name, value in free.items())


@pytest.mark.parametrize("clip", [0.05, 0.0])
@pytest.mark.parametrize(("file", "name"), [("gruv3", "GRUv3"), ("cornn", "coRNN"), ("rhn", "RHN")])
def test_several_phases_and_operands(file: str, name: str, clip: float, packages: Packages) -> None:
    """Alternating kernels alone, against the layer in float64 on the CPU; both directions, lengths and resets."""
    torch.manual_seed(0)
    layer = getattr(packages(file, fused=False), name)(7, 40, bidirectional=True, recurrent_gradient_clip=clip)
    x = torch.randn(STEPS, BATCH, 7)
    masks: dict[str, Any] = {
        "lengths": torch.tensor([9, 1, 4, 0, 7]),
        "reset": torch.rand(STEPS, BATCH) < 0.2,
    }

    def gradients(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        layer.to(device, dtype)
        leaf = x.to(device, dtype).requires_grad_()
        output, _ = layer(leaf, **{key: value.to(device) for key, value in masks.items()})
        return torch.autograd.grad(output.square().sum(), [leaf, *layer.parameters()])

    expected = gradients("cpu", torch.float64)
    found = gradients(DEVICE, torch.float32)
    bound = verify.BOUNDS[torch.float32]
    assert all(verify.relative_error(a.cpu(), b) <= bound for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("head_dim", [96, 7])
def test_a_clip_lets_nan_pass_and_a_cut_does_not(head_dim: int, packages: Packages) -> None:
    for clip, reaches in ((1.0, True), (0.0, False)):
        call = call_of(packages, "elman", head_dim, 1, recurrent_gradient_clip=clip).leaves()
        values = {"y": call.values()["y"]}
        gradient = torch.ones_like(values["y"])
        gradient[-1, 0, 0] = math.nan
        (d,) = torch.autograd.grad(values["y"], call.streams, gradient)
        assert d[-1, 0, 0].isnan() and d[:-1, 0].isnan().all() == reaches
        assert d[:, 1:].isfinite().all() and d[:-1].isfinite().all() != reaches


def test_against_a_loop_with_hooks(packages: Packages) -> None:
    """Not against our own reference."""
    for clip in (0.05, 0.0):
        layer = packages("elman").Elman(7, 96, device=DEVICE, dtype=torch.bfloat16, recurrent_gradient_clip=clip)
        x = torch.randn(STEPS, BATCH, 7, device=DEVICE, dtype=torch.bfloat16)
        found = torch.autograd.grad(layer(x)[0].double().square().sum(), list(layer.parameters()))
        p = {name: value.detach().cpu().double().requires_grad_() for name, value in layer.gate_parameters().items()}
        start = (torch.zeros(BATCH, 96, dtype=torch.float64),)
        output, _ = loop("Elman", p, x.cpu().double(), start, clip)
        made = torch.autograd.grad(output.square().sum(), list(p.values()))
        for ours, theirs in zip(found, made, strict=True):
            error = verify.relative_error(ours.cpu(), theirs.reshape(ours.shape))
            assert error <= verify.BOUNDS[torch.bfloat16]
