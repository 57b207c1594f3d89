"""The directions of a layer run side by side on a GPU: in one launch of a kernel a pass, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from rnncc import verify
from tests.cuda.harness import CLASSES, DTYPES, FUSED, Packages, launches_of

pytestmark = pytest.mark.gpu

STEPS = 20
Groups = tuple[list[Tensor], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A layer's sizes. `alternating`: the dtype, by that kernel; else the dtype of the fused kernel of that size."""

    cell: str
    head_dim: int
    heads: int = 1
    batch: int = 4
    alternating: str = ""
    launches: int = 1

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.alternating or dict(FUSED[self.cell])[self.head_dim]]

    def __str__(self) -> str:
        return f"{self.cell}-{self.head_dim}x{self.heads}-{self.batch}-{self.alternating or 'fused'}"


# gather and scatter in one CTA and in clusters, grid; both directions at once take the kernel that one takes.
FUSED_CASES = (
    Case("lstm", 64, 2), Case("lstm", 256), Case("lstm", 768), Case("gruv3", 768), Case("layernormlstm", 256),
)  # fmt: skip
# A few CTAs; many batch entries; tiles twice as large as those of one direction alone; twice the visits; stages of
# several kinds; weights of both directions that shared memory has no room for.
ALTERNATING_CASES = (
    Case("lstm", 40, 3, 4, "fp32"),
    Case("lstm", 40, 1, 100, "bf16"),
    Case("lstm", 768, 1, 4, "bf16"),
    Case("lstm", 512, 1, 40, "fp16"),
    Case("layernormgru", 24, 2, 7, "fp16"),
    Case("lstm", 2048, 1, 4, "bf16", launches=2),
)


def op_of(packages: Packages, case: Case) -> tuple[Any, Any, dict[str, int]]:
    """The cell's forward op, a layer of it, and the layer's sizes."""
    layer_class = getattr(packages(case.cell, fused=not case.alternating), CLASSES[case.cell])
    dtype = case.dtype
    layer = layer_class(3, case.head_dim * case.heads, num_heads=case.heads, device="cuda", dtype=dtype)
    kernels, why = layer._choose(torch.empty(0, device="cuda", dtype=dtype))
    assert kernels is not None, why
    (segment,) = layer.spec.segments
    return kernels.ops[segment.name], layer, layer._sizes[0]


def draw(layer: Any, sizes: dict[str, int], case: Case, seed: int) -> Groups:
    """Streams, weights and states of one direction."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).to("cuda", case.dtype)

    (segment,) = layer.spec.segments
    shapes = [getattr(layer, f"{weight.attribute}_l0").shape for weight in segment.plain.weights]
    return (
        [normal(STEPS, case.batch, stream.width(sizes)) for stream in segment.streams],
        [normal(*shape, scale=case.head_dim**-0.5) for shape in shapes],
        [normal(case.batch, state.width(sizes)) for state in segment.states],
    )


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("case", [*FUSED_CASES, *ALTERNATING_CASES], ids=str)
def test_both_directions_are_one_launch_with_the_same_bits(case: Case, masked: bool, packages: Packages) -> None:
    op, layer, sizes = op_of(packages, case)
    heads, batch = case.heads, case.batch
    lengths = torch.randint(1, STEPS + 1, (batch,), device="cuda") if masked else None
    reset = torch.rand(STEPS, batch, device="cuda") < 0.1 if masked else None
    both = [draw(layer, sizes, case, seed) for seed in (1, 2)]
    cotangents = [draw(layer, sizes, case, seed) for seed in (3, 4)]

    def forward(groups: Groups, reverse: list[bool], training: bool) -> list[Tensor]:
        sequences, finals, _ = op(
            *groups, None, 0, lengths, reset, [], layer.spec.sizes_in_order(sizes), heads, reverse, [0],
            training, False,
        )  # fmt: skip
        return [*sequences, *finals]

    def joint(directions: list[Groups]) -> Groups:
        return tuple(list(chain.from_iterable(part)) for part in zip(*directions, strict=True))

    def gradients(values: list[Tensor], groups: Groups, given: list[Groups]) -> list[Tensor]:
        hidden = sizes["H"]
        flowing = [*(streams[0][..., :hidden] for streams, _, _ in given), *(h for _, _, s in given for h in s)]
        return list(torch.autograd.grad(values, [t for group in groups for t in group], flowing, retain_graph=True))

    def leaves(groups: Groups) -> Groups:
        return tuple([tensor.clone().requires_grad_() for tensor in group] for group in groups)

    def count(run: Callable[[], object], program: str) -> int:
        name = f"{case.cell}_0{'_masked' if masked else ''}_{program}"
        names = launches_of(run)
        return names.count(name) if case.alternating else sum(launch.startswith(f"{name}_") for launch in names)

    together = leaves(joint(both))
    values = forward(together, [False, True], True)
    found = gradients(values, together, cotangents)
    inference = forward(joint(both), [False, True], False)
    program = "forward" if case.alternating else "inference"
    assert count(lambda: forward(together, [False, True], True), "forward") == case.launches
    assert count(lambda: forward(joint(both), [False, True], False), program) == case.launches
    assert count(lambda: gradients(values, together, cotangents), "backward") == case.launches

    apart = []
    for groups, given, reverse in zip(both, cotangents, (False, True), strict=True):
        own = leaves(groups)
        own_values = forward(own, [reverse], True)
        apart.append((own_values, gradients(own_values, own, [given]), forward(groups, [reverse], False)))
    (first, d_first, first_inference), (second, d_second, second_inference) = apart
    assert same(values, [first[0], second[0], *first[1:], *second[1:]])
    assert same(inference, [first_inference[0], second_inference[0], *first_inference[1:], *second_inference[1:]])
    counts = [len(group) for group in both[0]]
    expected = [
        tensor
        for part_first, part_second in zip(split(d_first, counts), split(d_second, counts), strict=True)
        for tensor in (*part_first, *part_second)
    ]
    assert same(found, expected)


def split(tensors: list[Tensor], counts: list[int]) -> list[list[Tensor]]:
    fresh = iter(tensors)
    return [[next(fresh) for _ in range(count)] for count in counts]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.hopper
@pytest.mark.parametrize(("batch", "launches"), [(16, 1), (240, 2)])
def test_directions_of_a_layer(batch: int, launches: int, packages: Packages) -> None:
    """Grids that do not fit the GPU at once, those of both directions for a batch of 240, follow each other."""
    layers = [
        packages("lstm", fused).LSTM(8, 768, bidirectional=True, device="cuda", dtype=torch.bfloat16)
        for fused in (True, False)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(12, batch, 8, device="cuda", dtype=torch.bfloat16)
    found, expected = (output_and_gradients(layer, x) for layer in layers)
    names = launches_of(lambda: layers[0](x)[0].sum().backward())
    for program in ("lstm_0_forward_", "lstm_0_backward_"):
        assert sum(name.startswith(program) for name in names) == launches
    errors = [verify.relative_error(a.double(), b.double()) for a, b in zip(found, expected, strict=True)]
    assert all(error <= verify.BOUNDS[torch.bfloat16] for error in errors), errors


def output_and_gradients(layer: Any, x: Tensor) -> list[Tensor]:
    y: Tensor = layer(x)[0]
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), list(layer.parameters()))]
