"""Rows that do not begin at multiples of 16 bytes: fused kernels cannot move them, the alternating one runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rnncc import verify
from tests.cuda.harness import DTYPES, FUSED, Call, Packages, draw, kernels_of

HEAD_DIMS, HEADS, BATCH, STEPS = 64, 2, 8, 7
DTYPE = DTYPES[dict(FUSED["lstm"])[HEAD_DIMS]]
LAYOUTS = ("beginning", "batch", "steps")


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same numbers [T, B, width] in a larger tensor: its beginning, or the distance of batch entries or of steps,
    is an element more than a multiple of 16 bytes."""
    steps, batch, width = tensor.shape
    match layout:
        case "beginning":
            made = tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)
        case "batch":
            made = tensor.new_zeros(steps, batch, width + 1)[..., :width]
        case _:
            made = tensor.new_zeros(steps, batch * width + 1)[:, : batch * width].view(tensor.shape)
    return made.copy_(tensor)


def in_pieces(tensor: Tensor) -> bool:
    """Whether all rows of [T, B, width] begin at multiples of 16 bytes."""
    places = (tensor.data_ptr(), *(stride * tensor.element_size() for stride in tensor.stride()[:2]))
    return not any(place % 16 for place in places)


def programs(names: set[str]) -> set[tuple[str, str]]:
    """What runs the loop, of the names of kernels: (forward, inference or backward, fused or alternating). The
    alternating kernel has the same name with and without gradients."""
    found = [name.removeprefix("lstm_0_").partition("_") for name in names if name.startswith("lstm_0_")]
    return {(program, "fused" if size else "alternating") for program, _, size in found}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_are_no_pieces(layout: str) -> None:
    tensor = torch.randn(STEPS, BATCH, HEAD_DIMS).to(DTYPE)
    made = laid_out(tensor, layout)
    assert in_pieces(tensor) and not in_pieces(made) and torch.equal(made, tensor)
    assert made.stride(-1) == 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layout", "what"),
    [*((layout, "both") for layout in LAYOUTS), *(("beginning", what) for what in ("stream", "gradient", "weight"))],
)
def test_rows_that_are_no_pieces_of_16_bytes_run_the_alternating_kernel(
    layout: str, what: str, packages: Packages
) -> None:
    drawn = draw(packages("lstm"), "lstm", HEAD_DIMS, HEADS, BATCH, STEPS, DTYPE)
    assert {kind for _, kind in programs(kernels_of(drawn.run))} == {"fused"}
    # After `leaves`, whose copies are laid out anew.
    call = with_layout(drawn.leaves(), layout, what)
    forward = "fused" if what == "gradient" else "alternating"
    backward = "fused" if what == "stream" else "alternating"

    values = call.values()
    found = {name: value.detach() for name, value in values.items()} | call.gradients(values, retain_graph=True)
    with torch.no_grad():
        found |= {f"{name}, inference": value for name, value in call.values().items()}
        used = programs(kernels_of(call.values))
    assert used == {("inference" if forward == "fused" else "forward", forward)}
    assert programs(kernels_of(call.values)) == {("forward", forward)}
    assert programs(kernels_of(lambda: call.gradients(values, retain_graph=True))) == {("backward", backward)}

    expected = drawn.exact().run()
    errors = {name: verify.relative_error(value, expected[name]) for name, value in found.items()}
    assert errors.keys() == expected.keys()
    assert {name: error for name, error in errors.items() if not error <= verify.BOUNDS[DTYPE]} == {}


def with_layout(call: Call, layout: str, what: str) -> Call:
    """The call with streams, the output's gradient, both of them or weights laid out so."""
    (stream,), (weight,), (output, *finals) = call.streams, call.weights, call.cotangents
    if what in ("stream", "both"):
        call = replace(call, streams=(laid_out(stream.detach(), layout).requires_grad_(),))
    if what in ("gradient", "both"):
        call = replace(call, cotangents=(laid_out(output, layout), *finals))
    if what == "weight":
        call = replace(call, weights=(laid_out(weight.detach()[None], layout)[0].requires_grad_(),))
    return call
