"""Sparse matrices in the loop on a CPU, against equations in plain torch with masked dense matrices.

In the cases called `few`, `row`, `blocks` and `empty` the kernels multiply lists of the elements that are not zero. The
others have too many elements or too few steps, and are multiplied densely.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from tests.packages import float64_package

TEXT = """
cell ListedLSTM
state h, c
weights R: mask
i, f, o = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = o*tanh(c[t])

cell ListedGRU
state h
weights R: mask, U: mask
r, z = sigmoid(W@x + R@h[t-1] + b)
n = tanh(W@x + U@(r*h[t-1]) + b)
h[t] = z*h[t-1] + (1 - z)*n

cell ListedNorm
state h, s
weights R: mask, V: matrix
s[t] = tanh(V@s[t-1] + R@h[t-1])
h[t] = tanh(W@x + 0.3*layernorm(R@h[t-1] + V@s[t-1]) + b)
"""
CELLS = ("ListedLSTM", "ListedGRU", "ListedNorm")
STATES = {"ListedLSTM": 2, "ListedGRU": 1, "ListedNorm": 2}
STEPS, INPUTS, HIDDEN = 96, 3, 40


@cache
def package() -> Any:
    return float64_package(TEXT, "sparse_products")


def masks(kind: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    """[rows, columns]. `few`: a twentieth of the elements, and empty rows; `row`: one row; `blocks`: of 4 x 4."""
    generator = torch.Generator().manual_seed(seed)
    match kind:
        case "full":
            return torch.ones(rows, columns, dtype=torch.bool)
        case "row":
            return (torch.arange(rows) == 7)[:, None].expand(rows, columns)
        case "blocks":
            chosen = torch.rand(rows // 4, columns // 4, generator=generator) < 0.08
            return chosen.repeat_interleave(4, 0).repeat_interleave(4, 1)
        case "half":
            return torch.rand(rows, columns, generator=generator) < 0.5
    few = torch.rand(rows, columns, generator=generator) < 0.05
    few[::5] = False
    return few & (kind == "few")


def masks_of(layer: Any) -> dict[str, Tensor]:
    """The masks by their buffers' names. A layer has another buffer where its gates are not in torch.nn's order."""
    return {name: buffer for name, buffer in layer.named_buffers() if "mask" in name}


def layer_of(cell: str, kind: str = "few", heads: int = 1, **options: Any) -> Any:
    torch.manual_seed(0)
    layer = getattr(package(), cell)(
        INPUTS, HIDDEN, num_heads=heads, dtype=options.pop("dtype", torch.float64), **options
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.15)
    for place, (name, buffer) in enumerate(masks_of(layer).items()):
        layer.set_mask(
            name[0].replace("w", "R"), masks(kind, buffer.shape[0], buffer.shape[1], place), reverse="reverse" in name
        )
    return layer


def times(matrix: Tensor, h: Tensor) -> Tensor:
    """[heads, out, in] by [B, heads * in]."""
    return torch.einsum("noi,bni->bno", matrix, h.view(len(h), matrix.shape[0], -1)).flatten(1)


def expected(layer: Any, x: Tensor, states: list[Tensor], heads: int) -> Tensor:
    """The output of a layer's equations, from its own parameters, in plain torch."""
    matrix = {
        name: torch.where(mask, getattr(layer, name.replace("mask_", "")), 0).view(
            -1, heads, HIDDEN // heads, HIDDEN // heads
        )
        for name, mask in masks_of(layer).items()
    }
    R = matrix["weight_hh_mask_l0"]
    given = (x @ layer.weight_ih_l0.T + layer.bias_ih_l0).view(*x.shape[:2], -1, HIDDEN)
    output = []
    h, other = states[0], states[-1]
    for step in given:
        own = step.unbind(1)
        match layer.spec.name:
            case "ListedLSTM":
                i, f, o, g = (v + times(m, h) for v, m in zip(own, R, strict=True))
                other = f.sigmoid() * other + i.sigmoid() * g.tanh()
                h = o.sigmoid() * other.tanh()
            case "ListedGRU":
                r, z = ((v + times(m, h)).sigmoid() for v, m in zip(own, R, strict=False))
                n = (own[2] + times(matrix["U_mask_l0"][0], r * h)).tanh()
                h = z * h + (1 - z) * n
            case _:
                V = layer.V_l0.view(-1, heads, HIDDEN // heads, HIDDEN // heads)
                inner = (times(R[1], h) + times(V[1], other)).view(-1, heads, HIDDEN // heads)
                normed = torch.nn.functional.layer_norm(inner, inner.shape[-1:]).flatten(1)
                h, other = (own[0] + 0.3 * normed).tanh(), (times(V[0], other) + times(R[0], h)).tanh()
        output.append(h)
    return torch.stack(output)


def gradients(output: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    direction = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(3))
    return list(torch.autograd.grad(output, wanted, direction))


def apart(got: Tensor, wanted: Tensor) -> float:
    got, wanted = got.detach(), wanted.detach()
    return float((got - wanted).norm() / wanted.norm()) if wanted.any() else float(got.abs().max())


def compare(layer: Any, steps: int, batch: int, heads: int = 1) -> None:
    """Values, and gradients of inputs, states and parameters."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps, batch, INPUTS, dtype=torch.float64, generator=generator, requires_grad=True)
    states = [
        torch.randn(batch, HIDDEN, dtype=torch.float64, generator=generator, requires_grad=True)
        for _ in range(STATES[layer.spec.name])
    ]
    stacked = [state[None] for state in states]
    output = layer(x, tuple(stacked) if len(stacked) > 1 else stacked[0])[0]
    wanted = expected(layer, x, states, heads)
    assert apart(output, wanted) < 1e-12
    parameters = dict(layer.named_parameters())
    inputs = [x, *states, *parameters.values()]
    names = ["x", *(f"state {i}" for i in range(len(states))), *parameters]
    for name, got, right in zip(names, gradients(output, inputs), gradients(wanted, inputs), strict=True):
        assert apart(got, right) < 1e-12, name
        mask = getattr(layer, name.replace("_l0", "_mask_l0"), None)
        if mask is not None:
            assert not got[~mask].any()


@pytest.mark.one_in(4, "kind")
@pytest.mark.parametrize("batch", [1, 3, 35])
@pytest.mark.parametrize("kind", ["few", "row", "blocks", "empty", "full", "half"])
@pytest.mark.parametrize("cell", CELLS)
def test_values_and_gradients(cell: str, kind: str, batch: int) -> None:
    compare(layer_of(cell, kind), STEPS, batch)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("kind", ["few", "row", "half"])
@pytest.mark.parametrize("heads", [2, 5])
@pytest.mark.parametrize("cell", CELLS)
def test_heads(cell: str, heads: int, kind: str, batch: int) -> None:
    compare(layer_of(cell, kind, heads), STEPS, batch, heads)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("cell", CELLS)
def test_few_steps(cell: str, steps: int) -> None:
    compare(layer_of(cell), steps, 1)
    compare(layer_of(cell), steps, 6)


@pytest.mark.parametrize("batch", [1, 2, 5, 8, 17, 32, 33, 70, 150])
def test_every_width_of_vectors(batch: int) -> None:
    compare(layer_of("ListedLSTM"), STEPS, batch)


@pytest.mark.parametrize(("kind", "listed"), [("few", True), ("blocks", True), ("full", False), ("half", False)])
@pytest.mark.parametrize("backward", [False, True])
def test_which_matrices_are_lists(kind: str, listed: bool, backward: bool) -> None:
    """A list has no zeros, and 0 * inf is not a number."""
    layer = layer_of("ListedGRU", kind)
    with torch.no_grad():
        for parameter, mask in ((layer.weight_hh_l0, layer.weight_hh_mask_l0), (layer.U_l0, layer.U_mask_l0)):
            parameter[:, 3] = parameter[3::HIDDEN] = 0  # nothing reads unit 3 or goes to it, if zeros are left out
            parameter.masked_fill_(~mask, 0)
    x = torch.randn(STEPS, 3, INPUTS, dtype=torch.float64)
    infinite = torch.zeros(STEPS, 3, HIDDEN, dtype=torch.float64)
    infinite[-1, :, 3] = torch.inf
    if backward:
        found = torch.autograd.grad(layer(x)[0], layer.bias_ih_l0, infinite)[0].view(3, HIDDEN)
    else:
        found = layer(x, infinite[-1:])[0][0]
    others = torch.arange(HIDDEN) != 3
    assert bool(found[..., others].isfinite().all()) == listed


def test_another_mask_takes_effect_at_the_next_call() -> None:
    layer = layer_of("ListedLSTM")
    for kind in ("few", "blocks", "half", "row", "full", "empty", "few"):
        layer.set_mask("R", masks(kind, 4 * HIDDEN, HIDDEN, 9))
        with torch.no_grad():
            layer.weight_hh_l0.normal_(std=0.15)
        compare(layer, STEPS, 4)


def test_what_comes_back_has_a_gradient() -> None:
    """It begins at zero, so no list has it."""
    layer = layer_of("ListedLSTM")
    layer.set_mask("R", masks("few", 4 * HIDDEN, HIDDEN, 9))
    fresh = layer.weight_hh_mask_l0 & (layer.weight_hh_l0 == 0)
    assert fresh.sum() > 100
    compare(layer, STEPS, 4)
    output = layer(torch.randn(STEPS, 4, INPUTS, dtype=torch.float64))[0]
    assert gradients(output, [layer.weight_hh_l0])[0][fresh].all()


@pytest.mark.parametrize("cell", CELLS)
def test_threads_do_not_matter(cell: str) -> None:
    layer, before = layer_of(cell), torch.get_num_threads()
    for batch in (1, 6, 40):
        x = torch.randn(STEPS, batch, INPUTS, dtype=torch.float64)
        found = []
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                output = layer(x)[0]
                found.append([output, *gradients(output, [layer.weight_hh_l0, layer.weight_ih_l0])])
        finally:
            torch.set_num_threads(before)
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("what", ["lengths", "reset", "packed", "both directions"])
@pytest.mark.parametrize("cell", CELLS)
def test_sequences_of_a_batch(cell: str, what: str) -> None:
    """Against the layer in eager torch."""
    layer = layer_of(cell, bidirectional=what == "both directions")
    eager = getattr(package(), cell)(
        INPUTS, HIDDEN, dtype=torch.float64, bidirectional=what == "both directions", backend="reference"
    )
    eager.load_state_dict(layer.state_dict())
    x = torch.randn(STEPS, 5, INPUTS, dtype=torch.float64)
    lengths = torch.tensor([STEPS, 7, 50, 1, 80])
    results = []
    for own in (layer, eager):
        if what == "packed":
            output = own(pack_padded_sequence(x, lengths, enforce_sorted=False))[0].data
        elif what == "lengths":
            output = own(x, lengths=lengths)[0]
        else:
            begins = torch.rand(STEPS, 5, generator=torch.Generator().manual_seed(5)) < 0.05
            output = own(x, reset=begins if what == "reset" else None)[0]
        results.append([output, *gradients(output, list(own.parameters()))])
    for got, wanted in zip(*results, strict=True):
        assert apart(got, wanted) < 1e-12


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)], ids=str
)
@pytest.mark.parametrize("batch", [1, 20])
def test_other_dtypes(dtype: torch.dtype, bound: float, batch: int) -> None:
    """Against the same numbers in float64."""
    layer = layer_of("ListedLSTM").to(dtype)
    exact = layer_of("ListedLSTM")
    exact.load_state_dict({name: tensor.to(dtype).double() if tensor.is_floating_point() else tensor
                           for name, tensor in layer.state_dict().items()})  # fmt: skip
    x = torch.randn(STEPS, batch, INPUTS).to(dtype)
    found = []
    for own, given in ((layer, x), (exact, x.double())):
        output = own(given)[0]
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).to(dtype).to(output.dtype)
        found.append([output, *torch.autograd.grad(output, list(own.parameters()), direction)])
    for got, wanted in zip(*found, strict=True):
        assert apart(got.double(), wanted) < bound
