"""More batch entries than the CTAs of a grid take at once: several launches of a kernel, each for the next entries."""

from __future__ import annotations

import pytest
import torch

import rnncc
from rnncc import verify
from rnncc.ir.family import GRID, WIDE, Family
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS
from rnncc.stages.schedule import schedule
from tests.cuda.harness import CLASSES, DEVICE, DTYPES, FUSED, Packages, assert_true, draw, launches_of, own_sizes
from tests.cuda.test_calls import assert_same, in_a_graph
from tests.cuda.test_directions import output_and_gradients
from tests.cuda.test_packed import exactly, found, offsets_of, one_by_one
from tests.stages.scheduling import backward, forward

STEPS = 9
# For the LSTM: head_dim, batch, launches forward and backward on an H200. With head_dim 1000 and a batch of 75,
# backward, the last of three launches has three groups of batch entries, and those before have four; its last group is
# narrower than the others.
CASES = ((1000, 75, 2, 3), (1000, 96, 2, 3), (512, 75, 3, 3))


def counted(names: list[str], program: str, cell: str = "lstm") -> int:
    return sum(name.startswith(f"{cell}_0_{program}_") for name in names)


def test_the_cases_take_several_launches() -> None:
    for head_dim, batch, *launches in CASES:
        problem = Problem(head_dim, 1, dict(FUSED["lstm"])[head_dim])
        kernels = [schedule(way("lstm"), problem, GPUS["h200"]).kernel_for(batch) for way in (forward, backward)]
        assert [kernel and kernel.launches(batch) for kernel in kernels] == launches
    kernel = schedule(backward("lstm"), Problem(1000, 1, "fp16"), GPUS["h200"]).kernel_for(75)
    assert kernel is not None and (kernel.batch_of_a_launch(75), kernel.concurrent_groups) == (4 * 7, 4)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize(("head_dim", "batch", "ahead", "back"), CASES)
def test_every_entry_of_every_launch(head_dim: int, batch: int, ahead: int, back: int, packages: Packages) -> None:
    dtype = DTYPES[dict(FUSED["lstm"])[head_dim]]
    call = draw(packages("lstm"), "lstm", head_dim, 1, batch, STEPS, dtype)
    names = launches_of(call.run)
    launches = [counted(names, program) for program in ("forward", "backward", "inference")]
    assert launches == [ahead, back, ahead]
    assert_true(call, dtype)
    # Each has the exchange of the one before, whose messages must be gone.
    assert_same(in_a_graph(call.run), call.run())


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize(("head_dim", "batch", "ahead", "back"), CASES)
def test_lengths_and_resets(head_dim: int, batch: int, ahead: int, back: int, packages: Packages) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    lengths = torch.randint(0, STEPS + 1, (batch,), generator=generator).to(DEVICE)
    reset = (torch.rand(STEPS, batch, generator=generator) < 0.2).to(DEVICE)
    dtype = DTYPES[dict(FUSED["lstm"])[head_dim]]
    call = draw(
        packages("lstm"), "lstm", head_dim, 1, batch, STEPS, dtype, reverse=True, lengths=lengths, reset=reset
    )  # fmt: skip
    assert counted(launches_of(call.run), "masked_backward") > 1
    assert_true(call, dtype)


@pytest.mark.gpu
@pytest.mark.hopper
def test_both_directions(packages: Packages) -> None:
    head_dim, batch = 1000, 75
    layers = [
        packages("lstm", fused).LSTM(8, head_dim, bidirectional=True, device=DEVICE, dtype=torch.float16)
        for fused in (True, False)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(STEPS, batch, 8, device=DEVICE, dtype=torch.float16)
    ours, others = (output_and_gradients(layer, x) for layer in layers)
    names = launches_of(lambda: layers[0](x)[0].sum().backward())
    assert counted(names, "forward") > 2 and counted(names, "backward") > 2
    errors = [verify.relative_error(a.double(), b.double()) for a, b in zip(ours, others, strict=True)]
    assert all(error <= verify.BOUNDS[torch.float16] for error in errors), errors


@pytest.mark.gpu
@pytest.mark.parametrize(("cell", "head_dim"), [(cell, size) for cell in FUSED for size, _ in FUSED[cell]])
def test_layers_run_the_kernels_that_their_ops_run(cell: str, head_dim: int, packages: Packages) -> None:
    """A layer's own streams and gradients lie so that fused kernels take them."""
    dtype = DTYPES[dict(FUSED[cell])[head_dim]]
    own = own_sizes(cell, head_dim)
    inputs = own.pop("I", 16)
    layer = getattr(packages(cell), CLASSES[cell])(inputs, head_dim, device=DEVICE, dtype=dtype, **own)
    x = torch.randn(STEPS, 16, inputs, device=DEVICE, dtype=dtype, requires_grad=True)
    further = {item.name: torch.rand(STEPS, 16, 1, device=DEVICE, dtype=dtype) for item in layer.spec.inputs[1:]}
    known = packages.families(cell)
    ran = known.keys() & set(launches_of(lambda: layer(x, **further)[0].sum().backward()))
    assert {name.removeprefix(f"{cell}_0_").split("_")[0] for name in ran} == {"forward", "backward"}


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize(
    ("cell", "head_dim", "batch", "family", "launches"),
    [("lstm", 1000, 75, GRID, 3), ("gru", 768, 200, WIDE, 1)],
)
def test_packed_rows(cell: str, head_dim: int, batch: int, family: Family, launches: int, packages: Packages) -> None:
    """Against each sequence alone, in float64 on the CPU; empty ones where launches begin and at the end."""
    torch.manual_seed(2)
    dtype = torch.float16
    layer = getattr(packages(cell), CLASSES[cell])(16, head_dim, bidirectional=True, device=DEVICE, dtype=dtype)
    exact = getattr(rnncc.load(cell), CLASSES[cell])(16, head_dim, bidirectional=True, dtype=torch.float64)
    exact.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    drawn = torch.randint(0, STEPS + 1, (batch,)).tolist()
    lengths = tuple(0 if entry in (0, 28, 56, batch - 1) else length for entry, length in enumerate(drawn))
    offsets = offsets_of(lengths).to(DEVICE)
    rows = torch.randn(sum(lengths), 16).to(DEVICE, dtype).requires_grad_()
    names = launches_of(lambda: layer(rows, offsets=offsets, max_length=STEPS)[0].sum().backward())
    assert all(counted(names, f"masked_{way}", cell) >= launches for way in ("forward", "backward"))
    known = packages.families(cell)
    assert {known[name] for name in set(names) & known.keys()} == {family}
    layer.zero_grad()
    rows.grad = None
    output, last = layer(rows, offsets=offsets, max_length=STEPS)
    ours = exactly(found(layer, output, last, rows))
    layer.zero_grad()
    apart = one_by_one(layer, rows.detach(), lengths)
    expected = one_by_one(exact, rows.detach().cpu().double(), lengths)
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        bound = max(verify.BOUNDS[dtype], 2 * verify.relative_error(apart[key], value))
        assert verify.relative_error(ours[key], value) <= bound, key
